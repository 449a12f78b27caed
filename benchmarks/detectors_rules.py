"""Published rules for loss trouble, as they are described, fed row by row: what ours are measured against.

The recalls are those of the table that came with the curves; where a paper leaves a detail open (what a 5x jump is
measured from, how long a warm-up lasts), false alarms can differ from it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, pstdev

from benchmarks.detectors_scoring import Detector
from rekindle.detectors.points import Point


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    run: Detector
    source: str
    published: tuple[float, float, float]  # recall, precision and false alarms per 100k rows, as given with the curves


def _losses(points: Iterable[Point]) -> Iterable[tuple[int, float]]:
    return ((row, point.loss) for row, point in enumerate(points) if point.loss is not None)


def seven_sigma(points: Iterable[Point]) -> list[int]:
    """Seven standard deviations over the mean of the last 1,000."""
    window: deque[float] = deque(maxlen=1000)
    total = squares = 0.0
    alarms = []
    for row, loss in _losses(points):
        if not math.isfinite(loss):
            continue
        if len(window) >= 50:
            mean = total / len(window)
            deviation = math.sqrt(max(squares / len(window) - mean * mean, 0.0))
            if loss > mean + 7 * deviation:
                alarms.append(row)
        if len(window) == window.maxlen:
            total -= window[0]
            squares -= window[0] ** 2
        window.append(loss)
        total += loss
        squares += loss * loss
    return alarms


def times_lowest(factor: float) -> Detector:
    """A loss so many times the lowest so far, or one that is not finite."""

    def run(points: Iterable[Point]) -> list[int]:
        lowest = math.inf
        alarms = []
        for row, loss in _losses(points):
            if not math.isfinite(loss) or loss > factor * lowest:
                alarms.append(row)
            if loss < lowest:
                lowest = loss
        return alarms

    return run


def zclip(points: Iterable[Point]) -> list[int]:
    """z over 2.5 against exponential averages (0.97) that learn the cut value; 25 rows of warm-up."""
    first: list[float] = []
    mean = variance = 0.0
    alarms = []
    for row, loss in _losses(points):
        if not math.isfinite(loss):
            alarms.append(row)
            continue
        if len(first) < 25:
            first.append(loss)
            mean, variance = fmean(first), pstdev(first) ** 2
            continue
        deviation = math.sqrt(variance)
        z = (loss - mean) / deviation if deviation > 0 else 0.0
        learned = loss
        if z > 2.5:
            alarms.append(row)
            learned = mean + 2.5 * 2.5 / z * deviation
        mean = 0.97 * mean + 0.03 * learned
        variance = 0.97 * variance + 0.03 * (learned - mean) ** 2
    return alarms


def _median(values: list[float]) -> float:
    """Of an even number of values; several times quicker than the library's."""
    values.sort()
    half = len(values) // 2
    return (values[half - 1] + values[half]) / 2


def mad(*, rise: float, rows: int) -> Detector:
    """Eight scaled median deviations over the median of the last 50, a share above it, so many rows in a row."""

    def run(points: Iterable[Point]) -> list[int]:
        window: deque[float] = deque(maxlen=50)
        alarms = []
        count = 0
        for row, loss in _losses(points):
            if not math.isfinite(loss):
                alarms.append(row)
                continue
            if len(window) == window.maxlen:
                middle = _median(list(window))
                spread = 1.4826 * _median([abs(value - middle) for value in window])
                count = count + 1 if loss > middle + 8 * spread and loss > middle * (1 + rise) else 0
                if count >= rows:
                    alarms.append(row)
            window.append(loss)
        return alarms

    return run


RULES = (
    Rule("OLMo 2: 7 sigma over 1,000", seven_sigma, "OLMo 2 report, spike score", (0.46, 0.49, 26)),
    Rule("ByteRobust: 5x or NaN", times_lowest(5), "ByteRobust", (0.52, 0.82, 6.1)),
    Rule("Megatron: 10x", times_lowest(10), "Megatron-LM rerun state machine", (0.30, 0.86, 2.5)),
    Rule("ZClip: z 2.5, EMA 0.97", zclip, "ZClip", (0.82, 0.06, 703)),
    Rule("8 MAD over 50, one row", mad(rise=0.0, rows=1), "robust z", (0.89, 0.46, 56)),
    Rule("8 MAD over 50, +5 %, two rows", mad(rise=0.05, rows=2), "robust z", (0.74, 0.89, 5.1)),
)
