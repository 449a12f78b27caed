"""A chart on a page: the data for the script that draws it (static/plots.js), a description, and a table. Pure.

A curve is a list of (x, value). If x is a step, each attempt is a line of its own, so that steps that were trained
twice, after a rollback or a restart, are drawn twice. Unknown values are not drawn; the description mentions them.

The script's data: `{x: "step"|"time", title, words, isLog, lines: [{name, newest, xs, ys, low?, high?}], marks: [{kind,
low, high, label}], broken: [x]}`. A line is one attempt, its x ascending; a `null` in `ys` is a gap, where nothing was
measured. `broken` holds the x of values that were not finite.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rekindle.compat import UTC, StrEnum
from rekindle.drawing.scales import short, values_scale
from rekindle.drawing.strokes import AttemptPoints, Axis, Point, can_be_drawn, unbroken_parts


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


TABLE_ROWS: Final = 40  # at most, plus the last value
DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Everything that a template needs to show one chart.

    text         a description of the chart, for people who do not see it
    why          why there is no curve; empty where there is one
    rows         a sample of the values for a table: (step or time, value)
    broken       how many values were not finite numbers
    plot         the script's data as JSON; empty where there is no curve
    is_log       the scale of the values is logarithmic
    has_earlier  attempts before the newest are drawn, too, so a legend must name the lines
    """

    name: str
    title: str
    x_title: str
    y_title: str
    text: str
    why: str
    rows: tuple[tuple[str, str], ...]
    marks: tuple[Mark, ...]
    broken: int
    plot: str
    is_log: bool
    has_earlier: bool


def draw(curve: Curve) -> Chart | None:
    """The chart of a curve; None where there is nothing to show: no values, marks or broken values."""
    finite = [point for point in curve.points if can_be_drawn(point)]
    if not (finite or curve.broken or curve.marks):
        return None
    parts = unbroken_parts(curve.points, curve.axis, curve.starts, curve.gaps)
    values = [point[1] for point in (*finite, *curve.low, *curve.high) if can_be_drawn(point)]
    is_log = bool(values) and values_scale(min(values), max(values), start=0, end=1).is_log
    attempts = parts[-1].attempt + 1 if parts else 1
    words = _words(curve, finite, attempts=attempts, is_log=is_log)
    return Chart(
        name=curve.name,
        title=curve.title,
        x_title="step" if curve.axis is Axis.STEP else "time (UTC)",
        y_title=curve.y_title,
        text=words,
        why="" if finite else (curve.why or "there is no curve"),
        rows=_rows(finite, curve.axis),
        marks=tuple(sorted(curve.marks, key=lambda mark: mark.low)),
        broken=len(curve.broken),
        plot=_plot(curve, parts, words=words, is_log=is_log) if finite else "",
        is_log=is_log,
        has_earlier=attempts > 1,
    )


def _plot(curve: Curve, parts: Sequence[AttemptPoints], *, words: str, is_log: bool) -> str:
    newest = parts[-1].attempt if parts else 0
    edges = _edges(curve)
    return json.dumps(
        {
            "x": curve.axis.value,
            "title": curve.title,
            "words": words,
            "isLog": is_log,
            "lines": [
                _line([part for part in parts if part.attempt == attempt], edges, _name(curve, attempt, newest))
                | {"newest": attempt == newest}
                for attempt in range(newest + 1)
            ],
            "marks": [
                {"kind": mark.kind.value, "low": mark.low, "high": mark.high, "label": mark.label}
                for mark in curve.marks
            ],
            "broken": list(curve.broken),
        },
        separators=(",", ":"),
    )


def _name(curve: Curve, attempt: int, newest: int) -> str:
    """The name of an attempt's line; unique in its chart, because the script finds lines by their names."""
    if attempt < len(curve.names):
        return curve.names[attempt]
    return curve.y_title if newest == 0 else f"line {attempt + 1}"


def _edges(curve: Curve) -> Mapping[Point, tuple[float, float]]:
    """(low, high) of the band at each point; empty unless the curve has a low and a high value for each point."""
    if not len(curve.low) == len(curve.high) == len(curve.points):
        return {}
    return {
        point: (low[1], high[1])
        for point, low, high in zip(curve.points, curve.low, curve.high, strict=True)
        if can_be_drawn(low) and can_be_drawn(high)
    }


def _line(parts: Sequence[AttemptPoints], edges: Mapping[Point, tuple[float, float]], name: str) -> dict[str, Any]:
    """One attempt's line in the script's data. Its unbroken parts are joined, with a null between two of them."""
    xs: list[float] = []
    ys: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for part in parts:
        if xs:  # the gap is placed halfway to the next point
            xs.append((xs[-1] + part.points[0][0]) / 2)
            for values in (ys, low, high):
                values.append(None)
        for point in part.points:
            if xs and point[0] <= xs[-1]:
                continue  # two periods ended at the same step: the earlier one is drawn
            band = edges.get(point, (point[1], point[1]))
            xs.append(point[0])
            ys.append(point[1])
            low.append(band[0])
            high.append(band[1])
    return {"name": name, "xs": xs, "ys": ys} | ({"low": low, "high": high} if edges else {})


def _words(curve: Curve, points: Sequence[Point], *, attempts: int, is_log: bool) -> str:
    """The description of the chart, for people who do not see it."""
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
    """An evenly spaced sample of the values, with the first and the last."""
    if not points:
        return ()
    every = max(1, math.ceil((len(points) - 1) / (TABLE_ROWS - 1))) if len(points) > 1 else 1
    chosen = [*points[::every]]
    if chosen[-1] != points[-1]:
        chosen.append(points[-1])
    # Over a day or more, a time of day alone is ambiguous.
    is_long = points[-1][0] - points[0][0] >= DAY_S
    label: Callable[[float], str] = day_of if is_long else clock_of
    if axis is Axis.STEP:
        label = step_text
    return tuple((label(at), short(value)) for at, value in chosen)


def step_text(step: float) -> str:
    """A step, as a whole number."""
    return str(round(step))


def day_of(at: float) -> str:
    """Month, day and time (UTC) of a Unix time."""
    return datetime.fromtimestamp(at, UTC).strftime("%m-%d %H:%M:%S")


def clock_of(at: float) -> str:
    """The time of day (UTC) of a Unix time."""
    seconds = int(at) % DAY_S
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
