"""A run that its owner starts or stops while Rekindle is about to: theirs counts, and there is never a second one."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from chalicelib.domain.model.action import ActionResult, Done
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.job import Attempt
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from tests.services.world import JOB, Sim, Worker, World

MAILBOX = "s3://box/lm"
BOOM = "AlgorithmError: RuntimeError: boom"
FULL = ActionResult(action="ResubmitJob", done=Done.CAPACITY, detail="no p5 is free")


@pytest.fixture
def w() -> World:
    world = World()
    world.tick(500)
    return world


def by_hand(w: World, name: str, *, job_id: str | None = None, mailbox: str = MAILBOX) -> None:
    """The owner starts the run; its script finds the newest checkpoint by itself."""
    w.scheduler.put(name, AttemptStatus.RUNNING, mailbox=mailbox, job_id=job_id)
    w.sims[name] = Sim(step=50, first=50)


@pytest.mark.parametrize(
    ("name", "job_id", "mailbox"),
    [("lm-again", JOB, "s3://other/lm"), ("lm-again", None, MAILBOX), ("lm-r7", None, "")],
    ids=["by its tag", "by its mailbox", "by its name"],
)
def test_a_run_started_by_hand_while_ours_waits_for_capacity_is_adopted_and_verified(
    w: World, name: str, job_id: str | None, mailbox: str
) -> None:
    w.scheduler.refuse_with.extend([FULL] * 4)
    w.fail(JOB, BOOM)
    w.run(2)
    assert w.last.phase is Phase.RESUBMITTING, w.story()
    by_hand(w, name, job_id=job_id, mailbox=mailbox)
    w.run(40)
    assert (w.last.phase, w.last.attempt) == (Phase.RECOVERED, name), w.story()
    assert "resubmit.sibling" in w.rules()
    assert w.scheduler.submitted == []
    assert w.scheduler.stops == []
    assert w.registry.get(JOB).current_attempt == name
    assert w.mailbox.fences[JOB][0] == name


def test_a_run_started_by_hand_between_the_look_and_the_submission_is_found_in_time(w: World) -> None:
    w.fail(JOB, BOOM)
    w.deliver_all()
    (worker,) = w.workers.values()
    w.look_and_record(worker)
    assert [type(action).__name__ for action, _, _ in worker.to_act][-1:] == ["ResubmitJob"]
    by_hand(w, "lm-again")
    w.act(worker)
    w.run(40)
    assert (w.last.phase, w.last.attempt) == (Phase.RECOVERED, "lm-again"), w.story()
    assert w.scheduler.submitted == []


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (AttemptStatus.COMPLETED, "verify.completed_unseen"),  # no step of it was seen
        (AttemptStatus.STOPPED, "verify.owner_stopped"),
        (AttemptStatus.FAILED, ""),
    ],
)
def test_a_run_by_hand_that_began_and_ended_while_nothing_could_be_read_is_weighed_before_anything_is_submitted(
    w: World, status: AttemptStatus, outcome: str
) -> None:
    w.scheduler.dark = True
    w.fail(JOB, BOOM)
    w.run(2)
    w.tick(700)
    w.scheduler.put("lm-again", AttemptStatus.RUNNING, mailbox=MAILBOX)
    w.tick(1200)
    w.sims["lm-again"] = Sim(step=200, first=50)
    w.scheduler.put("lm-again", status, failure_reason=BOOM if status is AttemptStatus.FAILED else "")
    w.scheduler.dark = False
    w.run(40)
    assert "resubmit.sibling" in w.rules(), w.story()
    assert bool(w.scheduler.submitted) is (status is AttemptStatus.FAILED)
    assert outcome in ("", w.last.outcome), w.story()


def test_a_run_that_is_protected_as_a_job_of_its_own_and_has_ended_since_is_left_to_that_job(w: World) -> None:
    w.scheduler.dark = True
    w.fail(JOB, BOOM)
    w.run(2)
    w.tick(700)
    w.scheduler.put("other", AttemptStatus.RUNNING, mailbox=MAILBOX)
    own = replace(w.registry.get(JOB), job_id="other", current_attempt="other", attempt_started_at=w.clock.now())
    w.registry.register(own, Attempt(job_id="other", number=1, name="other", submitted_at=w.clock.now()))
    w.tick(1200)
    w.scheduler.put("other", AttemptStatus.STOPPED, mailbox=MAILBOX)
    w.scheduler.dark = False
    w.run(40)
    assert (w.last.phase, w.last.outcome) == (Phase.STOPPED, "resubmit.goes_on"), w.story()
    assert "other, which is protected as the Job other" in w.story()
    assert w.scheduler.submitted == []


def test_a_run_of_another_name_and_mailbox_is_no_sibling(w: World) -> None:
    by_hand(w, "lm-eval", mailbox="s3://box/eval")
    w.scheduler.put("lm-r7", AttemptStatus.RUNNING, mailbox="s3://box/another")
    w.fail(JOB, BOOM)
    assert w.scheduler.siblings(w.registry.get(JOB), besides=()) == ()


def test_where_siblings_cannot_be_told_nothing_is_started(w: World) -> None:
    w.fail(JOB, BOOM)
    w.deliver_all()
    (worker,) = w.workers.values()
    w.look_and_record(worker)
    w.scheduler.dark = True
    w.act(worker)
    assert worker.results[-1].done is Done.UNAVAILABLE
    w.scheduler.dark = False
    w.run(40)
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert [submission.name for submission in w.scheduler.submitted] == ["lm-r2"]


def test_a_name_taken_by_a_run_that_lives_and_is_ours_is_adopted_and_never_changed(w: World) -> None:
    """The listing does not show it yet; the name does."""
    w.fail(JOB, BOOM)
    w.deliver_all()
    (worker,) = w.workers.values()
    by_hand(w, "lm-r2")
    w.scheduler.unlisted.add("lm-r2")
    w.look_and_record(worker)
    w.act(worker)
    w.run(40)
    assert (w.last.phase, w.last.attempt, w.last.resubmission.name_salt) == (Phase.RECOVERED, "lm-r2", 0), w.story()
    assert w.scheduler.submitted == []


@pytest.mark.parametrize(
    ("mailbox", "status", "is_left"),
    [
        (MAILBOX, AttemptStatus.RUNNING, True),
        (MAILBOX, AttemptStatus.COMPLETED, False),
        ("s3://box/other", AttemptStatus.RUNNING, False),
    ],
    ids=["it lives", "it has ended", "elsewhere"],
)
def test_nothing_is_started_beside_an_older_job_that_lives_in_the_same_mailbox_and_sends_no_heartbeats(
    w: World, mailbox: str, status: AttemptStatus, is_left: bool
) -> None:
    """The platform's list of what is younger than the Job does not name it."""
    w.scheduler.put("older", AttemptStatus.RUNNING, mailbox=mailbox)
    found = w.scheduler.find("older")
    assert found is not None
    w.intake.register(replace(found, created_at=w.clock.now() - timedelta(hours=1)))
    w.scheduler.put("older", status, mailbox=mailbox)
    w.scheduler.unlisted.add("older")
    w.fail(JOB, BOOM)
    w.run(5)
    assert (w.scheduler.submitted == []) is is_left, w.story()
    assert ("resubmit.refused" in w.rules()) is is_left


