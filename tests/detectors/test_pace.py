"""Slow runs and slow ranks, and the pauses that are none."""

from __future__ import annotations

import random

import pytest

from rekindle.detectors.pace import StragglerWatch, ThroughputWatch
from rekindle.detectors.points import Point, Severity, Trouble


def _told(seconds: list[float], evaluations: set[int] | None = None) -> list[tuple[int, Severity]]:
    watch = ThroughputWatch()
    points = [Point(step=i, step_s=s, is_after_evaluation=i in (evaluations or set())) for i, s in enumerate(seconds)]
    return [(row, verdict.severity) for row, point in enumerate(points) for verdict in watch.update(point)]


def _steady(rows: int = 400) -> list[float]:
    chance = random.Random(1)
    return [0.5 * (1 + chance.gauss(0, 0.02)) for _ in range(rows)]


def test_a_lasting_slow_down_is_watched_then_acted_on_once() -> None:
    seconds = [s * (1.8 if i >= 200 else 1) for i, s in enumerate(_steady())]
    (first, watch), (second, act) = _told(seconds)
    assert (watch, act) == (Severity.WATCH, Severity.ACT)
    assert 200 < first < 230
    assert second > first
    assert sum(seconds[200 : second + 1]) == pytest.approx(60, abs=8)


def test_some_slow_moments_of_very_short_steps_are_no_slow_run() -> None:
    seconds = [s / 25 * (3 if 200 <= i < 300 else 1) for i, s in enumerate(_steady())]
    assert [severity for _, severity in _told(seconds)] == [Severity.WATCH]


def test_very_short_steps_that_stay_slow_are_told_after_a_minute() -> None:
    seconds = [s / 25 * (3 if i >= 200 else 1) for i, s in enumerate(_steady(2000))]
    told = _told(seconds)
    assert [severity for _, severity in told] == [Severity.WATCH, Severity.ACT]
    assert sum(seconds[200 : told[1][0] + 1]) == pytest.approx(60, abs=2)


def test_a_slight_slow_down_is_watched_only() -> None:
    seconds = [s * (1.3 if i >= 200 else 1) for i, s in enumerate(_steady())]
    assert [severity for _, severity in _told(seconds)] == [Severity.WATCH]


@pytest.mark.parametrize("factor", [10, 103])
def test_a_stall_that_heals_itself_is_nothing(factor: float) -> None:
    seconds = _steady()
    for row in (200, 300, 301, 302):
        seconds[row] *= factor
    assert _told(seconds) == []


def test_evaluation_pauses_and_slow_loading_now_and_then_are_nothing() -> None:
    seconds = [s * (30 if i % 10 == 0 else 2 if i % 7 == 0 else 1) for i, s in enumerate(_steady())]
    assert _told(seconds, set(range(0, 400, 10))) == []


def test_a_pace_that_comes_back_can_drop_again() -> None:
    seconds = [s * (2 if 100 <= i < 180 or 300 <= i < 380 else 1) for i, s in enumerate(_steady())]
    assert [severity for _, severity in _told(seconds)] == [Severity.WATCH, Severity.ACT] * 2


def test_the_time_of_a_step_is_worked_out_from_the_elapsed_time() -> None:
    watch = ThroughputWatch()
    elapsed_s, told = 0.0, []
    for row, seconds in enumerate(s * (2 if i >= 200 else 1) for i, s in enumerate(_steady())):
        elapsed_s += 10 * seconds
        told += watch.update(Point(step=10 * row, elapsed_s=elapsed_s))
    assert [verdict.severity for verdict in told] == [Severity.WATCH, Severity.ACT]
    assert told[0].evidence["baseline_s"] == pytest.approx(0.5, rel=0.05)


def test_times_that_cannot_be_are_passed_over() -> None:
    watch = ThroughputWatch()
    for step, seconds in enumerate([0.0, -1.0, float("nan"), float("inf")] * 30):
        assert watch.update(Point(step=step, step_s=seconds)) == ()
    assert watch.baseline_s is None


def test_a_slow_rank_is_named_after_some_windows() -> None:
    watch, told = StragglerWatch(), []
    for window in range(8):
        told += watch.update(window, {rank: 1.4 if rank == 3 else 1.0 + rank / 100 for rank in range(8)})
    assert [(v.kind, v.severity, v.evidence["rank"]) for v in told] == [
        (Trouble.STRAGGLER, Severity.WATCH, 3),
        (Trouble.STRAGGLER, Severity.ACT, 3),
    ]


def test_a_rank_that_is_slow_now_and_then_or_two_ranks_alone_say_nothing() -> None:
    watch = StragglerWatch()
    for window in range(20):
        assert watch.update(window, {rank: 2.0 if rank == window % 4 else 1.0 for rank in range(4)}) == ()
        assert watch.update(window, {0: 1.0, 1: 9.0}) == ()
