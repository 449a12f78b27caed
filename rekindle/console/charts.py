"""Pictures of curves as plain geometry, which a template then draws as SVG. Pure: no text of ours is markup here.

A curve is a list of (x, value); where x is a step, a run that went back or was started again begins a new stroke there,
so that what was trained twice is seen twice. What is not known is not drawn, and the picture says so in words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from rekindle.compat import UTC
from rekindle.console.curve import Curve, Mark, MarkKind
from rekindle.console.plots import plot_of
from rekindle.drawing.scales import Scale, Tick, short, step_ticks, time_ticks, value_ticks, values_scale
from rekindle.drawing.strokes import Axis, Point, can_be_drawn, unbroken_parts

WIDTH: Final = 960
FLAT: Final = 130  # where there are marks and no curve
LEFT, RIGHT, BOTTOM = 64, 30, 44
TOP: Final = 24  # the upper axis' title stands above the highest value's label
LABEL_ROW: Final = 17  # height of one row of labels above the curve
CHAR_WIDTH: Final = 6.4  # of the labels' small type, generously: two labels never touch
TABLE_ROWS: Final = 40
DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnMark:
    """A mark with its places; `row` is the height of its label."""

    kind: MarkKind
    x: float
    width: float
    label: str
    label_x: float
    label_y: float
    anchor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stroke:
    """One unbroken line; the newest is the run as it is now."""

    points: str
    is_newest: bool
    dot: tuple[float, float] | None = None  # a stroke of one point is a dot


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """All a template needs to draw, flat, because a template reads one record.

    `text` is the picture in words, `rows` its values for a table.
    """

    name: str
    title: str
    x_title: str
    y_title: str
    height: int
    top: float
    floor: float
    strokes: tuple[Stroke, ...]
    band: tuple[str, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[DrawnMark, ...]
    broken: tuple[float, ...]
    text: str
    why: str
    rows: tuple[tuple[str, str], ...]
    plot: str = ""  # JSON for static/plots.js; empty where there is no curve
    is_log: bool = False
    width: int = WIDTH
    left: int = LEFT
    right: int = WIDTH - RIGHT

    @property
    def has_earlier(self) -> bool:
        """Whether attempts before the newest are drawn, too, so that a legend has to name the lines."""
        return any(not stroke.is_newest for stroke in self.strokes)

    @property
    def is_empty(self) -> bool:
        """There is no curve; marks there may be."""
        return not self.strokes


def draw(curve: Curve) -> Chart | None:
    """The picture; None where there is nothing to be drawn at all."""
    finite = [point for point in curve.points if can_be_drawn(point)]
    parts = unbroken_parts(curve.points, curve.axis, curve.starts, curve.gaps)
    newest = parts[-1].attempt if parts else 0
    edges = [x for x, _ in finite] + list(curve.broken)
    edges += [place for mark in curve.marks for place in (mark.low, mark.high) if place is not None]
    if not edges:
        return None
    x = _x_scale(edges, curve.axis)
    marks, rows = _label_rows(curve.marks, x)
    top = TOP + LABEL_ROW * rows
    height = (curve.height if finite else FLAT) + LABEL_ROW * rows
    floor = height - BOTTOM
    values = [point[1] for point in (*finite, *curve.low, *curve.high) if can_be_drawn(point)]
    y = values_scale(min(values), max(values), start=floor, end=top) if values else Scale(0, 1, floor, top)
    stated = _caption(curve, finite, attempts=newest + 1, is_log=y.is_log)
    return Chart(
        name=curve.name,
        title=curve.title,
        x_title="step" if curve.axis is Axis.STEP else "time (UTC)",
        y_title=curve.y_title,
        height=height,
        top=top,
        floor=floor,
        strokes=tuple(_stroke(part.points, x, y, is_newest=part.attempt == newest) for part in parts),
        band=_band(curve, x, y),
        x_ticks=tuple(step_ticks(x) if curve.axis is Axis.STEP else time_ticks(x)),
        y_ticks=tuple(value_ticks(y)) if values else (),
        marks=tuple(marks),
        broken=tuple(x(place) for place in curve.broken),
        text=stated,
        why="" if finite else (curve.why or "there is no curve"),
        rows=_rows(finite, curve.axis),
        plot=plot_of(curve, words=stated, is_log=y.is_log) if finite else "",
        is_log=y.is_log,
    )


def _x_scale(edges: Sequence[float], axis: Axis) -> Scale:
    low, high = min(edges), max(edges)
    if axis is Axis.STEP:
        air = max(1.0, (high - low) * 0.02)
        return Scale(max(0.0, low - air), high + air, LEFT, WIDTH - RIGHT)
    return Scale(low, max(high, low + 1), LEFT, WIDTH - RIGHT)


def _stroke(part: Sequence[Point], x: Scale, y: Scale, *, is_newest: bool) -> Stroke:
    places = [(x(at), y(value)) for at, value in part]
    dot = places[0] if len(places) == 1 else None
    return Stroke(points=" ".join(f"{left},{top}" for left, top in places), is_newest=is_newest, dot=dot)


def _band(curve: Curve, x: Scale, y: Scale) -> tuple[str, ...]:
    """Between the lowest and the highest value of each period, stroke by stroke."""
    if len(curve.low) != len(curve.high) or len(curve.low) < 2:
        return ()
    starts, gaps = (curve.starts, curve.gaps) if len(curve.low) == len(curve.points) else ((), ())
    lows, highs = (unbroken_parts(edge, curve.axis, starts, gaps) for edge in (curve.low, curve.high))
    found = []
    for low, high in zip(lows, highs, strict=False):
        if len(low.points) > 1 and len(low.points) == len(high.points):
            around = [*high.points, *reversed(low.points)]
            found.append(" ".join(f"{x(at)},{y(value)}" for at, value in around))
    return tuple(found)


def _label_rows(marks: Sequence[Mark], x: Scale) -> tuple[list[DrawnMark], int]:
    """Every label in the lowest row where it touches no other; how many rows that takes."""
    ends: list[float] = []  # how far each row is taken
    placed: list[tuple[DrawnMark, int]] = []
    for mark in sorted(marks, key=lambda one: one.low):
        left = x(mark.low)
        width = round(x(mark.high) - left, 1) if mark.high is not None else 0.0
        needs = len(mark.label) * CHAR_WIDTH
        fits_right = left + needs <= WIDTH - RIGHT
        begin = left + 3 if fits_right else max(LEFT, WIDTH - RIGHT - needs)
        row = -1
        if mark.label:
            row = next((index for index, end in enumerate(ends) if end < begin), len(ends))
            ends[row:] = [*([begin + needs + 8]), *ends[row + 1 :]]
        drawn = DrawnMark(
            kind=mark.kind,
            x=left,
            width=max(width, 1.5) if mark.high is not None else 0.0,
            label=mark.label,
            label_x=round(begin, 1),
            label_y=0,
            anchor="start",
        )
        placed.append((drawn, row))
    return [replace(drawn, label_y=TOP + LABEL_ROW * row + 6) for drawn, row in placed], len(ends)


def _caption(curve: Curve, points: Sequence[Point], *, attempts: int, is_log: bool) -> str:
    """The picture in words, for those who do not see it."""
    parts = []
    if points:
        values = [value for _, value in points]
        parts.append(
            f"{curve.title}: {len(points)} points, from {short(values[0])} to {short(values[-1])}, "
            f"lowest {short(min(values))}, highest {short(max(values))}."
        )
    else:
        parts.append(f"{curve.title}: no curve; {curve.why or 'nothing was measured'}.")
    if attempts > 1:
        parts.append(f"It holds {attempts} attempts, a line each; the last one is the newest.")
    if is_log:
        parts.append("The scale of the values is logarithmic.")
    if curve.broken:
        parts.append(f"{len(curve.broken)} periods held values that were no finite numbers.")
    parts += [f"{mark.label}." for mark in curve.marks if mark.label]
    return " ".join(parts)


def _rows(points: Sequence[Point], axis: Axis) -> tuple[tuple[str, str], ...]:
    """A sample of the values, the first and the last among them."""
    if not points:
        return ()
    every = max(1, math.ceil((len(points) - 1) / (TABLE_ROWS - 1))) if len(points) > 1 else 1
    chosen = [*points[::every]]
    if chosen[-1] != points[-1]:
        chosen.append(points[-1])
    # A window of days has each time of day more than once.
    is_long = points[-1][0] - points[0][0] >= DAY_S
    label = (lambda at: str(round(at))) if axis is Axis.STEP else (day_of if is_long else clock_of)
    return tuple((label(at), short(value)) for at, value in chosen)


def day_of(at: float) -> str:
    """A day and a time (UTC)."""
    return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M:%S")


def clock_of(at: float) -> str:
    """A time of day (UTC)."""
    seconds = int(at) % 86_400
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
