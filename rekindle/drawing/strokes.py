"""Which points belong to one line: attempts, gaps, and what cannot be drawn at all. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rekindle.compat import StrEnum

BEYOND: Final = 1e200  # CloudWatch holds no number beyond 2**360 (2.3e108)
GAP: Final = 5  # times the usual distance in time: nothing was measured in between, and no line is drawn


Point = tuple[float, float]


class Axis(StrEnum):
    """What runs to the right."""

    STEP = "step"
    TIME = "time"


@dataclass(slots=True)
class AttemptPoints:
    """Points of one line, all of one attempt; `attempt` counts from 0."""

    attempt: int
    points: list[Point]


def can_be_drawn(point: Point) -> bool:
    """Both of its places are numbers that a picture can hold."""
    return all(math.isfinite(value) and abs(value) <= BEYOND for value in point)


def unbroken_parts(
    points: Sequence[Point], axis: Axis, starts: Collection[int] = (), gaps: Collection[int] = ()
) -> list[AttemptPoints]:
    """Points that can be drawn, in the order in which they were measured; a step that goes back or a new start begins
    another attempt's stroke, a gap in time one of the same attempt."""
    parts: list[AttemptPoints] = []
    widest = _widest([point[0] for point in points if can_be_drawn(point)])
    attempt, is_new, is_gap = 0, False, True
    for index, point in enumerate(points):
        is_new, is_gap = is_new or index in starts, is_gap or index in gaps
        if not can_be_drawn(point):
            continue
        moved = point[0] - parts[-1].points[-1][0] if parts else 0.0
        attempt += bool(parts) and (is_new or (axis is Axis.STEP and moved < 0))
        if is_gap or attempt != parts[-1].attempt or (axis is Axis.TIME and moved > widest):
            parts.append(AttemptPoints(attempt, []))
        parts[-1].points.append(point)
        is_new = is_gap = False
    return parts


def gaps_of(times: Sequence[float]) -> set[int]:
    """Indexes of the points before which nothing was measured for GAP times the usual distance in time."""
    widest = _widest(times)
    return {index for index, (earlier, later) in enumerate(pairwise(times), start=1) if later - earlier > widest}


def _widest(places: Sequence[float]) -> float:
    """How far apart two neighbours may be with a line between them: GAP times the usual distance."""
    apart = sorted(later - earlier for earlier, later in pairwise(places))
    return GAP * apart[len(apart) // 2] if apart else 0.0
