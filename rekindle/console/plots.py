"""A curve as data for the script that draws it in the browser (static/plots.js). Pure.

Shape: `{x: "step"|"time", title, words, isLog, lines: [{name, newest, xs, ys, low?, high?}], marks: [{kind, low, high,
label}], broken: [x]}`. A line is one attempt, its x ascending; `null` in `ys` parts it, where nothing was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rekindle.console.curve import Curve
from rekindle.drawing.strokes import AttemptPoints, can_be_drawn, unbroken_parts


def plot_of(curve: Curve, *, words: str, is_log: bool) -> str:
    """The JSON; `words` describe the picture."""
    parts = unbroken_parts(curve.points, curve.axis, curve.starts, curve.gaps)
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


def _edges(curve: Curve) -> Mapping[tuple[float, float], tuple[float, float]]:
    """The band at each point; none where low and high do not go with the points one by one."""
    if not len(curve.low) == len(curve.high) == len(curve.points):
        return {}
    return {
        point: (low[1], high[1])
        for point, low, high in zip(curve.points, curve.low, curve.high, strict=True)
        if can_be_drawn(low) and can_be_drawn(high)
    }


def _line(
    parts: Sequence[AttemptPoints], edges: Mapping[tuple[float, float], tuple[float, float]], name: str
) -> dict[str, Any]:
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
