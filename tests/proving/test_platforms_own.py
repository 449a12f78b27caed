"""What platforms and others do without a request: Spot, notices, --auto-resume, time limits, foreign checkpoints; and
questions to people. Each part does what its story says, and a service that fails there is caught.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from localcloud.aws.sagemaker import Phase
from simulation.play import play, played
from simulation.stages.world import World
from simulation.stories.story import PersonAction, Run, SourceFault, Story, Trouble
from tests.proving import broken
from tests.proving.test_judge import CRASH, HANG, story

ASKED = {"approvals": {"rules": [{"when": {"actions": ["ResubmitJob"]}, "deadline_s": 600, "default": "deny"}]}}
ON_SLURM = {"platform": "slurm", "instances": 2}


CRASHED_ON_SLURM = Run(troubles=(Trouble(kind="crash", step=42), Trouble(kind="crash", step=100)), **ON_SLURM)
RETRY = Story(
    seed=11, runs=(CRASHED_ON_SLURM,), nodes=8, actions=(PersonAction(what="retry", when="dead", delay_s=300.0),)
)


def asked(*actions: PersonAction) -> Story:
    return Story(seed=1, runs=(Run(troubles=(CRASH,)),), actions=actions, length_s=3600.0, policy=ASKED)


SPOT = story(Trouble(kind="interrupted", step=70, after_s=400.0))
LONG_WAIT = story(Trouble(kind="interrupted", step=70, after_s=3000.0))
NO_SPOT = story(Trouble(kind="interrupted", step=70))
FAR = story(Trouble(kind="node_leaves", step=70, after_s=50_000.0), **ON_SLURM)
NEAR = story(Trouble(kind="node_leaves", step=70, after_s=120.0), **ON_SLURM)
BY_ITSELF = story(Trouble(kind="node_sick", step=70), auto_resume=True, **ON_SLURM)
SEALED_BESIDE = story(Trouble(kind="foreign_save", step=20), CRASH)
A_FILE_BESIDE = story(Trouble(kind="foreign_file", step=40), Trouble(kind="crash", step=45))
OLD_FILE = story(Trouble(kind="foreign_file", step=0), CRASH)
DENIED = asked(PersonAction(what="deny", when="asked", delay_s=5.0))


def test_spot_takes_a_training_job_that_then_starts_again_from_what_it_saved() -> None:
    world, judge = played(SPOT)
    (attempt,) = world.training.attempts.values()
    assert [transition["Status"] for transition in attempt.job.transitions][3:] == [
        "Interrupted",
        "Starting",
        "Training",
    ]
    assert attempt.first_step == 61
    assert (judge.unsafe, judge.figures.pages) == ([], 0)


def test_a_job_without_spot_capacity_ends_and_is_submitted_again() -> None:
    world, judge = played(NO_SPOT)
    first, second = world.training.attempts.values()
    assert first.job.phase is Phase.MAX_WAIT_TIME_EXCEEDED
    assert (second.is_ours, second.first_step) == (True, 61)
    assert not judge.unsafe


def test_a_step_that_auto_resume_runs_again_is_left_to_it() -> None:
    world, judge = played(BY_ITSELF)
    (attempt,) = world.training.attempts.values()
    assert attempt.first_step == 61
    assert attempt.step_at(world.clock.now()) > 100
    assert not judge.unsafe


def test_ours_saves_and_makes_way_for_the_retry_that_its_owner_submits_on_a_cluster() -> None:
    world, judge = played(RETRY)
    ours, theirs = world.training.attempts["slurm.ml.1.r1"], world.training.attempts["slurm.ml.2"]
    assert (ours.is_ours, theirs.is_ours) == (True, False)
    ended, began = ours.job.ended_at, theirs.trains_since
    assert ended is not None
    assert began is not None
    assert ended - began < timedelta(minutes=2)
    (notice,) = [item for item in world.people.notices if item.title.endswith("two attempts live")]
    assert "slurm.ml.1.r1" in notice.text
    assert "slurm.ml.2" in notice.text
    assert not judge.unsafe


def test_ours_does_not_make_way_for_a_retry_that_waits_for_its_nodes() -> None:
    world, judge = played(replace(RETRY, nodes=2))
    ours, theirs = world.training.attempts["slurm.ml.1.r1"], world.training.attempts["slurm.ml.2"]
    assert ours.step_at(world.clock.now()) == 99  # to its own end
    assert theirs.first_step is not None
    assert not judge.unsafe


def test_a_link_of_a_chain_and_a_retry_beside_it_are_no_second_attempts_of_ours() -> None:
    world, judge = played(replace(RETRY, runs=(replace(CRASHED_ON_SLURM, chain="afterany"),)))
    assert not any(attempt.is_ours for attempt in world.training.attempts.values())
    assert not any(item.title.endswith("two attempts live") for item in world.people.notices)
    assert not judge.unsafe


def test_a_node_that_is_announced_to_leave_leaves() -> None:
    world, judge = played(NEAR)
    first, *_, last = world.training.attempts.values()
    assert 70 <= first.step_at(world.clock.now()) <= 82  # two minutes after step 70
    assert last.step_at(world.clock.now()) > 82
    assert not judge.unsafe


def test_a_notice_of_which_nothing_comes_breaks_nothing() -> None:
    world, judge = played(
        story(source_faults=(SourceFault(kind="notice_false", from_s=300.0, by_s=120.0),), steps=150, **ON_SLURM)
    )
    assert world.runs["lm"].is_finished
    assert not judge.unsafe


@pytest.mark.parametrize("beside", [SEALED_BESIDE, A_FILE_BESIDE, OLD_FILE], ids=["sealed", "a file", "an old file"])
def test_another_experiment_s_checkpoint_lies_there_and_is_not_resumed_from(beside: Story) -> None:
    world, judge = played(beside)
    ahead = [key for key in world.objects.keys("jobs/lm/") if "another" in key or "step-50.pt" in key or "90.pt" in key]
    assert ahead
    assert [attempt.plan.step for attempt in world.training.attempts.values() if attempt.is_ours] == [30]
    assert not judge.unsafe


def test_a_time_limit_beside_our_own_stop_is_one_end() -> None:
    for platform in ("sagemaker", "slurm"):
        over = PersonAction(what="time_limit", when="stopping", delay_s=1.0)
        world, judge = played(story(HANG, actions=(over,), platform=platform))
        assert len(world.training.attempts) == 2
        assert not judge.unsafe


def test_a_run_that_was_left_to_a_person_and_then_crashes_in_silence_is_told_once_more() -> None:
    crash = Trouble(kind="silent", step=37, hits=2)
    _world, judge = played(story(crash, plan="nothing", steps=84, **ON_SLURM))
    assert (judge.unsafe, judge.figures.pages) == ([], 2)


@pytest.mark.parametrize("chain", ["afterany", "afternotok", "singleton", "within"])
@pytest.mark.parametrize("requeue", [True, False], ids=["may be requeued", "may not"])
def test_the_next_link_of_a_chain_is_the_recovery(chain: str, requeue: bool) -> None:
    world, judge = played(story(CRASH, chain=chain, requeue=requeue, **ON_SLURM))
    first, link = world.training.attempts.values()
    assert (first.is_live, link.is_link, link.is_ours, link.first_step) == (False, True, False, 31)
    assert (judge.unsafe, judge.figures.pages, judge.figures.submissions) == ([], 0, 0)
    assert [incident.outcome for incident in world.store.list_closed(limit=9).incidents] == ["resubmit.goes_on"]


@pytest.mark.parametrize("requeue", [True, False], ids=["may be requeued", "may not"])
def test_what_waits_for_a_runs_success_begins_when_our_start_has_completed(requeue: bool) -> None:
    world, judge = played(story(CRASH, chain="afterok", requeue=requeue, steps=100, **ON_SLURM))
    _first, ours, link = world.training.attempts.values()
    assert (ours.is_ours, ours.is_done, link.is_link) == (True, True, True)
    assert link.job.created_at < ours.job.ended_at < link.trains_since  # type: ignore[operator]
    assert (judge.unsafe, judge.figures.pages) == ([], 0)


@pytest.mark.parametrize(("requeue", "starts", "pages"), [(True, 2, 0), (False, 1, 1)])
def test_a_task_of_an_array_is_requeued_and_never_submitted_anew(requeue: bool, starts: int, pages: int) -> None:
    world, judge = played(story(CRASH, in_array=True, requeue=requeue, **ON_SLURM))
    assert len(world.cluster.model.jobs) == 1  # type: ignore[union-attr]
    assert len(world.training.attempts) == starts
    assert (judge.unsafe, judge.figures.pages) == ([], pages)


def test_attempts_of_one_name_and_user_are_each_their_own() -> None:
    runs = tuple(Run(name=f"lm{number}", troubles=(CRASH,) if number == 0 else (), **ON_SLURM) for number in range(3))
    world, judge = played(Story(seed=1, runs=runs, nodes=8, length_s=3600.0))
    assert [len(run.attempts) for run in world.runs.values()] == [2, 1, 1]
    assert len({doc.name for doc in world.cluster.model.docs().values()}) == 1  # type: ignore[union-attr]
    assert not judge.unsafe


@pytest.mark.parametrize(
    ("actions", "submitted"),
    [
        ((PersonAction(what="approve", when="asked", delay_s=5.0),), 1),
        (
            (
                PersonAction(what="approve", when="asked", delay_s=5.0),
                PersonAction(what="approve", when="asked", delay_s=9.0),
            ),
            1,
        ),
        ((PersonAction(what="approve", when="asked", delay_s=700.0),), 0),
        (
            (
                PersonAction(what="deny", when="asked", delay_s=5.0),
                PersonAction(what="approve", when="asked", delay_s=9.0),
            ),
            0,
        ),
        (
            (
                PersonAction(what="cancel", when="asked", delay_s=5.0),
                PersonAction(what="approve", when="asked", delay_s=9.0),
            ),
            0,
        ),
    ],
    ids=["in time", "twice", "too late", "after a denial", "after a cancel"],
)
def test_an_answer_counts_once_and_in_time(actions: tuple[PersonAction, ...], submitted: int) -> None:
    world, judge = played(asked(*actions))
    assert sum(attempt.is_ours for attempt in world.training.attempts.values()) == submitted
    assert not judge.unsafe


@dataclass(frozen=True)
class Case:
    kind: str
    says: str
    breaks: Callable[[World], None]
    story: Story


CASES = (
    Case("healthy_stopped", "by its own platform", broken.an_interruption_is_read_as_a_stall, LONG_WAIT),
    Case("healthy_stopped", "by its own platform", broken.auto_resume_is_not_read, BY_ITSELF),
    Case("healthy_stopped", "since the notice", broken.a_run_is_stopped_for_a_notice, FAR),
    Case("resumed_from_bad", "none of the run's", broken.every_manifest_is_taken_for_the_run_s, SEALED_BESIDE),
    Case("resumed_from_bad", "none of the run's", broken.checkpoints_are_not_verified, A_FILE_BESIDE),
    Case("owner_undone", "had not allowed", broken.a_denial_is_read_as_an_approval, DENIED),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} {case.breaks.__name__}")
def test_a_service_that_fails_there_is_caught(case: Case) -> None:
    verdict = play(case.story, broken=case.breaks)
    assert any(breach.kind == case.kind and case.says in breach.detail for breach in verdict.unsafe), verdict


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} {case.breaks.__name__}")
def test_the_service_as_it_is_does_not_fail_there(case: Case) -> None:
    assert play(case.story).unsafe == ()
