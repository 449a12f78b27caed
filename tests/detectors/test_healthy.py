"""Healthy runs of every kind, a small seeded sample of each: the detectors leave them alone."""

from __future__ import annotations

import pytest

from benchmarks.healthy import measure
from benchmarks.healthy_kinds import KINDS

# Acts on one run of 20,000 steps of each kind that are made all the same; docs/detection.md has the rates over 400,000.
KNOWN = {"sorted classes": 1, "planned changes": 1, "tasks in turn": 2, "coarse log of means": 1}
STEPS = 20_000


@pytest.mark.parametrize("name", list(KINDS))
def test_a_healthy_run_is_left_alone(name: str) -> None:
    assert measure(name, (STEPS,), seed=1).acts == KNOWN.get(name, 0)


@pytest.mark.parametrize("name", ["warm restarts", "planned changes", "curriculum", "temporal difference"])
def test_what_a_script_tells_of_a_healthy_run_leaves_no_acts(name: str) -> None:
    assert measure(name, (STEPS,) * 3, seed=1, is_reported=True).acts == 0
