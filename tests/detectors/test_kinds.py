"""Kinds of loss that say little are recognised by their rows or declared, and then only watched."""

from __future__ import annotations

import math
import random

import pytest

from rekindle.detectors.health import Health
from rekindle.detectors.kinds import IS_JUDGED, LossKind
from rekindle.detectors.points import Severity, Trouble
from rekindle.detectors.watch import LossWatch
from tests.detectors.curves import acts, falling, lifted, rows_of, spiked, verdicts

SEEDS = range(5)


def _noise(seed: int, *, level: float = 0.0, size: float = 1.0, rows: int = 2000) -> list[float]:
    chance = random.Random(seed)
    return [level + chance.gauss(0, size) for _ in range(rows)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", [0.0, -100.0], ids=["around zero", "far below zero"])
def test_a_reward_that_collapses_is_watched(seed: int, level: float) -> None:
    losses = [loss + (80.0 if i >= 1000 else 0.0) for i, loss in enumerate(_noise(seed, level=level, size=2.0))]
    watch = LossWatch()
    found = verdicts(rows_of(losses), watch)
    assert {verdict.severity for _, verdict in found} == {Severity.WATCH}
    assert any("only_watched" in verdict.evidence for _, verdict in found)
    assert (watch.health in (Health.WATCH, Health.OK), watch.onset_step) == (True, None)
    assert acts(rows_of(losses), LossWatch(LossKind.SUPERVISED)) != []


@pytest.mark.parametrize("kind", [kind for kind in LossKind if not IS_JUDGED[kind]])
def test_a_declared_kind_that_says_little_is_watched_but_for_values_that_are_not_finite(kind: LossKind) -> None:
    losses = [*spiked(falling(600), 300, 5.0, 20.0), math.nan]
    watch = LossWatch(kind)
    found = verdicts(rows_of(losses), watch)
    assert [(row, v.kind) for row, v in found if v.severity is Severity.ACT] == [(600, Trouble.NON_FINITE)]
    [(_, muted)] = [(row, v) for row, v in found if "only_watched" in v.evidence]
    assert muted.evidence["only_watched"] == f"declared: {kind}"
    assert watch.onset_step == 600


@pytest.mark.parametrize("kind", [LossKind.AUTO, LossKind.SUPERVISED])
def test_a_supervised_loss_is_judged(kind: LossKind) -> None:
    assert [row for row, _ in acts(rows_of(spiked(falling(600), 300, 5.0, 20.0)), LossWatch(kind))] == [301]


def test_every_kind_is_either_judged_or_watched() -> None:
    assert set(IS_JUDGED) == set(LossKind)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_noisy_loss_that_has_fallen_far_is_still_judged(seed: int) -> None:
    chance = random.Random(seed)
    losses = [loss * math.exp(chance.gauss(0, 0.3)) for loss in falling(2000, first=20.0, last=0.5)]
    assert acts(rows_of(losses)) == []
    assert acts(rows_of(lifted(losses, 1500, lambda i: 40.0))) != []


@pytest.mark.parametrize("begin", [1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("noise", [0.03, 0.3, 0.8])
def test_a_loss_that_has_never_fallen_is_only_watched(begin: float, noise: float) -> None:
    chance = random.Random(1)
    level = [begin * 500 ** (1 / (1 + math.exp(-(row - 80) / 20))) for row in range(400)]
    losses = [
        value * math.exp(chance.gauss(0, noise)) * (60 if row in (150, 300) else 1) for row, value in enumerate(level)
    ]
    assert acts(rows_of(losses)) == []
    said = verdicts(rows_of(losses))
    assert {verdict.evidence.get("only_watched", "has never fallen") for _, verdict in said} <= {"has never fallen"}
    if noise < 0.1:  # declared, its rise is judged
        assert acts(rows_of(losses), LossWatch(LossKind.SUPERVISED))


def test_a_record_that_begins_late_is_of_a_run_that_may_have_fallen() -> None:
    flat = [2.0 + 0.02 * (row % 3) for row in range(200)]
    spike = spiked(flat, 150, 4.0, 5.0)
    assert acts(rows_of(spike)) == []
    assert [kind for _, kind in acts(rows_of(spike, first_step=20_000))] == ["loss_spike"]


def test_a_loss_whose_noise_has_grown_as_far_as_it_fell_is_only_watched() -> None:
    chance = random.Random(3)  # pairs of answers: all ln 2 at first, then easy and hard ones
    margins = [chance.gauss(1, 2) * min(max(row - 60, 0) / 100, 1) for row in range(300)]
    assert acts(rows_of(math.log1p(math.exp(-margin)) for margin in margins)) == []
