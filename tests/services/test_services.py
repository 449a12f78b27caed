"""Intake, look, perform, sweep and orders, one behaviour each, over the fakes."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import (
    ActionResult,
    Done,
    Notify,
    QuarantineCheckpoint,
    RequestCheckpoint,
    ResubmitJob,
    Severity,
    StopJob,
)
from chalicelib.domain.model.errors import DependencyUnavailable, InvalidRequest, NotAuthorized, NotOurs, UnknownEntity
from chalicelib.domain.model.incident import Phase, SkipWindow
from chalicelib.domain.model.job import Attempt
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.model.switches import ShadowScope
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.resume.earlier_attempts import OWN_PAIRS, began_again, own_gap_s, reached_before, with_end
from chalicelib.observability import Observability
from chalicelib.ports.incidents import Entry, JoinOutcome
from chalicelib.services.intake.ended_attempt import signal_from_state
from chalicelib.services.intake.remembered_names import MAX_NAMES, UnprotectedNames
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from rekindle.protocol.mailbox import Fence
from rekindle.protocol.signals import FaultClass
from tests.domain.policies import changed
from tests.fakes.world import START
from tests.services.world import JOB, Sim, World


@pytest.fixture
def w() -> World:
    world = World()
    world.tick(600)
    return world


def looked(w: World) -> Any:
    return w.look.observe(
        w.open_incidents[0].incident_id, generation=1, callback_id="c", quiet_limit=timedelta(seconds=60)
    )


# --- whole stories ---


def test_a_crashed_run_comes_back_and_nothing_is_started_twice(w: World) -> None:
    w.fail(JOB, "AlgorithmError: RuntimeError: boom")
    w.run(30)
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert [action.name for action in w.scheduler.submitted] == ["lm-r2"]


def test_a_second_incident_never_resumes_from_the_line_that_was_rolled_back(w: World) -> None:
    """The poisoned attempt's checkpoints stay in the bucket, whole and verified, ahead of the new attempt's."""
    w.poison(JOB)
    w.tick(200)  # it goes on and saves, poisoned
    w.run(60)
    assert w.last.phase is Phase.RECOVERED, w.story()
    w.fail("lm-r2", "AlgorithmError: RuntimeError: boom")
    w.run(30)
    assert w.last.phase is Phase.RECOVERED, w.story()
    last = w.scheduler.submitted[-1]
    assert last.name == "lm-r3"
    assert "lm-r2" in (last.resume_manifest or "")


def test_a_poisoned_run_stays_known_as_such_after_its_incident_was_cancelled(w: World) -> None:
    w.poison(JOB)
    onset = w.sims[JOB].onset
    w.deliver_all()
    w.orders.cancel(w.last.incident_id, who="ada", key="c")
    w.work()
    w.tick(300)
    w.orders.resubmit(JOB, who="ada", key="r", from_step=None, skip=[])
    w.run(60)
    (action,) = w.scheduler.submitted
    assert isinstance(action.resume_step, Known)
    assert action.resume_step.value < (onset or 0)


def test_data_that_were_skipped_stay_skipped_in_the_next_incident(w: World) -> None:
    job = w.registry.get(JOB)
    window = (SkipWindow(from_step=5, to_step=9),)
    w.scheduler.put(JOB, AttemptStatus.FAILED)
    w.scheduler.put("lm-r2", AttemptStatus.RUNNING, mailbox="s3://box/lm", job_id=JOB)
    w.registry.add_attempt(
        job, Attempt(job_id=JOB, number=2, name="lm-r2", submitted_at=w.clock.now(), skips=window), now=w.clock.now()
    )
    w.deliver(w.say(SignalKind.STALL, "lm-r2", FaultClass.HANG))
    assert w.last.loss.skips == window


def test_a_run_that_finds_no_room_is_tried_until_there_is_some(w: World) -> None:
    w.fail(JOB, "AlgorithmError: RuntimeError: boom")
    refused = 0
    while refused < 12:  # more often than the budget of attempts that ran
        w.run(1)
        if w.current is not None and w.status(w.current) is AttemptStatus.STARTING:
            w.fail(w.current, "CapacityError: Unable to provision requested ML compute capacity.")
            refused += 1
    w.run(40)
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert sum(item.no_room for item in w.last.resubmission.tries) == 12


def test_a_run_dead_before_its_incident_could_close_is_not_forgotten(w: World) -> None:
    w.tick(50)
    w.fail(JOB, "AlgorithmError: RuntimeError: boom")
    w.run(2, step_s=20)
    w.sims["lm-r2"].step = 70
    w.scheduler.put("lm-r2", AttemptStatus.RUNNING)
    w._heartbeat("lm-r2", w.sims["lm-r2"])
    w.fail("lm-r2", "AlgorithmError: RuntimeError: bang")
    w.run(30)
    assert [action.name for action in w.scheduler.submitted] == ["lm-r2", "lm-r3"]
    assert w.last.phase is Phase.RECOVERED, w.story()


def test_shadow_mode_tells_and_does_nothing() -> None:
    w = World(Policy(shadow=True))
    w.hang(JOB)
    w.run(30)
    assert w.last.outcome == "guard.shadow"
    assert (w.scheduler.stops, w.scheduler.submitted, w.mailbox.requests) == ([], [], {})
    assert w.announcer.notices


def test_an_execution_that_died_is_continued_by_the_sweep(w: World) -> None:
    w.fail(JOB, "AlgorithmError: RuntimeError: boom")
    w.deliver_all()
    w.die(next(iter(w.workers.values())))
    w.run(30)
    assert w.last.generation == 2
    assert w.last.phase is Phase.RECOVERED


def test_a_late_order_of_a_superseded_execution_calls_no_old_attempt_back(w: World) -> None:
    job = w.registry.get(JOB)
    w.scheduler.put("lm-r3", AttemptStatus.RUNNING)
    w.registry.add_attempt(
        job, Attempt(job_id=JOB, number=3, name="lm-r3", submitted_at=w.clock.now()), now=w.clock.now()
    )
    w.deliver(w.say(SignalKind.STALL, "lm-r3", FaultClass.HANG))
    late = ResubmitJob(
        clone_of=JOB,
        number=2,
        name="lm-r2",
        resume_step=Unknown("x"),
        resume_root=None,
        resume_manifest=None,
        skips=(),
        why="",
    )
    answer = w.perform.act(late, incident=w.last, policy=DEFAULT_POLICY, token="t")
    assert answer.done is Done.REFUSED
    assert w.registry.get(JOB).current_attempt == "lm-r3"
    assert w.mailbox.fences == {}


# --- intake ---


def test_a_signal_about_nobody_is_not_ours(w: World) -> None:
    bare = w.say(SignalKind.STALL, None, FaultClass.HANG)
    with pytest.raises(NotOurs):
        w.intake.receive(replace(bare, job_id="stranger"))
    with pytest.raises(NotOurs):
        w.intake.receive(replace(bare, job_id=None))
    with pytest.raises(NotOurs):
        w.intake.receive(replace(bare, job_id=None, cluster="c"))
    with pytest.raises(NotOurs):
        w.intake.receive(replace(bare, job_id=None, attempt="stranger"))


def test_a_tagged_run_is_registered_on_its_first_event(w: World) -> None:
    w.scheduler.put("other", policy_name="default")
    signal = replace(w.say(SignalKind.STALL, "other", FaultClass.HANG), job_id=None)
    assert w.intake.receive(signal).what is OutcomeKind.OPENED
    assert w.registry.get("other").current_attempt == "other"
    known = replace(w.say(SignalKind.MONITOR_FINISHED, "other", None), job_id=None)
    assert w.intake.receive(known).what is OutcomeKind.JOINED
    mere = replace(w.say(SignalKind.MONITOR_STARTED, "other", None), job_id=None)
    assert w.intake.receive(mere).what is OutcomeKind.DROPPED


def test_a_clone_of_a_job_that_nobody_knows_is_protected_as_its_own(w: World) -> None:
    w.scheduler.put("clone", policy_name="default", job_id="lost")
    signal = replace(w.say(SignalKind.STALL, "clone", FaultClass.HANG), job_id=None)
    assert w.intake.receive(signal).job_id == "lost"


@pytest.mark.parametrize("named", [True, False])
def test_a_run_resubmitted_by_hand_is_taken_over(w: World, named: bool) -> None:
    w.tick(60)
    w.scheduler.put(JOB, AttemptStatus.STOPPED)
    w.scheduler.put("by-hand", policy_name="default", job_id=JOB)
    signal = w.say(SignalKind.MONITOR_STARTED, "by-hand", None)
    w.intake.receive(signal if named else replace(signal, job_id=None))
    assert w.registry.get(JOB).current_attempt == "by-hand"
    stale = w.say(SignalKind.STALL, JOB, FaultClass.HANG)
    assert "stale" in w.intake.receive(stale).reason


def test_how_long_people_took_before_rekindle_acted_is_on_the_account_of_what_it_starts() -> None:
    """Ten deaths in shadow mode, each started again by hand after 15 minutes; then Rekindle may act."""
    w = World()
    w.registry.set_shadow(ShadowScope.JOB, JOB, True, who="ada", now=w.clock.now())
    name = JOB
    for number in range(OWN_PAIRS):
        w.tick(600)
        w.fail(name, f"AlgorithmError: RuntimeError: {'abcdefghij'[number] * 8}")
        w.run(30)
        assert w.last.outcome == "guard.shadow", w.story()
        died_at = w.registry.attempts(JOB)[-1].ended_at
        assert died_at is not None
        w.tick(900 - (w.clock.now() - died_at).total_seconds())
        name = f"by-hand-{number}"
        w.scheduler.put(name, AttemptStatus.RUNNING, mailbox="s3://box/lm", job_id=JOB)
        w.sims[name] = Sim(step=100 * (number + 1), first=100 * (number + 1))
        w.intake.receive(w.say(SignalKind.MONITOR_STARTED, name, None))
    w.registry.set_shadow(ShadowScope.JOB, JOB, False, who="ada", now=w.clock.now())
    w.tick(600)
    w.fail(name, "AlgorithmError: RuntimeError: boom")
    w.run(30)
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert w.last.account.own_gap_s == Known(900.0)


def test_fewer_restarts_than_ten_say_nothing_of_people_and_those_after_ours_do_not_count() -> None:
    def gap(pairs: int, *, ours_at: int | None = None, status: str = "failed") -> Maybe[float]:
        return own_gap_s(
            [
                Attempt(
                    job_id="lm",
                    number=number,
                    name=f"lm-r{number}",
                    submitted_at=START + timedelta(hours=number),
                    ended_at=START + timedelta(hours=number, minutes=40 + number),
                    incident_id="inc" if number == ours_at else None,
                    status=status,
                )
                for number in range(1, pairs + 2)
            ]
        )

    assert gap(OWN_PAIRS) == Known(60 * 14.5)  # 19 to 10 minutes
    assert isinstance(gap(OWN_PAIRS - 1), Unknown)
    assert isinstance(gap(OWN_PAIRS, ours_at=OWN_PAIRS), Unknown)
    assert isinstance(gap(OWN_PAIRS, status="completed"), Unknown)


@pytest.mark.parametrize("copied_number", [1, 2])
def test_a_run_resubmitted_by_hand_may_save_and_the_one_before_it_no_more(w: World, copied_number: int) -> None:
    w.fail(JOB, "boom")
    w.run(40)
    assert w.last.phase is Phase.RECOVERED, w.story()
    w.scheduler.put("lm-r2", AttemptStatus.STOPPED)
    w.tick(60)
    w.scheduler.put("by-hand", AttemptStatus.RUNNING, mailbox="s3://box/lm", job_id=JOB)
    w.intake.receive(w.say(SignalKind.MONITOR_STARTED, "by-hand", None))
    name, number, superseded = w.mailbox.fences[JOB]
    fence = Fence(job_id=JOB, attempt=name, attempt_number=number, superseded=superseded, written_at=w.clock.now())
    assert fence.admits("by-hand", copied_number)
    assert not fence.admits("lm-r2", 2)
    assert not fence.admits(JOB, 1)
    w.tick(60)
    for writer in ("lm-r2", "by-hand"):
        w._save(writer, 500, "periodic")
    found = w.mailbox.checkpoints(w.registry.get(JOB), w.registry.attempts(JOB)).value
    assert {item.attempt: item.fenced for item in found if item.step == 500} == {"lm-r2": True, "by-hand": False}


def test_a_run_resubmitted_by_hand_is_protected_although_its_mailbox_cannot_be_used(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotAuthorized("no")

    monkeypatch.setattr(w.mailbox, "fence", refuse)
    w.tick(60)
    w.scheduler.put(JOB, AttemptStatus.STOPPED)
    w.scheduler.put("by-hand", policy_name="default", job_id=JOB)
    w.intake.receive(w.say(SignalKind.MONITOR_STARTED, "by-hand", None))
    assert w.registry.get(JOB).current_attempt == "by-hand"


def test_an_unknown_name_under_a_known_job_changes_nothing(w: World) -> None:
    w.intake.receive(w.say(SignalKind.MONITOR_STARTED, "nobody", None))
    assert w.registry.get(JOB).current_attempt == JOB


@pytest.mark.parametrize("job_id", [None, JOB])
def test_hearsay_about_an_unknown_name_costs_one_question_an_hour_and_the_platforms_word_ends_that(
    w: World, job_id: str | None
) -> None:
    def hear(kind: SignalKind) -> Outcome:
        return w.intake.receive(replace(w.say(kind, "nobody", None), job_id=job_id))

    def is_heard(kind: SignalKind) -> bool:
        try:
            hear(kind)
        except NotOurs:
            return False
        return True

    asked = w.scheduler.discovered
    for _ in range(20):
        is_heard(SignalKind.MONITOR_STARTED)
        is_heard(SignalKind.STALL)
    assert w.scheduler.discovered == asked + 1
    w.tick(3601)
    is_heard(SignalKind.STALL)
    assert w.scheduler.discovered == asked + 2
    w.scheduler.put("nobody", policy_name="default")  # it was tagged, or submitted, after all
    is_heard(SignalKind.STALL)
    assert w.registry.job_of_attempt("nobody") is None
    is_heard(SignalKind.ATTEMPT_STATE)
    assert w.scheduler.discovered == asked + 3


def test_a_flood_of_names_fills_no_memory() -> None:
    unprotected = UnprotectedNames()
    for n in range(MAX_NAMES + 500):
        unprotected.add(f"n{n}", now=START)
    assert not unprotected.knows("n499", now=START)
    assert unprotected.knows("n500", now=START)
    assert len(unprotected._until) == MAX_NAMES


def test_a_run_that_is_over_is_no_longer_looked_after(w: World) -> None:
    w.end(JOB, AttemptStatus.COMPLETED)
    (news,) = w.air
    assert w.intake.receive(news).reason == "the run is over: Completed"
    assert not w.registry.get(JOB).active
    (attempt,) = w.registry.attempts(JOB)
    assert (attempt.status, attempt.ended_at) == ("completed", news.occurred_at)


def test_a_completed_run_whose_monitor_never_finished_is_asked_about_once_its_last_word_has_had_time(w: World) -> None:
    w.tick(60)
    w.end(JOB, AttemptStatus.COMPLETED)
    w.mailbox.heartbeats[JOB] = replace(w.mailbox.heartbeats[JOB], work="training")
    news = w.air[-1]
    assert w.intake.receive(news).reason == "it has completed, and its last heartbeat is waited for"
    assert w.registry.get(JOB).active
    w.tick(200)
    w.scheduler.runs[JOB].view = replace(w.scheduler.runs[JOB].view, ended_at=news.occurred_at)
    w.intake.receive(news)
    w.run(10)
    assert (w.last.phase, w.last.outcome) == (Phase.HANDED_OVER, "ended.unproven"), w.story()


def test_the_same_fact_twice_is_one(w: World) -> None:
    signal = w.say(SignalKind.STALL, JOB, FaultClass.HANG)
    assert [w.intake.receive(signal).what for _ in range(2)] == [OutcomeKind.OPENED, OutcomeKind.DUPLICATE]


def test_a_signal_that_a_full_inbox_cannot_keep_is_said_and_wakes_nobody(
    w: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "false")
    w.deliver(w.say(SignalKind.STALL, JOB, FaultClass.HANG))
    w.work()
    flood = [replace(w.say(SignalKind.STALL, JOB, FaultClass.HANG), dedupe_key=f"fact-{n}") for n in range(130)]
    outcomes = [w.intake.receive(signal) for signal in flood]
    assert (outcomes[0].what, outcomes[-1].what) == (OutcomeKind.JOINED, OutcomeKind.OVERFLOWED)
    woken, started = len(w.executions.woken), len(w.executions.started)
    for n in range(50):
        w.intake.receive(replace(flood[0], dedupe_key=f"more-{n}"))
    assert (len(w.executions.woken), len(w.executions.started)) == (woken, started)
    Observability(service="test", level="INFO").record(outcomes[-1])
    said = capsys.readouterr().out
    assert '"level":"WARNING"' in said
    assert "the Incident's inbox is full" in said
    assert '"InboxOverflow":[1.0]' in said


def test_a_cluster_with_a_tag_gets_its_own_incident(w: World) -> None:
    w.clusters.policies["c"] = "default"
    fault = replace(w.say(SignalKind.NODE_HEALTH, None, FaultClass.NODE_HARDWARE), job_id=None, cluster="c")
    news = replace(w.say(SignalKind.CLUSTER_EVENT, None, None), job_id=None, cluster="c")
    assert w.intake.receive(news).what is OutcomeKind.DROPPED
    assert w.intake.receive(fault).what is OutcomeKind.OPENED
    w.run(30)
    assert w.last.outcome == "cluster.notified"


def test_a_stale_signal_that_meets_a_closing_incident_opens_none(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read with an open Incident that has closed by the time it knocks: judged again, not opened blindly."""
    w.deliver(w.say(SignalKind.STALL, JOB, FaultClass.HANG))
    stale = w.say(SignalKind.STALL, JOB, FaultClass.HANG)
    first = w.registry.get(JOB)
    moved = replace(first, open_incident=None, current_attempt="lm-r2")
    answers = iter([first, moved])
    monkeypatch.setattr(w.registry, "get", lambda _: next(answers))
    monkeypatch.setattr(
        w.store, "join", lambda *a, **k: Entry(outcome=JoinOutcome.CLOSED, incident_id=first.open_incident or "")
    )
    assert "stale" in w.intake.receive(stale).reason


