"""What a chart is drawn from: points, the band around them, and what is pointed out. Only data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rekindle.compat import StrEnum
from rekindle.drawing.strokes import Axis, Point


class MarkKind(StrEnum):
    """What is pointed out; each has its own stroke, not only its own colour."""

    FAULT = "fault"
    RESUME = "resume"
    SAVE = "save"
    SKIP = "skip"
    REDO = "redo"
    BAD = "bad"
    ATTEMPT = "attempt"
    INCIDENT = "incident"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something at `low`, or from `low` to `high`, with its words."""

    kind: MarkKind
    low: float
    high: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What is to be drawn. `low` and `high` are the band around the curve, point by point as `points` or empty.

    `starts` are the indexes of points with which the run was started again: each begins a new stroke, also where the
    new attempt is already further than the old one came when it is first measured. `gaps` are the indexes of points
    before which nothing was measured for long: the same attempt, and no line is drawn to them.
    """

    name: str
    title: str
    y_title: str
    axis: Axis
    points: Sequence[Point] = ()
    low: Sequence[Point] = ()
    high: Sequence[Point] = ()
    starts: Collection[int] = ()
    gaps: Collection[int] = ()
    broken: Sequence[float] = ()  # x of values that were no finite numbers
    marks: Sequence[Mark] = ()
    names: Sequence[str] = ()  # of the attempts in the order of their lines; the others are numbered
    why: str = ""  # why there are no points
