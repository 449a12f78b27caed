"""Young, Daly, and what the play finds where their assumptions hold."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from math import sqrt

import pytest

from fleets.causes import SOFTWARE
from fleets.figures import Setting
from fleets.intervals import daly_s, least_loss, p99_spares, try_intervals, young_s
from fleets.rekindle_rows import Rekindle
from fleets.rivals import TimeoutAndPerson
from fleets.runs import Failure, play
from rekindle.doctor.stack.runs import best_interval


def _failures(mean_s: float, count: int, seed: int) -> tuple[list[Failure], float]:
    rng, found, at = random.Random(seed), [], 0.0
    while len(found) < count:
        at += rng.expovariate(1 / mean_s)
        found.append(Failure(at_s=at, cause=SOFTWARE))
    return found, at


@pytest.mark.long
@pytest.mark.parametrize("save_s", [5.0, 30.0, 120.0])
@pytest.mark.parametrize("mean_h", [2.0, 30.0, 300.0])
def test_the_simulated_optimum_is_near_youngs_where_its_assumptions_hold(save_s: float, mean_h: float) -> None:
    """Failures at a constant rate that lose everything since the last save, and waits that do not depend on it."""
    mean_s = mean_h * 3600
    failures, wall_s = _failures(mean_s, 2500, seed=5)
    setting = Setting(nodes=8, gpus_per_node=8, interval_s=1.0, save_s=save_s, restart_s=60.0)
    points = try_intervals(failures, Rekindle(), setting, wall_s=wall_s, mean_s=mean_s)
    found = least_loss(points)
    young = young_s(mean_s, save_s)
    assert 0.6 * young <= found.interval_s <= 1.6 * young
    for interval_s in (young, daly_s(mean_s, save_s)):
        at_it = play(failures, Rekindle(), replace(setting, interval_s=interval_s), wall_s=wall_s).ettr
        assert found.ettr - at_it < 0.003
    assert points[0].ettr < found.ettr
    assert points[-1].ettr < found.ettr


def test_youngs_interval_is_the_doctors() -> None:
    assert young_s(7200.0, 30.0) == best_interval(timedelta(hours=2), timedelta(seconds=30)).total_seconds()
    assert young_s(7200.0, 30.0) == pytest.approx(sqrt(2 * 30 * 7200))


def test_dalys_interval_comes_to_youngs_where_saves_are_short_and_to_the_mean_where_they_are_long() -> None:
    assert daly_s(1e7, 1.0) == pytest.approx(young_s(1e7, 1.0), rel=0.001)
    assert daly_s(100.0, 250.0) == 100.0
    # Daly 2006, equation 37, worked out by hand for M = 1 h, a save of 5 minutes: ratio = 300 / 7200
    ratio = 300 / 7200
    assert daly_s(3600.0, 300.0) == pytest.approx(sqrt(2 * 300 * 3600) * (1 + sqrt(ratio) / 3 + ratio / 9) - 300)


def test_a_rarer_failure_or_a_longer_save_never_asks_for_shorter_intervals() -> None:
    for formula in (young_s, daly_s):
        by_mean = [formula(mean_s, 30.0) for mean_s in (600.0, 6_000.0, 60_000.0, 600_000.0)]
        assert by_mean == sorted(by_mean)
    by_save = [young_s(36_000.0, save_s) for save_s in (0.1, 1.0, 30.0, 600.0)]
    assert by_save == sorted(by_save)


def test_of_equal_intervals_the_longest_is_the_best() -> None:
    setting = Setting(nodes=8, gpus_per_node=8, interval_s=1.0, save_s=0.0)
    assert least_loss(try_intervals([], TimeoutAndPerson(), setting, wall_s=1e5, mean_s=3600.0)).ettr == 1.0


def test_the_p99_of_spares_grows_with_the_nodes_and_is_never_more_than_all_of_them() -> None:
    counts = [p99_spares(nodes, mean_s=4e7 / nodes, away_s=1500.0) for nodes in (8, 64, 1024, 16_384, 131_072)]
    assert counts == sorted(counts)
    assert p99_spares(4, mean_s=10.0, away_s=1e9) == 4
    assert p99_spares(1, mean_s=1e9, away_s=1.0) == 0
    # Binomial(2, 1/2): P(none) 0.25, P(at most one) 0.75, P(two) 1
    assert p99_spares(2, mean_s=100.0, away_s=100.0) == 2
