"""Axes: from values to places on the page, and the round values to be written beside them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rekindle.compat import UTC

# Seconds that read well as distances on a clock.
_CLOCK_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_LOG_BEYOND: Final = 30.0  # times the lowest value: from there on a straight axis shows the highest value only


@dataclass(frozen=True, slots=True)
class Tick:
    """One mark of an axis."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from `low` to `high` onto places from `start` to `end`; logarithmic if it says so."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """The place, held within the axis."""
        low, high, here = self.low, self.high, value
        if self.is_log:
            low, high, here = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        share = (here - low) / (high - low) if high > low else 0.5
        return round(self.start + (self.end - self.start) * min(1.0, max(0.0, share)), 1)


def values_scale(low: float, high: float, *, start: float, end: float, log_beyond: float = _LOG_BEYOND) -> Scale:
    """For measured values: with a little air, logarithmic where the highest is so many times the lowest."""
    if low > 0 and high / low > log_beyond:
        return Scale(low / 1.1, high * 1.1, start, end, is_log=True)
    air = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    return Scale(low - air, high + air, start, end)


def value_ticks(scale: Scale, count: int = 5) -> list[Tick]:
    """Round values on a scale of values."""
    if scale.is_log:
        lowest, highest = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
        every = max(1, math.ceil((highest - lowest) / count))
        tens = [10.0**power for power in range(lowest, highest + 1, every)]
        found = [value * factor for value in tens for factor in ((1, 2, 5) if highest - lowest <= 2 else (1,))]
        return [Tick(scale(value), short(value)) for value in found if scale.low <= value <= scale.high]
    return [Tick(scale(value), short(value)) for value in round_values(scale.low, scale.high, count)]


def time_ticks(scale: Scale, count: int = 8) -> list[Tick]:
    """Round times of the clock (UTC)."""
    width = scale.high - scale.low
    every = next(
        (seconds for seconds in _CLOCK_S if width / seconds <= count), math.ceil(width / count / 86_400) * 86_400
    )
    first = math.ceil(scale.low / every) * every
    form = "%H:%M:%S" if every < 60 else "%H:%M" if every < 86_400 and width <= 86_400 else "%m-%d %H:%M"
    found = []
    at = first
    while at <= scale.high:
        found.append(Tick(scale(at), datetime.fromtimestamp(at, UTC).strftime(form)))
        at += every
    return found


def short(value: float) -> str:
    """A value in few characters."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{value:.3g}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def round_values(low: float, high: float, count: int) -> list[float]:
    """At most about `count` round values from `low` to `high`."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 0.0
    if power == 0:  # closer together than numbers can be written
        return [low]
    every = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / every)
    last = math.floor(high / every)
    return [index * every for index in range(first, min(last, first + 50) + 1)]
