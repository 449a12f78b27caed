"""Saves whose other parts rank 0 waits for, more of them than it counts."""

from __future__ import annotations

import pytest

from rekindle.monitor.base.run import Identity, Run
from rekindle.monitor.saving.agreement import Agreement
from rekindle.monitor.saving.agreement_terms import Bounds, RankRequest
from rekindle.monitor.saving.leading import MAX_AWAITED, Hooks, Leader

TOO_MANY = "too many saves wait for the other ranks' parts"


@pytest.fixture
def leader() -> Leader:
    run = Run(identity=Identity(job_id="job", attempt="run-1", attempt_number=1, rank=0, world_size=2))
    agreement = Agreement(run, wish=lambda: RankRequest.NOTHING, take=lambda _: None, bounds=Bounds())
    hooks = Hooks(
        objection=lambda: "",
        refused=lambda _: None,
        completed=lambda plan, why, told: None,
        resumed_apart=lambda _: None,
    )
    return Leader(run, agreement=agreement, hooks=hooks, step_s=lambda: None)


def test_a_save_that_was_asked_for_outlasts_those_that_the_script_makes_by_itself(leader: Leader) -> None:
    given_up: list[tuple[str, str | None]] = []
    leader.await_parts("asked", lambda failure, _: given_up.append(("asked", failure)), is_planned=True)
    for number in range(MAX_AWAITED + 2):
        leader.await_parts(f"own-{number}", lambda failure, _, key=number: given_up.append((f"own-{key}", failure)))
    assert given_up == [("own-0", TOO_MANY), ("own-1", TOO_MANY), ("own-2", TOO_MANY)]


def test_of_those_that_were_asked_for_the_oldest_goes(leader: Leader) -> None:
    given_up: list[int] = []
    for number in range(MAX_AWAITED + 1):
        leader.await_parts(str(number), lambda _, __, key=number: given_up.append(key), is_planned=True)
    assert given_up == [0]