@pytest.mark.parametrize(("mailbox", "is_adopted"), [(MAILBOX, True), ("s3://box/other", False)])
def test_a_run_of_ours_that_only_its_heartbeats_show_is_adopted_once_the_platform_is_asked_for_its_name(
    w: World, mailbox: str, is_adopted: bool
) -> None:
    """Its mailbox by what it was submitted with; one that says another has its heartbeats in ours all the same."""
    w.fail(JOB, BOOM)
    w.deliver_all()
    (worker,) = w.workers.values()
    w.look_and_record(worker)
    by_hand(w, "lm-again", mailbox=mailbox)
    w.scheduler.unlisted.add("lm-again")
    beats = AttemptView(name="lm-again", status=AttemptStatus.RUNNING, heartbeat_at=w.clock.now())
    w.mailbox.heartbeats["lm-again"] = beats
    w.act(worker)
    assert worker.results[-1].done is Done.SIBLING, w.story()
    assert worker.results[-1].attempt == ("lm-again" if is_adopted else "")
    assert w.scheduler.submitted == []


def test_an_adopted_run_that_its_owner_stops_is_left_alone(w: World) -> None:
    w.scheduler.refuse_with.extend([FULL] * 4)
    w.fail(JOB, BOOM)
    w.run(2)
    by_hand(w, "lm-again", job_id=JOB)
    for _ in range(4):
        w.run(1)
        if w.last.phase is Phase.VERIFYING:
            break
    assert w.last.phase is Phase.VERIFYING, w.story()
    w.end("lm-again", AttemptStatus.STOPPED)
    w.run(5)
    assert w.last.outcome == "verify.owner_stopped", w.story()
    assert w.scheduler.submitted == []


