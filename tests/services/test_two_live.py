"""An attempt of the run that lives beside ours: seen at the next event or sweep, told at once, and ours makes way."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.document import Policy
from tests.services.world import JOB, Sim, World
from tests.sizes import examples

MAILBOX = "s3://box/lm"
BOOM = "AlgorithmError: RuntimeError: boom"


def ours_lives(world: World) -> World:
    world.tick(500)
    world.fail(JOB, BOOM)
    world.run(20)
    assert (world.last.phase, world.current) == (Phase.RECOVERED, "lm-r2"), world.story()
    return world


@pytest.fixture
def w() -> World:
    return ours_lives(World())


def begins(w: World, name: str = "lm-again", *, policy_name: str = "default", job_id: str | None = None) -> None:
    """The owner's pipeline submits the run once more; no event of it has arrived yet."""
    w.scheduler.put(name, AttemptStatus.RUNNING, mailbox=MAILBOX, policy_name=policy_name, job_id=job_id)
    w.theirs.add(name)
    w.sims[name] = Sim(step=50, first=50)


def event_of(w: World, name: str = "lm-again", **evidence: Any) -> None:
    kind = SignalKind.MONITOR_FINISHED if evidence else SignalKind.ATTEMPT_STATE
    w.say(kind, name, None, evidence=evidence or {"status": "InProgress"})
    w.deliver_all()


def told(w: World) -> list[Any]:
    return [notice for notice in w.announcer.notices if notice.title.endswith("two attempts live")]


@pytest.mark.parametrize("job_id", [None, JOB])
def test_ours_saves_and_makes_way_for_what_the_owner_starts_later(w: World, job_id: str | None) -> None:
    begins(w, job_id=job_id)
    event_of(w)
    w.run(15)
    assert "two_live.make_way" in w.rules(), w.story()
    assert (w.current, w.last.attempt, w.live) == ("lm-again", "lm-again", ["lm-again"]), w.story()
    assert w.mailbox.fences[JOB][0] == "lm-again"  # the fence lets the one that is kept save
    (notice,) = told(w)
    assert "lm-r2" in notice.text
    assert "lm-again" in notice.text


def test_one_that_ends_before_ours_was_stopped_leaves_ours_running(w: World) -> None:
    begins(w)
    event_of(w)
    w.run(0.5)
    w.end("lm-again", AttemptStatus.FAILED)
    w.run(15)
    assert w.live == ["lm-r2"], w.story()
    assert w.scheduler.stops == [], w.story()


def test_a_monitor_that_says_that_it_was_superseded_tells_of_a_second_attempt(w: World) -> None:
    begins(w, policy_name="")
    event_of(w, superseded_by="lm-r2")
    w.run(15)
    assert w.live == ["lm-again"], w.story()


def test_the_sweep_finds_one_that_asks_for_no_protection_by_its_heartbeats(w: World) -> None:
    begins(w, policy_name="")
    for _ in range(40):
        w.tick(60)
        w.sweep.run()
        w.run(1)
    assert w.live == ["lm-again"], w.story()
    assert len(told(w)) == 1


def test_a_policy_may_leave_both_running_and_tells_of_them_once() -> None:
    policy = Policy.from_wire({"name": "default", "playbooks": {"two_live": {"response": "tell"}}})
    w = ours_lives(World(policy))
    begins(w)
    for _ in range(3):
        event_of(w)
        w.run(5)
    assert sorted(w.live) == ["lm-again", "lm-r2"]
    assert len(told(w)) == 1
    assert w.scheduler.stops == []


def test_two_that_its_owner_has_started_are_told_and_neither_is_stopped() -> None:
    w = World()
    w.tick(500)
    begins(w, job_id=JOB)
    event_of(w)
    w.run(5)
    assert sorted(w.live) == [JOB, "lm-again"]
    assert len(told(w)) == 1
    assert w.scheduler.stops == []