def test_an_incident_that_keeps_changing_hands_is_left_to_the_redelivery(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(w.store, "open", lambda *a, **k: Entry(outcome=JoinOutcome.CLOSED, incident_id="x"))
    with pytest.raises(DependencyUnavailable):
        w.intake.receive(w.say(SignalKind.STALL, JOB, FaultClass.HANG))


def test_steps_on_the_way_to_training_wake_nobody(w: World) -> None:
    w.deliver(w.say(SignalKind.STALL, JOB, FaultClass.HANG))
    w.work()
    news = w.say(SignalKind.ATTEMPT_STATE, JOB, None, evidence={"status": "InProgress"})
    assert w.intake.receive(news).reason == "mere news"
    assert w.executions.woken == []
    w.intake.receive(w.say(SignalKind.CHECKPOINT_REPLY, JOB, None))
    assert len(w.executions.woken) == 1


# --- look ---


def test_what_cannot_be_read_is_unknown_and_the_look_goes_on(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    w.hang(JOB)
    w.deliver_all()

    def broken(*_: Any, **__: Any) -> Any:
        raise NotAuthorized("no")

    monkeypatch.setattr(w.mailbox, "heartbeat", broken)
    _, seen = looked(w)
    assert isinstance(seen.attempt, Known)
    assert isinstance(seen.attempt.value.last_step, Unknown)
    monkeypatch.setattr(w.scheduler, "describe", broken)
    _, seen = looked(w)
    assert isinstance(seen.attempt, Unknown)


@pytest.mark.parametrize("port", ["reply", "checkpoints"])
def test_a_mailbox_that_cannot_be_read_is_unknown(w: World, port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise DependencyUnavailable("throttled")

    monkeypatch.setattr(w.mailbox, port, broken)
    w.hang(JOB)
    w.run(45)
    assert w.last.phase is (Phase.RECOVERED if port == "reply" else Phase.RESUBMITTING), w.story()
    if port == "checkpoints":
        assert [notice.severity for notice in w.announcer.notices] == [Severity.WARNING, Severity.PAGE]  # down, unread
        w.run(360, step_s=60)
        assert (w.last.phase, w.last.outcome) == (Phase.HANDED_OVER, "resume.unseen_limit"), w.story()


@pytest.mark.parametrize("name", ["missing", "x" * 200])
def test_a_policy_that_is_missing_protects_in_shadow_mode(name: str) -> None:
    w = World()
    w.scheduler.put("other", policy_name=name)
    w.deliver(replace(w.say(SignalKind.STALL, "other", FaultClass.HANG), job_id=None))
    policy = w.look.policy_for(w.last.incident_id)
    assert policy.shadow
    assert Policy.from_wire(policy.to_wire()) == policy


def test_the_policy_is_pinned_at_the_first_look(w: World) -> None:
    w.hang(JOB)
    w.deliver_all()
    w.work()
    w.policies.stored["default"] = changed(budgets={"max_attempts": 1})
    assert w.look.policy_for(w.last.incident_id).budgets.max_attempts == DEFAULT_POLICY.budgets.max_attempts


def test_a_pinned_policy_in_a_form_of_another_version_gives_way_to_the_policy_of_now(w: World) -> None:
    w.hang(JOB)
    w.deliver_all()
    w.work()
    pinned_before = w.last.policy_document
    assert pinned_before is not None
    strange = replace(w.last, policy_document={**pinned_before, "max_no_progress": 3})
    w.policies.stored["default"] = changed(budgets={"max_attempts": 1})
    w.store.put(strange)
    assert w.look.policy_for(w.last.incident_id).budgets.max_attempts == 1


# --- perform ---


def test_actions_answer_and_a_permanent_refusal_is_an_answer(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    w.hang(JOB)
    w.deliver_all()
    ask = RequestCheckpoint(request_id="r", attempt=JOB, deadline_at=w.clock.now(), why="")

    def act(action: Any) -> Any:
        return w.perform.act(action, incident=w.last, policy=DEFAULT_POLICY, token="t").done

    assert [act(ask), act(replace(ask))] == [Done.DONE, Done.ALREADY]
    assert [act(StopJob(attempt=JOB, why="")) for _ in range(2)] == [Done.DONE, Done.ALREADY]
    assert act(Notify(severity=Severity.INFO, title="t", text="x")) is Done.DONE
    bad = QuarantineCheckpoint(root="s3://b/ckpt/step-5", why="died at load twice")
    assert [act(bad) for _ in range(2)] == [Done.DONE, Done.ALREADY]
    assert w.mailbox.marks == {bad.root: f"quarantined: died at load twice ({w.last.incident_id})"}

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotAuthorized("no")

    monkeypatch.setattr(w.scheduler, "stop", refuse)
    assert act(StopJob(attempt=JOB, why="")) is Done.REFUSED


def test_the_end_that_was_just_seen_counts_before_it_is_written_down() -> None:
    attempts = [Attempt(job_id=JOB, number=number, name=f"a{number}", submitted_at=START) for number in (1, 2)]
    ended = AttemptView(
        name="a2",
        status=AttemptStatus.FAILED,
        ended_at=START + timedelta(seconds=20),
        last_step=Known(40),
        heartbeat_at=START,
        step_s=2.0,
    )
    assert [one.last_step for one in with_end(attempts, Known(ended))][1] == Known(50)
    for unsure in (replace(ended, status=AttemptStatus.RUNNING), replace(ended, step_s=None)):
        assert with_end(attempts, Known(unsure)) == tuple(attempts)
    assert with_end(attempts, Unknown("throttled")) == tuple(attempts)


# --- a Job that dies again after each recovery ---


def test_attempts_that_only_reach_old_ground_are_counted_across_incidents() -> None:
    def ended(number: int, last: Any) -> Attempt:
        return Attempt(job_id=JOB, number=number, name=f"a{number}", submitted_at=START, last_step=last)

    ends = [Known(100), Unknown("no beat"), Known(90), Known(100), Known(101), Known(50)]
    attempts = [ended(number, last) for number, last in enumerate(ends)]
    assert reached_before(attempts, "a4") == (Known(100), 2)
    assert reached_before(attempts, "a5") == (Known(101), 0)
    assert isinstance(reached_before(attempts, "a0")[0], Unknown)


_WENT_BACK: dict[str, Any] = {"number": 2, "resume_step": Known(40), "went_back": True, "last_step": Known(70)}


@pytest.mark.parametrize(
    ("changes", "best", "fruitless"),
    [
        ({}, 70, 0),
        ({"went_back": False}, 100, 1),  # a crash costs steps: that is no choice
        ({"resume_step": Unknown("own habit")}, 100, 1),
        ({"resume_step": Known(100)}, 100, 1),  # not below the best
        ({"last_step": Known(40)}, 40, 1),
        ({"last_step": Unknown("no beat")}, 40, 0),
        ({"last_step": Known(101)}, 101, 0),
    ],
    ids=str,
)
def test_an_attempt_that_went_back_on_purpose_starts_the_count_anew(
    changes: dict[str, Any], best: int, fruitless: int
) -> None:
    first = Attempt(job_id=JOB, number=1, name="a1", submitted_at=START, last_step=Known(100))
    back = Attempt(job_id=JOB, name="a2", submitted_at=START, **(_WENT_BACK | changes))
    assert reached_before([first, back], "a3") == (Known(best), fruitless)


def test_the_attempt_under_care_that_went_back_itself_has_its_resume_step_to_heartbeat() -> None:
    first = Attempt(job_id=JOB, number=1, name="a1", submitted_at=START, last_step=Known(100))
    back = Attempt(job_id=JOB, name="a2", submitted_at=START, **_WENT_BACK)
    assert reached_before([first, back], "a2") == (Known(40), 0)


@pytest.mark.parametrize("from_step", [20, None])
def test_only_an_attempt_that_went_back_is_recorded_as_such(w: World, from_step: int | None) -> None:
    w.tick(500)
    w.orders.resubmit(JOB, who="ada", key="k", from_step=from_step, skip=[])
    w.run(10)
    assert [attempt.went_back for attempt in w.registry.attempts(JOB)] == [False, from_step is not None]


def test_a_job_that_dies_on_old_ground_again_and_again_goes_to_a_person(w: World) -> None:
    for _ in range(8):
        name = w.current
        if name is None or w.status(name) is not AttemptStatus.RUNNING:
            w.run(2)
            continue
        w.sims[name].step = 50
        w.mailbox.stored.clear()
        w._heartbeat(name, w.sims[name])
        w.fail(name, f"boom {len(w.sims)}")
        w.run(1)
    w.settle()
    assert len(w.sims) <= 6


# --- sweep ---


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (AttemptStatus.FAILED, FaultClass.UNCLEAR),
        (AttemptStatus.EXPIRED, FaultClass.PLANNED_END),
        (AttemptStatus.GONE, FaultClass.JOB_MISSING),
        (AttemptStatus.COMPLETED, None),
        (AttemptStatus.STOPPED, None),
    ],
)
def test_the_sweep_says_what_the_lost_event_would_have(w: World, status: AttemptStatus, fault: FaultClass) -> None:
    w.scheduler.put(JOB, status)
    signal = signal_from_state(w.registry.get(JOB), w.scheduler.describe(JOB), now=w.clock.now())
    assert signal is not None
    assert (signal.fault, signal.triggers) == (fault, fault is not None)


def test_one_job_that_cannot_be_read_does_not_keep_the_sweep_from_the_others(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    w.scheduler.put("a-first", policy_name="default")
    w.intake.register(w.scheduler.find("a-first"))  # type: ignore[arg-type]
    w.fail(JOB, "boom")
    real = w.scheduler.describe

    def describe(name: str) -> Any:
        if name == "a-first":
            raise NotAuthorized("no")
        return real(name)

    monkeypatch.setattr(w.scheduler, "describe", describe)
    swept = w.sweep.run()
    assert (swept.unread, swept.reopened) == (1, 1)


def test_one_execution_that_cannot_be_started_does_not_keep_the_sweep_from_the_others(
    w: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    w.hang(JOB)
    w.deliver_all()
    w.die(next(iter(w.workers.values())))
    w.clock.advance(timedelta(minutes=5))

    def broken(*_: Any, **__: Any) -> Any:
        raise NotAuthorized("no")

    monkeypatch.setattr(w.executions, "start", broken)
    assert (w.sweep.run().stuck, w.last.generation) == (1, 2)
    monkeypatch.setattr(w.store, "next_generation", broken)
    assert w.sweep.run().restarted == 0


def test_an_overdue_look_is_woken(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    w.hang(JOB)
    w.deliver_all()
    w.work()
    w.clock.advance(timedelta(hours=1))
    assert w.sweep.run().woken == 1

    def broken(*_: Any, **__: Any) -> Any:
        raise DependencyUnavailable("no")

    monkeypatch.setattr(w.store, "callback_of", broken)
    swept = w.sweep.run()
    assert (swept.stuck, swept.woken) == (1, 0)


def test_a_job_that_is_nobodys_any_more_is_passed_over(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    w.fail(JOB, "boom")

    def not_ours(_: Signal) -> Any:
        raise NotOurs("gone")

    monkeypatch.setattr(type(w.intake), "receive", lambda _self, signal: not_ours(signal))
    assert w.sweep.run().reopened == 0


# --- orders ---


def test_orders_are_checked_and_registering_is_idempotent(w: World) -> None:
    w.scheduler.put("plain")
    job = w.orders.register(training_job="plain", policy=None, mailbox="s3://b/p")
    assert (job.policy_name, job.mailbox) == ("default", "s3://b/p")
    assert w.orders.register(training_job="plain", policy=None, mailbox=None) == job
    with pytest.raises(UnknownEntity):
        w.orders.register(training_job="nobody", policy=None, mailbox=None)
    with pytest.raises(InvalidRequest):
        w.orders.resubmit(JOB, who="ada", key="k", from_step=None, skip=[(5, 5)])
    with pytest.raises(InvalidRequest):
        w.orders.resubmit(JOB, who="ada", key="k", from_step=-1, skip=[])


def test_a_run_whose_checkpoints_nobody_knows_is_not_stopped_to_be_resumed_from_a_step(w: World) -> None:
    w.scheduler.put("plain")
    job = w.orders.register(training_job="plain", policy=None, mailbox=None)
    assert (job.mailbox, job.checkpoints) == ("", "")
    with pytest.raises(InvalidRequest, match="from_step"):
        w.orders.resubmit("plain", who="ada", key="k", from_step=3, skip=[])
    assert w.orders.resubmit("plain", who="ada", key="l", from_step=None, skip=[]).incident_id


def test_an_ordered_resubmission_goes_where_it_says_and_a_later_crash_stays_there(w: World) -> None:
    w.orders.resubmit(JOB, who="ada", key="k", from_step=20, skip=[(25, 28)])
    w.run(40)
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert w.scheduler.submitted[0].resume_step == Known(20)
    w.sims["lm-r2"].step = 30  # behind where the old line had come to
    w.scheduler.runs["lm-r2"].view = dataclasses.replace(w.scheduler.runs["lm-r2"].view)
    w.fail("lm-r2", "boom")
    w.run(40)
    assert "lm-r2" in (w.scheduler.submitted[1].resume_manifest or "")


def test_a_cancelled_incident_leaves_the_run_as_it_is(w: World) -> None:
    w.hang(JOB)
    w.deliver_all()
    w.work()
    key = w.last.incident_id
    w.orders.cancel(key, who="ada", key="k")
    w.adopt()
    w.work()
    assert (w.last.phase, w.last.outcome) == (Phase.STOPPED, "order.cancel")
    assert w.live == [JOB]
    assert w.orders.cancel(key, who="ada", key="k2").reason == "the Incident is closed"


# --- a new fact about a run that was left to a person ---


def test_a_run_that_dies_after_its_incident_was_cancelled_is_recovered(w: World) -> None:
    """It was cancelled while the new attempt ran; the death that follows has the same fault, and is news."""
    w.fail(JOB, "AlgorithmError: RuntimeError: boom")
    w.run(2, step_s=20)
    assert w.last.phase is Phase.VERIFYING, w.story()
    w.orders.cancel(w.last.incident_id, who="ada", key="c")
    w.work()
    assert w.last.outcome == "order.cancel"
    w.tick(60)
    w.fail("lm-r2", "AlgorithmError: ValueError: later")
    w.run(60)
    assert len(w.incidents) == 2
    assert w.last.phase is Phase.RECOVERED, w.story()


def test_a_cancel_of_a_dead_run_stands(w: World) -> None:
    w.scheduler.refuse_with.extend([ActionResult(action="ResubmitJob", done=Done.CAPACITY)] * 8)
    w.fail(JOB, "AlgorithmError: RuntimeError: boom")
    w.run(2)
    w.orders.cancel(w.last.incident_id, who="ada", key="c")
    w.work()
    w.run(60)
    assert [incident.outcome for incident in w.incidents] == ["order.cancel"]


def test_a_run_that_goes_bad_after_it_was_handed_over_well_is_news(w: World) -> None:
    w.poison(JOB)
    w.run(3, step_s=20)
    assert w.current == "lm-r2", w.story()
    w.orders.cancel(w.last.incident_id, who="ada", key="c")
    w.work()
    w.tick(120)
    w.poison("lm-r2")
    w.run(1)
    assert len(w.incidents) == 2, w.story()


@pytest.mark.parametrize(
    ("rows", "count"),
    [
        ([(None, 1)], 0),
        ([(None, 1), ("inc", 1), ("inc", 1)], 2),
        ([(None, 1), ("inc", 31), ("inc", 31)], 1),
        ([(None, 1), ("inc", 1), ("inc", 31)], 0),
        ([(None, 1), ("inc", None), ("inc", 1)], 1),  # one that was stopped before its first step tells nothing
        ([(None, 1), ("inc", 1), ("inc", None)], 1),
        ([(None, 31), ("inc", 1), (None, None), ("inc", 1)], 0),  # what a person has submitted begins anew
    ],
)
def test_attempts_that_began_no_further_on_than_the_one_before_are_counted(
    rows: list[tuple[str | None, int | None]], count: int
) -> None:
    attempts = [
        Attempt(
            job_id="lm",
            number=number,
            name=f"lm-r{number}",
            submitted_at=START,
            incident_id=incident_id,
            first_step=Unknown("no heartbeat") if first is None else Known(first),
        )
        for number, (incident_id, first) in enumerate(rows, start=1)
    ]
    assert began_again(attempts, Unknown("throttled")) == count


@pytest.mark.parametrize(("is_seen", "count"), [(True, 2), (False, 1)], ids=["no step", "nothing of it was seen"])
def test_an_attempt_that_is_seen_to_die_before_a_step_has_begun_no_further_on(is_seen: bool, count: int) -> None:
    named = [("a1", Known(1)), ("a2", Unknown("no step seen yet")), ("a3", Known(1))]
    attempts = [
        Attempt(
            job_id=JOB, number=2, name=name, submitted_at=START, incident_id="inc", first_step=first,
            died_before_step=is_seen and name == "a2",
        )
        for name, first in named
    ]  # fmt: skip
    assert began_again(attempts, Unknown("throttled")) == count


@pytest.mark.parametrize(("first", "count"), [(Known(1), 2), (Unknown("no step seen yet"), 0)])
def test_those_that_died_before_a_step_ahead_of_all_others_began_where_the_next_one_did(
    first: Maybe[int], count: int
) -> None:
    named = [("a1", None, Unknown("no step")), ("a2", "inc", Unknown("no step")), ("a3", "inc", first)]
    attempts = [
        Attempt(
            job_id=JOB, number=2, name=name, submitted_at=START, incident_id=incident_id, first_step=its,
            died_before_step=name != "a3",
        )
        for name, incident_id, its in named
    ]  # fmt: skip
    assert began_again(attempts, Unknown("throttled")) == count
