"""Killed around every single durable operation and resumed: the outcome is the same, and nothing is done twice.

Every position of every playbook takes the better part of an hour of one core, so `make test` takes a sample of the
positions (evenly spread, both sides) and `make test-crash` takes all of them.
"""

from __future__ import annotations

import os
from functools import cache

import pytest

from localcloud.worlds.scenarios import SCENARIOS, Summary, play

pytestmark = pytest.mark.long

SAMPLED_SHARES = 2
ALL_SHARES = 8
IS_WHOLE = os.environ.get("REKINDLE_CRASH") == "all"
SHARES = ALL_SHARES if IS_WHOLE else SAMPLED_SHARES
# The sample leaves out what the spike's roll-back passes through as well, and more of it.
KILLED = [name for name in SCENARIOS if IS_WHOLE or name != "nan"]


@cache
def baseline(name: str) -> tuple[Summary, int]:
    return play(name)


def positions(checkpoints: int, share: int, side: str) -> list[int]:
    """The checkpoints to be killed at: a share of all of them, or one from each half for the sample."""
    if IS_WHOLE:
        return list(range(1 + share, checkpoints + 1, SHARES))
    half = checkpoints / SHARES
    within = 0.3 if side == "before" else 0.7
    return [min(checkpoints, 1 + int(half * (share + within)))]


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("name", KILLED)
def test_a_kill_at_a_durable_operation_changes_nothing(name: str, side: str, share: int) -> None:
    expected, checkpoints = baseline(name)
    for kill in positions(checkpoints, share, side):
        seen, _ = play(name, kill=kill, side=side)
        assert seen == expected, f"killed {side} checkpoint {kill} of {checkpoints}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_undisturbed_outcome_is_the_one_we_mean(name: str) -> None:
    summary, _ = baseline(name)
    expected = ("handed_over", "budget.no_progress") if name == "no_progress" else ("recovered", "verify.passed")
    assert (summary.phase, summary.outcome) == expected
