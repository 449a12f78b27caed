"""How often to save, and how many spares."""

from __future__ import annotations

from datetime import timedelta
from math import sqrt

import pytest

from fleets.intervals import young_s
from fleets.spares import p99_spares
from rekindle.doctor.stack.runs import best_interval


def test_youngs_interval_is_the_doctors() -> None:
    assert young_s(7200.0, 30.0) == best_interval(timedelta(hours=2), timedelta(seconds=30)).total_seconds()
    assert young_s(7200.0, 30.0) == pytest.approx(sqrt(2 * 30 * 7200))


def test_a_rarer_failure_or_a_longer_save_never_asks_for_shorter_intervals() -> None:
    by_mean = [young_s(mean_s, 30.0) for mean_s in (600.0, 6_000.0, 60_000.0, 600_000.0)]
    assert by_mean == sorted(by_mean)
    by_save = [young_s(36_000.0, save_s) for save_s in (0.1, 1.0, 30.0, 600.0)]
    assert by_save == sorted(by_save)


def test_the_p99_of_spares_grows_with_the_nodes_and_is_never_more_than_all_of_them() -> None:
    counts = [p99_spares(nodes, mean_s=4e7 / nodes, away_s=1500.0) for nodes in (8, 64, 1024, 16_384, 131_072)]
    assert counts == sorted(counts)
    assert p99_spares(4, mean_s=10.0, away_s=1e9) == 4
    assert p99_spares(1, mean_s=1e9, away_s=1.0) == 0
    # Binomial(2, 1/2): P(none) 0.25, P(at most one) 0.75, P(two) 1
    assert p99_spares(2, mean_s=100.0, away_s=100.0) == 2
