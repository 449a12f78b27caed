"""A curve as a page shows it: data for the script that draws it (static/plots.js), words, and a table. Pure.

A curve is a list of (x, value); where x is a step, a run that went back or was started again begins a new line there,
so that what was trained twice is seen twice. What is not known is not drawn, and the words say so.

The script's data: `{x: "step"|"time", title, words, isLog, lines: [{name, newest, xs, ys, low?, high?}], marks: [{kind,
low, high, label}], broken: [x]}`. A line is one attempt, its x ascending; `null` in `ys` parts it, where nothing was
measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rekindle.compat import UTC
from rekindle.console.curve import Curve, Mark
from rekindle.drawing.scales import short, values_scale
from rekindle.drawing.strokes import AttemptPoints, Axis, Point, can_be_drawn, unbroken_parts

TABLE_ROWS: Final = 40
DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """All that a template needs. `plot`: JSON for the script, empty where there is no curve, for the reason in `why`.

    `text` is the picture in words, `rows` its values for a table, `broken` how many values were no finite numbers.
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
    has_earlier: bool  # attempts before the newest are drawn, too, so that a legend has to name the lines


def draw(curve: Curve) -> Chart | None:
    """The chart; None where there is nothing to be shown at all."""
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
    """Unique in its chart: the script finds a line by it."""
    if attempt < len(curve.names):
        return curve.names[attempt]
    return curve.y_title if newest == 0 else f"line {attempt + 1}"


def _edges(curve: Curve) -> Mapping[Point, tuple[float, float]]:
    """The band at each point; none where low and high do not go with the points one by one."""
    if not len(curve.low) == len(curve.high) == len(curve.points):
        return {}
    return {
        point: (low[1], high[1])
        for point, low, high in zip(curve.points, curve.low, curve.high, strict=True)
        if can_be_drawn(low) and can_be_drawn(high)
    }


def _line(parts: Sequence[AttemptPoints], edges: Mapping[Point, tuple[float, float]], name: str) -> dict[str, Any]:
    xs: list[float] = []
    ys: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for part in parts:
        if xs:  # the line is parted halfway to the next point
            xs.append((xs[-1] + part.points[0][0]) / 2)
            for values in (ys, low, high):
                values.append(None)
        for point in part.points:
            if xs and point[0] <= xs[-1]:
                continue  # two periods that ended at the same step: the earlier one stands
            around = edges.get(point, (point[1], point[1]))
            xs.append(point[0])
            ys.append(point[1])
            low.append(around[0])
            high.append(around[1])
    return {"name": name, "xs": xs, "ys": ys} | ({"low": low, "high": high} if edges else {})


def _words(curve: Curve, points: Sequence[Point], *, attempts: int, is_log: bool) -> str:
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
