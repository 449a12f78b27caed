"""Made-up curves: a falling loss with noise, and what can befall it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

from rekindle.detectors.points import Point, Severity, Verdict
from rekindle.detectors.watch import LossWatch


def falling(rows: int, *, seed: int = 0, noise: float = 0.02, first: float = 8.0, last: float = 3.0) -> list[float]:
    chance = random.Random(seed)
    return [(last + (first - last) * math.exp(-i / 100)) * (1 + chance.gauss(0, noise)) for i in range(rows)]


def lifted(losses: Sequence[float], start: int, by: Callable[[int], float]) -> list[float]:
    """The curve, times `1 + by(rows since start)` from a row on."""
    return [loss * (1 + by(i - start)) if i >= start else loss for i, loss in enumerate(losses)]


def spiked(losses: Sequence[float], start: int, height: float, tau: float) -> list[float]:
    """The curve with a spike as weights make it: up at once, and down again slowly."""
    return lifted(losses, start, lambda i: height * math.exp(-i / tau))


def rows_of(losses: Iterable[float | None], *, every: int = 1, first_step: int = 0) -> list[Point]:
    return [Point(step=first_step + i * every, loss=loss) for i, loss in enumerate(losses)]


def verdicts(points: Iterable[Point], watch: LossWatch | None = None) -> list[tuple[int, Verdict]]:
    watch = watch if watch is not None else LossWatch()
    return [(row, verdict) for row, point in enumerate(points) for verdict in watch.update(point)]


def acts(points: Iterable[Point], watch: LossWatch | None = None) -> list[tuple[int, str]]:
    return [(row, v.kind.value) for row, v in verdicts(points, watch) if v.severity is Severity.ACT]
