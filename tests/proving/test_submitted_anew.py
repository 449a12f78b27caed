"""A run that a person submits anew, as its launch script does it: the same mailbox, and what is known of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.known import Unknown
from chalicelib.services.observe.run_checkpoints import RunCheckpoints
from simulation.play import played
from simulation.stages.world import World
from simulation.stories.story import PersonAction, Run, Story, Trouble

ANEW = PersonAction(what="resubmit", when="dead", delay_s=3.0)
CRASHES = (Trouble(kind="crash", step=65), Trouble(kind="crash", step=70))
ON_SLURM = Run(platform="slurm", requeue=False, step_s=6.0, troubles=CRASHES)


LEFT = "a_run_begun_anew_by_its_owner_is_not_taken_back_to_the_line_it_left"


def test_a_slurm_job_submitted_anew_goes_on_from_what_the_one_before_it_has_saved() -> None:
    world, judge = played(Story(seed=5, runs=(ON_SLURM,), actions=(ANEW,), length_s=3600.0))
    names = list(world.training.attempts)
    assert [name.rpartition(".")[2] for name in names] == ["1", "2", "2-a2"]
    first, second, ours = world.training.attempts.values()
    assert (second.is_by_hand, second.first_step) == (True, 61)
    assert ours.is_ours
    assert ours.loaded is not None
    assert (ours.loaded.step, ours.loaded.attempt) == (60, first.name)
    assert not judge.unsafe
    assert not [notice for notice in world.people.notices if notice.severity is Severity.PAGE]


def test_one_that_began_from_nothing_does_not_go_back_to_the_line_that_its_owner_left() -> None:
    path = Path(__file__).parent / "stories" / f"{LEFT}.json"
    world, judge = played(Story.from_json(path.read_text()))
    first, *_ = world.training.attempts.values()
    newest = max(save.step for save in world.runs["lm"].saved if save.attempt == first.name)
    ours = [attempt for attempt in world.training.attempts.values() if attempt.is_ours]
    assert [restart.plan.step for restart in ours] == [30, 30]  # its own newest
    assert newest == 45
    assert not judge.unsafe


@pytest.mark.parametrize("step", [2, 40], ids=["before its first step", "later"])
def test_a_training_job_whose_environment_names_its_job_is_an_attempt_of_that_job(step: int) -> None:
    """Its launch script gives each submission a name of its own, and its monitor the same REKINDLE_JOB_ID."""
    run = Run(troubles=(Trouble(kind="crash", step=43, hits=2), Trouble(kind="crash", step=step + 43)))
    late = replace(ANEW, when="stopping", delay_s=400.0)
    stop = PersonAction(what="order_stop", when="incident", delay_s=19.8)
    world, judge = played(Story(seed=974, runs=(run,), actions=(late, stop), length_s=5580.0))
    assert {incident.job_id for incident, _ in _all_incidents(world)} == {"lm"}
    assert not judge.unsafe
    ours = [attempt for attempt in world.training.attempts.values() if attempt.is_ours]
    assert ours
    assert all(restart.plan.step is None or restart.plan.step >= 30 for restart in ours)


def _all_incidents(world: World) -> list[Any]:
    closed = [(incident, None) for incident in world.store.list_closed(limit=100).incidents]
    return [*closed, *world.store.list_open()]


def test_what_another_user_has_saved_in_its_mailbox_is_none_of_its_own() -> None:
    world, _ = played(Story(seed=5, runs=(ON_SLURM,), actions=(ANEW,), length_s=520.0))
    assert world.cluster is not None
    job = world.registry.get("slurm.ml.2")
    reader = RunCheckpoints(
        registry=world.registry, scheduler=world.scheduler, mailbox=world.mailbox, store=world.store
    )

    def read() -> list[int]:
        attempts = world.registry.attempts(job.job_id)
        found = reader.read(job, attempts, seen=lambda: Unknown("not asked"))
        return [checkpoint.step for checkpoint in found if not checkpoint.fenced]

    assert read() == [60, 30]
    world.cluster.model.jobs[1].user = "eve"
    world.cluster.head.agent.publish()
    assert read() == []