def test_an_adopted_run_that_dies_is_recovered_like_one_of_ours(w: World) -> None:
    w.scheduler.refuse_with.extend([FULL] * 4)
    w.fail(JOB, BOOM)
    w.run(2)
    by_hand(w, "lm-again", job_id=JOB)
    w.deliver_all()
    w.tick(60)
    w.work()
    w.clock.advance(timedelta(minutes=10))
    w.work()
    w.scheduler.refuse_with.clear()
    w.fail("lm-again", "AlgorithmError: ValueError: another end")
    w.run(60)
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert [submission.clone_of for submission in w.scheduler.submitted] == ["lm-again"]


def decided_to_stop(w: World) -> Worker:
    """The run hangs, and its stop is decided and recorded, but not carried out yet."""
    w.hang(JOB)
    w.deliver_all()
    w.work()
    for _ in range(20):
        (worker,) = w.workers.values()
        w.tick(5)
        worker.due_at = w.clock.now()
        w.look_and_record(worker)
        if w.last.phase is Phase.STOPPING:
            return worker
        w.act(worker)
    raise AssertionError(w.story())


@pytest.mark.parametrize("earlier_s", [1, 20])
def test_an_owners_stop_seconds_before_ours_wins(w: World, earlier_s: int) -> None:
    worker = decided_to_stop(w)
    w.scheduler.stop(JOB)
    view = w.scheduler.runs[JOB].view
    w.scheduler.runs[JOB].view = replace(view, stopping_since=w.clock.now() - timedelta(seconds=earlier_s))
    w.act(worker)
    w.run(10)
    assert (w.last.phase, w.last.outcome) == (Phase.STOPPED, "stop.owner_stopped"), w.story()
    assert w.scheduler.submitted == []


def test_a_stop_of_ours_whose_answer_was_lost_stays_ours(w: World) -> None:
    worker = decided_to_stop(w)
    w.clock.advance(timedelta(seconds=1))
    w.scheduler.stop(JOB)  # our own call, whose answer never came
    view = w.scheduler.runs[JOB].view
    w.scheduler.runs[JOB].view = replace(view, stopping_since=w.clock.now())
    w.act(worker)
    w.run(40)
    assert w.last.phase is Phase.RECOVERED, w.story()
    assert isinstance(w.last.target_step, Known)
    assert [submission.name for submission in w.scheduler.submitted] == ["lm-r2"]


def test_a_stop_that_is_ordered_while_ours_cannot_be_sent_ends_it(w: World) -> None:
    """Whether it was started is asked of the platform; it is not sent once more."""
    w.fail(JOB, BOOM)
    w.deliver_all()
    (worker,) = w.workers.values()
    w.look_and_record(worker)
    w.scheduler.dark = True
    w.act(worker)
    w.orders.stop(JOB, who="ada", key="s", checkpoint=False)
    w.run(2)
    w.scheduler.dark = False
    w.run(10)
    assert (w.last.phase, w.last.outcome) == (Phase.STOPPED, "order.stop"), w.story()
    assert w.scheduler.submitted == []


def test_a_run_by_hand_that_asks_for_no_protection_is_seen_by_its_heartbeats(w: World) -> None:
    w.scheduler.refuse_with.extend([FULL] * 4)
    w.fail(JOB, BOOM)
    w.run(2)
    w.mailbox.heartbeats["slurm.ml.9"] = AttemptView(
        name="slurm.ml.9", status=AttemptStatus.RUNNING, heartbeat_at=w.clock.now()
    )
    w.run(1)
    while w.last.is_open:
        w.mailbox.heartbeats["slurm.ml.9"] = replace(w.mailbox.heartbeats["slurm.ml.9"], heartbeat_at=w.clock.now())
        w.run(1)
    assert (w.last.phase, w.last.outcome) == (Phase.STOPPED, "resubmit.goes_on"), w.story()
    assert w.scheduler.submitted == []


def test_heartbeats_of_long_ago_keep_nothing_from_being_started(w: World) -> None:
    gone = AttemptView(
        name="slurm.ml.9", status=AttemptStatus.RUNNING, heartbeat_at=w.clock.now() - timedelta(minutes=2)
    )
    w.mailbox.heartbeats["slurm.ml.9"] = gone
    w.fail(JOB, BOOM)
    w.run(40)
    assert w.last.phase is Phase.RECOVERED, w.story()