@pytest.mark.parametrize(("lives", "current"), [(True, "lm-again"), (False, JOB)])
def test_an_owner_who_starts_a_second_one_and_then_stops_the_first_has_the_second_protected(
    lives: bool, current: str
) -> None:
    w = World()
    w.tick(500)
    begins(w, job_id=JOB)
    event_of(w)
    w.run(5)
    if not lives:
        w.scheduler.put("lm-again", AttemptStatus.STOPPED)
    w.end(JOB, AttemptStatus.STOPPED)
    w.deliver_all()
    job = w.registry.get(JOB)
    assert (job.current_attempt, job.active, job.open_incident) == (current, lives, None)
    assert w.scheduler.submitted == []


ACTS = st.lists(
    st.sampled_from(["begins", "event", "ends", "ours dies", "sweep", "wait", "superseded"]), min_size=2, max_size=10
)


@settings(max_examples=examples(40), deadline=None)
@given(ACTS)
@example(["ours dies"] * 3 + ["begins", "wait", "ours dies", "ends"])  # the owner's own gains no step either
def test_in_whatever_order_the_owner_acts_two_never_live_for_long(acts: list[str]) -> None:
    """Whatever the order of events: in the end one lives, the fence admits that one, and no start of ours was beside
    one that its owner had started."""
    w = ours_lives(World())
    count = 0
    for act in acts:
        name = f"lm-again{count}"
        match act:
            case "begins" if count < 2 and f"lm-again{count}" not in w.live:
                count += 1
                begins(w, f"lm-again{count}")
            case "event" if count:
                event_of(w, name)
            case "superseded" if name in w.live:
                event_of(w, name, superseded_by=w.current)
            case "ends" if name in w.live:
                w.end(name, AttemptStatus.FAILED, BOOM)
                w.deliver_all()
            case "ours dies" if w.current in w.live:
                w.fail(str(w.current), BOOM)
                w.deliver_all()
            case "sweep":
                w.sweep.run()
            case _:
                w.run(1)
        w.run(1)
    for name in list(w.live):
        event_of(w, name)
    for _ in range(3):
        w.run(20)
        w.sweep.run()
    w.run(20)
    theirs = [name for name in w.live if name.startswith("lm-again")]
    ours = [name for name in w.live if name not in theirs]
    assert not (theirs and ours), (acts, w.live, w.story())
    if len(w.live) == 1:
        assert w.mailbox.fences[JOB][0] == w.live[0] or w.current == w.live[0], (acts, w.story())


def test_a_run_whose_policy_tag_is_gone_is_withdrawn_at_the_next_look(w: World) -> None:
    run = w.scheduler.runs["lm-r2"]
    run.found = dataclasses.replace(run.found, policy_name="", job_id=None)
    w.fail("lm-r2", BOOM)
    w.run(10)
    assert w.live == []
    assert len(w.scheduler.submitted) == 1, "the one before"
    assert not w.registry.get(JOB).active


def test_runs_that_share_a_mailbox_and_lived_at_once_are_told_so_and_a_dead_one_is_left_to_a_person() -> None:
    w = World()
    w.tick(100)
    w.scheduler.put("other", AttemptStatus.RUNNING, mailbox=MAILBOX)
    w.theirs.add("other")
    other = w.intake.register(w.scheduler.find("other"))
    assert any(JOB in limit for limit in other.limits)
    w.tick(400)
    w.fail(JOB, BOOM)
    w.run(10)
    assert (w.last.phase, w.last.outcome) == (Phase.HANDED_OVER, "resubmit.refused"), w.story()


def test_a_run_that_only_an_event_calls_an_attempt_of_the_job_makes_nothing_give_way(w: World) -> None:
    w.scheduler.put("stranger", AttemptStatus.RUNNING, mailbox="s3://elsewhere/x", policy_name="")
    w.theirs.add("stranger")
    event_of(w, "stranger", superseded_by="lm-r2")
    w.run(10)
    assert "two_live.make_way" not in w.rules()
    assert w.scheduler.stops == []
