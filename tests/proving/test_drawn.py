"""What the stories are made of: each kind is drawn by some seed, and does what it is there for."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chalicelib.domain.model.action import Severity
from simulation.making.maker import make
from simulation.making.wild import make_wild
from simulation.play import play, played
from simulation.stories import kinds
from simulation.stories.story import PersonAction, Run, SourceFault, Story, Trouble
from tests.proving import broken
from tests.proving.test_judge import CRASH, story

SEEDS, WILD_SEEDS = 4000, 200


@pytest.fixture(scope="module")
def drawn() -> list[Story]:
    return [make(seed) for seed in range(SEEDS)] + [make_wild(seed) for seed in range(WILD_SEEDS)]


def test_every_kind_of_source_fault_is_drawn(drawn: list[Story]) -> None:
    assert {source_fault.kind for draw in drawn for source_fault in draw.source_faults} == set(kinds.SOURCE_FAULTS)


def test_every_kind_of_trouble_is_drawn(drawn: list[Story]) -> None:
    troubles = {trouble.kind for draw in drawn for run in draw.runs for trouble in run.troubles}
    assert troubles == set(kinds.TROUBLES)


def test_everything_that_a_person_may_do_is_drawn(drawn: list[Story]) -> None:
    actions = [action for draw in drawn for action in draw.actions]
    assert {action.what for action in actions} == set(kinds.ACTIONS)
    assert {action.tagged for action in actions} == set(kinds.TAGS)


@pytest.mark.parametrize("kind", ["dev_beside", "prod_beside"])
def test_a_stage_leaves_another_one_s_runs_alone(kind: str) -> None:
    crash = story(CRASH, source_faults=(SourceFault(kind=kind),))
    verdict = play(crash)
    assert (verdict.unsafe, verdict.figures.incidents, verdict.figures.submissions) == ((), 1, 1)
    both = play(crash, broken=broken.the_other_stage_takes_every_run_for_its_own)
    assert both.figures.incidents == 2


def test_a_run_that_a_person_gives_to_the_other_stage_in_mid_recovery_is_submitted_by_neither() -> None:
    """Its mailbox and Job are ours and its tag is the other's: a person is called, and nobody starts a second one."""
    given = PersonAction(what="resubmit", when="dead", delay_s=3.0, tagged="other_stage")
    source_faults = (
        SourceFault(kind="dev_beside"),
        SourceFault(kind="no_quota", from_s=300.0, to_s=900.0),
    )  # ours waits until it is over
    world, judge = played(story(CRASH, Trouble(kind="crash", step=110), source_faults=source_faults, actions=(given,)))
    assert judge.unsafe == []
    assert world.beside is not None
    assert len(world.beside.executions.all) == 1
    assert [attempt.is_ours for attempt in world.training.attempts.values()] == [False, False]
    assert [notice.title for notice in world.people.notices if notice.severity is Severity.PAGE]


def test_metrics_that_are_late_come() -> None:
    source_fault = SourceFault(kind="metrics_late", by_s=600.0, to_s=1900.0)
    world, _ = played(Story(seed=1, runs=(Run(watch="metrics"),), source_faults=(source_fault,), length_s=1800.0))
    points = world.points.metric("step", world.runs["lm"], world.began_at, world.clock.now())
    age = world.clock.now() - points[-1][0]
    assert timedelta(minutes=11) <= age <= timedelta(minutes=13)


def test_a_deleted_checkpoint_is_not_resumed_from() -> None:
    deleted = Trouble(kind="saves_deleted", step=70, heals=1)
    world, judge = played(story(deleted, Trouble(kind="crash", step=80)))
    assert judge.unsafe == []
    assert [attempt.plan.step for attempt in world.training.attempts.values() if attempt.is_ours] == [30]
