"""A loss curve and its alarms as a picture: what `rekindle detect --plot` writes (SVG)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rekindle.detectors.points import Point, Trouble
from rekindle.drawing.scales import Scale, round_values, value_ticks, values_scale
from rekindle.drawing.svg import Svg

WIDTH, HEIGHT = 1280, 640
LEFT, RIGHT, TOP, BOTTOM = 110, WIDTH - 24, 84, HEIGHT - 70
LOG_RATIO = 5.0  # positive losses that span more than this are drawn on a logarithmic axis
TICKS = 6
MAX_TITLE_CHARS = 70

PAPER, INK, GRID, BAND, CURVE, BAD = "#ffffff", "#282828", "#e1e1e1", "#a6c8ec", "#1f62a8", "#787878"
COLOURS: Final[dict[Trouble, str]] = {
    Trouble.LOSS_SPIKE: "#d64520",
    Trouble.DIVERGENCE: "#96143c",
    Trouble.RESTART_DISCONTINUITY: "#803eab",
    Trouble.NON_FINITE: "#141414",
    Trouble.THROUGHPUT_DROP: "#14825a",
}


@dataclass(frozen=True, slots=True)
class Mark:
    """One alarm: its row and what it is about."""

    row: int
    kind: Trouble


def draw(points: Sequence[Point], marks: Sequence[Mark], title: str) -> str:
    """One SVG document. Rows stand evenly from left to right, with their steps below."""
    svg = Svg(WIDTH, HEIGHT, title=f"Loss by step of {title}", background=PAPER)
    losses = [point.loss for point in points]
    finite = [loss for loss in losses if loss is not None and _is_drawn(loss)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    vertical = values_scale(low, high, start=BOTTOM, end=TOP, log_beyond=LOG_RATIO)
    horizontal = Scale(0, max(len(points) - 1, 1), LEFT, RIGHT)
    _frame(svg, points, horizontal, vertical)
    _curve(svg, losses, horizontal, vertical)
    for mark in marks:
        x, colour = horizontal(mark.row), COLOURS.get(mark.kind, INK)
        svg.line(x, TOP - 10, x, BOTTOM, colour, width=2, dash="5 3")
        svg.text(x, TOP - 2, "▼", colour, size=16, anchor="middle")
    _legend(svg, marks, title, vertical)
    return str(svg)


def _is_drawn(loss: float) -> bool:
    return -1e300 < loss < 1e300


def _frame(svg: Svg, points: Sequence[Point], horizontal: Scale, vertical: Scale) -> None:
    for tick in value_ticks(vertical, TICKS):
        svg.line(LEFT, tick.at, RIGHT, tick.at, GRID)
        svg.text(LEFT - 10, tick.at + 5, tick.label, INK, anchor="end")
    for row in round_values(0, len(points) - 1, TICKS):
        x = horizontal(row)
        svg.line(x, TOP, x, BOTTOM, GRID)
        svg.text(x, BOTTOM + 20, f"{points[int(row)].step:,}", INK, anchor="middle")
    svg.text((LEFT + RIGHT) / 2, HEIGHT - 16, "step", INK, anchor="middle")
    svg.line(LEFT, TOP, LEFT, BOTTOM, INK)
    svg.line(LEFT, BOTTOM, RIGHT, BOTTOM, INK)


def _curve(svg: Svg, losses: Sequence[float | None], horizontal: Scale, vertical: Scale) -> None:
    """A band from lowest to highest where many rows share a column of pixels, and a line through the middle ones; grey
    where a value is not finite.
    """
    columns: dict[int, list[float]] = {}
    for row, loss in enumerate(losses):
        if loss is not None:
            columns.setdefault(round(horizontal(row)), []).append(loss)
    line: list[list[tuple[float, float]]] = [[]]
    wide = max(1.0, (RIGHT - LEFT) / max(len(losses) - 1, 1))
    for x, values in sorted(columns.items()):
        drawn = sorted(filter(_is_drawn, values))
        if len(drawn) < len(values):
            svg.rect(x - wide / 2, TOP, wide, BOTTOM - TOP, BAD, opacity=0.25)
        if drawn:
            svg.line(x, vertical(drawn[-1]), x, vertical(drawn[0]), BAND)
            line[-1].append((x, vertical(drawn[len(drawn) // 2])))
        else:
            line.append([])
    for part in filter(None, line):
        svg.polyline(part, CURVE, width=2)
        first_x, first_y = part[0]
        svg.rect(first_x - 2, first_y - 2, 5, 5, CURVE)  # what begins here may be a lone value, which no line shows


def _legend(svg: Svg, marks: Sequence[Mark], title: str, vertical: Scale) -> None:
    svg.text(LEFT, 28, title if len(title) <= MAX_TITLE_CHARS else "..." + title[-MAX_TITLE_CHARS:], INK, size=16)
    svg.text(12, 56, "loss, log axis" if vertical.is_log else "loss", INK)
    counts = {kind: sum(mark.kind is kind for mark in marks) for kind in COLOURS}
    seen = [(kind, f"{count} {kind.value.replace('_', ' ')}") for kind, count in counts.items() if count]
    for place, (kind, text) in enumerate(reversed(seen)):
        svg.text(RIGHT - 200 * place, 56, text, COLOURS[kind], anchor="end", bold=True)
    if not seen:
        svg.text(RIGHT, 56, "no alarm", INK, anchor="end")
