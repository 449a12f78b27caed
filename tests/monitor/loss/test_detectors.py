from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.detectors.hang import HangLimit
from rekindle.detectors.nonfinite import REARM_AFTER, NonFinite
from rekindle.protocol.mailbox import LossState

DURATIONS = st.lists(st.floats(min_value=0, max_value=1e4), max_size=80)


def test_the_first_bad_loss_is_reported_at_its_own_update_and_only_once() -> None:
    detector = NonFinite()
    reports = [detector.update(value) for value in (1.0, 0.9, math.nan, math.nan, math.inf)]
    assert reports == [None, None, LossState.NAN, None, None]
    assert detector.is_poisoned


def test_a_single_infinity_of_loss_scaling_does_not_spam_but_a_later_one_is_news_again() -> None:
    detector = NonFinite()
    values = [1.0, -math.inf, 1.0, math.inf, *[1.0] * REARM_AFTER, math.inf]
    assert [detector.update(value) for value in values].count(LossState.INF) == 2
    assert detector.update(1.0) is None
    assert not detector.is_poisoned


def test_no_loss_yet_is_neither_finite_nor_poisoned() -> None:
    assert NonFinite().state is LossState.NONE
    assert not NonFinite().is_poisoned


@given(durations=DURATIONS, floor=st.floats(0.01, 100), factor=st.floats(1, 10))
def test_the_limit_is_never_below_the_floor(durations: list[float], floor: float, factor: float) -> None:
    limit = HangLimit(floor_s=floor, factor=factor)
    for duration in durations:
        limit.update(duration)
        assert limit.limit() >= floor


@given(durations=DURATIONS, window=st.integers(1, 10))
def test_the_limit_is_the_factor_times_the_slowest_of_the_window(durations: list[float], window: int) -> None:
    limit = HangLimit(floor_s=1e-9, unlearned_s=1e9, factor=2.0, window=window, warmup=0)
    learned: list[float] = []
    for duration in durations:
        learned.append(min(duration, limit.limit()))
        limit.update(duration)
        assert limit.limit() == max(1e-9, 2.0 * max(learned[-window:]))


@given(warmup=st.lists(st.floats(0, 1e6), min_size=3, max_size=3), steps=st.lists(st.floats(0.01, 1), min_size=1))
def test_the_first_steps_say_nothing(warmup: list[float], steps: list[float]) -> None:
    slow, quick = HangLimit(floor_s=1.0, unlearned_s=1e7), HangLimit(floor_s=1.0, unlearned_s=1e7)
    for first, duration in zip([warmup, [0.0, 0.0, 0.0]], [slow, quick], strict=True):
        for value in [*first, *steps]:
            duration.update(value)
    assert slow.limit() == quick.limit()


def test_before_anything_is_learned_the_limit_is_that_of_the_start_up() -> None:
    limit = HangLimit(floor_s=60, unlearned_s=1800)
    for _ in range(3):
        limit.update(0.1)
        assert limit.limit() == 1800
    limit.update(0.1)
    assert limit.limit() == 60


def test_one_long_stall_does_not_switch_the_detector_off() -> None:
    limit = HangLimit(floor_s=10, factor=5, warmup=0)
    limit.update(1.0)
    limit.update(86_400.0)
    assert limit.limit() == 50


def test_a_slow_stretch_is_forgotten_when_it_leaves_the_window() -> None:
    limit = HangLimit(floor_s=1, unlearned_s=1000, factor=5, window=4, warmup=0)
    for duration in (8.0, 1.0, 1.0, 1.0):
        limit.update(duration)
    assert limit.limit() == 40
    limit.update(1.0)
    assert limit.limit() == 5


def test_nonsense_durations_are_not_learned() -> None:
    limit = HangLimit(floor_s=1, warmup=0)
    before = limit.limit()
    for nonsense in (math.nan, math.inf, -1.0):
        limit.update(nonsense)
    assert limit.limit() == before


@pytest.mark.parametrize("bad", [{"floor_s": 0}, {"floor_s": math.nan}, {"floor_s": 1, "factor": 0.5}])
def test_settings_that_cannot_hold_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="floor_s"):
        HangLimit(**bad)  # type: ignore[arg-type]
