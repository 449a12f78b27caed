"""Changes that are meant: announced, or read from the learning rate; and what is trouble all the same."""

from __future__ import annotations

import math
import random

import pytest

from rekindle.detectors.health import Health
from rekindle.detectors.points import Point, Severity, Trouble
from rekindle.detectors.watch import MOST_STEPS, PLANNED_STEPS, LearningRates, LossWatch
from tests.detectors.curves import falling, lifted, rows_of, spiked

SEEDS = range(5)
CHANGE = 1000


def _acts(losses: list[float], *, steps: int | None = None, every: int = 1) -> tuple[list[tuple[int, str]], LossWatch]:
    """The acts on a run that announced a change at row `CHANGE`."""
    watch, found = LossWatch(), []
    for row, point in enumerate(rows_of(losses, every=every)):
        if row == CHANGE:
            watch.expect(point.step, steps)
        found += [(row, v.kind.value) for v in watch.update(point) if v.severity is Severity.ACT]
    return found, watch


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("height", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("every", [1, 10])
def test_a_new_level_after_an_announcement_is_not_acted_on(seed: int, height: float, every: int) -> None:
    losses = lifted(falling(3000, seed=seed), CHANGE, lambda i: height)
    assert verdict_rows(losses, every) != [] or height < 0.3
    found, watch = _acts(losses, every=every)
    assert found == []
    assert watch.health is Health.OK


def verdict_rows(losses: list[float], every: int) -> list[int]:
    """The acts where nothing was announced."""
    watch = LossWatch()
    return [
        row
        for row, point in enumerate(rows_of(losses, every=every))
        if any(v.severity is Severity.ACT for v in watch.update(point))
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spike_after_the_window_is_judged_by_the_new_level(seed: int) -> None:
    losses = spiked(lifted(falling(3000, seed=seed), CHANGE, lambda i: 1.0), 2000, 1.0, 10.0)
    found, watch = _acts(losses)
    assert [kind for _, kind in found] == ["loss_spike"]
    assert 2001 <= found[0][0] <= 2015
    assert watch.onset_step == 2000


@pytest.mark.parametrize("seed", SEEDS)
def test_a_loss_that_goes_far_up_and_settles_nowhere_is_acted_on_in_the_window(seed: int) -> None:
    chance = random.Random(seed)
    found, _ = _acts(lifted(falling(2000, seed=seed), CHANGE, lambda i: chance.uniform(3, 30)))
    assert found[0][1] in ("loss_spike", "restart_discontinuity")
    assert CHANGE < found[0][0] < CHANGE + 40


def test_a_value_that_is_not_finite_is_acted_on_at_once_in_the_window() -> None:
    losses = falling(1200)
    losses[CHANGE + 3] = math.nan
    assert _acts(losses)[0] == [(CHANGE + 3, "non_finite")]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_divergence_that_begins_in_the_window_and_goes_on_climbing_is_found_after_it(seed: int) -> None:
    losses = lifted(falling(4000, seed=seed), CHANGE, lambda i: (i / 300) ** 2)
    found, _ = _acts(losses)
    assert found
    assert found[0][0] <= CHANGE + PLANNED_STEPS + 500


@pytest.mark.parametrize(
    ("steps", "length"), [(None, PLANNED_STEPS), (50, 50), (-3, PLANNED_STEPS), (10**9, MOST_STEPS)]
)
def test_the_window_is_bounded(steps: int | None, length: int) -> None:
    watch = LossWatch()
    for point in rows_of(falling(300)):
        watch.update(point)
    watch.expect(300, steps)
    after = rows_of(spiked(falling(200, seed=1, first=3.0), 100, 6.0, 10.0), first_step=300 + length - 90)
    found = [v for point in after for v in watch.update(point) if v.severity is Severity.ACT]
    assert [v.kind for v in found] == [Trouble.LOSS_SPIKE]


def _cosine(step: int, period: int, *, warm_up: int = 0) -> float:
    at = step % period
    if at < warm_up:
        return max(at, 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (at - warm_up) / (period - warm_up))) + 1e-3


@pytest.mark.parametrize("warm_up", [0, 50])
def test_a_learning_rate_that_begins_again_is_seen_and_its_first_warm_up_is_not(warm_up: int) -> None:
    rates = LearningRates()
    seen = [step for step in range(3000) if rates.update(_cosine(step, 1000, warm_up=warm_up))]
    assert {step // 1000 for step in seen} == {1, 2}
    assert min(step for step in seen if step >= 2000) <= 2000 + warm_up
    assert max(step % 1000 for step in seen) <= warm_up


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_learning_rate_that_is_none_is_passed_over(rate: float) -> None:
    rates = LearningRates()
    assert not any(rates.update(value) for value in (1.0, 0.5, rate, 0.5, rate, 0.4))


@pytest.mark.parametrize("schedule", [lambda i: 1e-3, lambda i: 1 / (1 + i), lambda i: 0.5 ** (i // 300), lambda i: i])
def test_a_rate_that_never_begins_again_announces_nothing(schedule: object) -> None:
    rates = LearningRates()
    assert not any(rates.update(schedule(i)) for i in range(2000))  # type: ignore[operator]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_warm_restart_is_no_trouble_where_the_rate_is_known(seed: int) -> None:
    losses = [loss * (1 + 2.0 * _cosine(i, 1500) * (i >= 1500)) for i, loss in enumerate(falling(4500, seed=seed))]
    known, unknown = LossWatch(), LossWatch()
    points = [Point(step=i, loss=loss, lr=_cosine(i, 1500)) for i, loss in enumerate(losses)]
    assert not any(v.severity is Severity.ACT for point in points for v in known.update(point))
    bare = [Point(step=i, loss=loss) for i, loss in enumerate(losses)]
    assert any(v.severity is Severity.ACT for point in bare for v in unknown.update(point))
