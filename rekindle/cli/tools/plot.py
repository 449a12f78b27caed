"""A loss curve and its alarms as a picture: what `rekindle detect --plot` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rekindle.detectors.points import Point, Trouble
from rekindle.drawing.pixels import Canvas, Colour, Surface, text_width
from rekindle.drawing.scales import Scale, round_values, value_ticks, values_scale
from rekindle.drawing.svg import SvgCanvas

WIDTH, HEIGHT = 1280, 640
LEFT, RIGHT, TOP, BOTTOM = 110, 24, 84, 70
LOG_RATIO = 5.0  # positive losses that span more than this are drawn on a logarithmic axis
TICKS = 6
MAX_TITLE_CHARS = 70

PAPER: Colour = (255, 255, 255)
INK: Colour = (40, 40, 40)
GRID: Colour = (225, 225, 225)
BAND: Colour = (166, 200, 236)
CURVE: Colour = (31, 98, 168)
BAD: Colour = (120, 120, 120)
COLOURS: dict[Trouble, Colour] = {
    Trouble.LOSS_SPIKE: (214, 69, 32),
    Trouble.DIVERGENCE: (150, 20, 60),
    Trouble.RESTART_DISCONTINUITY: (128, 62, 171),
    Trouble.NON_FINITE: (20, 20, 20),
    Trouble.THROUGHPUT_DROP: (20, 130, 90),
}


@dataclass(frozen=True, slots=True)
class Mark:
    """One alarm: its row and what it is about."""

    row: int
    kind: Trouble


def draw(points: Sequence[Point], marks: Sequence[Mark], title: str, suffix: str = ".png") -> bytes:
    """The picture as a file of the format that `suffix` names, one of FORMATS."""
    canvas = FORMATS[suffix](WIDTH, HEIGHT, PAPER)
    _draw(canvas, points, marks, title)
    return canvas.encoded()


FORMATS: Final[Mapping[str, Callable[[int, int, Colour], Surface]]] = {".png": Canvas, ".svg": SvgCanvas}


def _draw(canvas: Surface, points: Sequence[Point], marks: Sequence[Mark], title: str) -> None:
    """Rows stand evenly from left to right, with their steps below."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    losses = [point.loss for point in points]
    finite = [loss for loss in losses if loss is not None and -1e300 < loss < 1e300]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    vertical = values_scale(low, high, start=bottom, end=TOP, log_beyond=LOG_RATIO)
    _frame(canvas, points, vertical, right, bottom)
    columns = _columns(losses, right - LEFT)
    _curve(canvas, columns, vertical, bottom, wide=max(1, (right - LEFT) // max(len(points) - 1, 1)))
    _marks(canvas, marks, len(points), right, bottom)
    _legend(canvas, marks, title, vertical)


def _x(row: int, rows: int, right: int) -> int:
    return LEFT + round(row / max(rows - 1, 1) * (right - LEFT - 1))


def _frame(canvas: Surface, points: Sequence[Point], vertical: Scale, right: int, bottom: int) -> None:
    for tick in value_ticks(vertical, TICKS):
        y = round(tick.at)
        canvas.fill(LEFT, y, right - LEFT, 1, GRID)
        canvas.text(LEFT - 10 - text_width(tick.label), y - 7, tick.label, INK)
    rows = len(points)
    for row in round_values(0, rows - 1, TICKS):
        x = _x(int(row), rows, right)
        canvas.fill(x, TOP, 1, bottom - TOP, GRID)
        label = f"{points[int(row)].step:,}"
        canvas.text(min(x - text_width(label) // 2, WIDTH - text_width(label) - 4), bottom + 10, label, INK)
    canvas.text((LEFT + right) // 2 - text_width("step") // 2, HEIGHT - 26, "step", INK)
    canvas.fill(LEFT, TOP, 1, bottom - TOP, INK)
    canvas.fill(LEFT, bottom, right - LEFT, 1, INK)


def _columns(losses: Sequence[float | None], width: int) -> dict[int, list[float]]:
    """The losses that fall on each column of pixels."""
    columns: dict[int, list[float]] = {}
    for row, loss in enumerate(losses):
        if loss is not None:
            columns.setdefault(_x(row, len(losses), LEFT + width), []).append(loss)
    return columns


def _curve(canvas: Surface, columns: dict[int, list[float]], vertical: Scale, bottom: int, *, wide: int) -> None:
    """A band from lowest to highest where many rows share a column, and a line through the middle ones; grey, `wide`
    pixels, where a value is not finite.
    """
    before: tuple[int, float] | None = None
    line: list[tuple[int, float, int, float]] = []
    grey: set[int] = set()
    for x in sorted(columns):
        values = sorted(loss for loss in columns[x] if -1e300 < loss < 1e300)
        if len(values) < len(columns[x]):
            grey.update(range(max(x - wide // 2, LEFT), min(x - wide // 2 + wide, WIDTH - RIGHT)))
        if not values:
            before = None
            continue
        top, foot = round(vertical(values[-1])), round(vertical(values[0]))
        canvas.fill(x, top, 1, foot - top + 1, BAND)
        y = vertical(values[len(values) // 2])
        line.append((*(before or (x, y)), x, y))
        before = (x, y)
    for x in grey:
        canvas.fill(x, TOP, 1, bottom - TOP, BAD, 0.25)
    for x0, y0, x1, y1 in line:
        canvas.line(x0, y0, x1, y1, CURVE, thick=2)
        if x0 == x1:  # what begins here may be a lone value, which a line of no length would not show
            canvas.fill(x1 - 2, round(y1) - 2, 5, 5, CURVE)


def _marks(canvas: Surface, marks: Sequence[Mark], rows: int, right: int, bottom: int) -> None:
    for mark in marks:
        x, colour = _x(mark.row, rows, right), COLOURS.get(mark.kind, INK)
        for y in range(TOP, bottom, 8):
            canvas.fill(x - 1, y, 2, 5, colour, 0.8)
        for depth in range(10):
            canvas.fill(x - 9 + depth, TOP - 12 + depth, 2 * (9 - depth) + 1, 1, colour)


def _legend(canvas: Surface, marks: Sequence[Mark], title: str, vertical: Scale) -> None:
    shown = title if len(title) <= MAX_TITLE_CHARS else "..." + title[-MAX_TITLE_CHARS:]
    canvas.text(LEFT, 14, shown, INK)
    canvas.text(12, 44, "loss, log axis" if vertical.is_log else "loss", INK)
    kinds = {kind: sum(mark.kind is kind for mark in marks) for kind in COLOURS}
    parts = [(kind, f"{count} {kind.value.replace('_', ' ')}") for kind, count in kinds.items() if count]
    x = WIDTH - RIGHT - sum(text_width(text) + 44 for _, text in parts) + 20
    for kind, text in parts:
        canvas.fill(x, 44, 14, 14, COLOURS[kind])
        canvas.text(x + 20, 44, text, INK)
        x += text_width(text) + 44
    if not parts:
        canvas.text(WIDTH - RIGHT - text_width("no alarm"), 44, "no alarm", INK)
