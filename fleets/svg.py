"""The plan as a picture: lost time by checkpoint interval, and GPU-hours lost by number of spares. SVG text; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from fleets.intervals import Tried
from fleets.plan import Plan, Spares

WIDTH: Final = 1120
HEIGHT: Final = 460
TOP: Final = 70
BOTTOM: Final = 390
LEFT: Final = (80, 500)  # of the curve
RIGHT: Final = (650, 1090)  # of the bars
MAX_BARS: Final = 8
INK: Final = "#282828"
GRID: Final = "#e1e1e1"
OURS: Final = "#1f62a8"
THEIRS: Final = "#d64520"
MARK: Final = "#14825a"
FONT: Final = 'font-family="sans-serif" font-size="12"'


def draw(plan: Plan) -> str:
    """One SVG document."""
    title = (
        f"{plan.setting.gpus:,} GPUs ({plan.setting.nodes:,} x {plan.wanted.instance}), a failure every "
        f"{plan.mean_s / 3600:.3g} h, {plan.wanted.days:g} days"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT[0], 28, title, size=15, anchor="start"),
        *_curves(plan),
        *_bars(plan),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "middle", fill: str = INK) -> str:
    font = FONT.replace('"12"', f'"{size}"')
    return f'<text x="{x:.1f}" y="{y:.1f}" {font} text-anchor="{anchor}" fill="{fill}">{escape(text)}</text>'


def _line(x0: float, y0: float, x1: float, y1: float, colour: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}"{dash}/>'


def _curves(plan: Plan) -> list[str]:
    """Lost share of the time by interval, on a logarithmic axis of minutes."""
    ours, theirs = _lost(plan.curve), _lost(plan.curve_without)
    intervals = [one.interval_s / 60.0 for one in plan.curve]
    low, high = math.log10(intervals[0]), math.log10(intervals[-1])
    top = max(*ours, *theirs, 1e-6) * 1.1

    def x_of(minutes: float) -> float:
        share = (math.log10(minutes) - low) / ((high - low) or 1.0)
        return LEFT[0] + min(max(share, 0.0), 1.0) * (LEFT[1] - LEFT[0])

    def y_of(lost: float) -> float:
        return BOTTOM - lost / top * (BOTTOM - TOP)

    parts = [_text(LEFT[0], TOP - 14, "time lost, by minutes between saves", anchor="start")]
    for number in range(6):
        lost = top * number / 5
        parts += [
            _line(LEFT[0], y_of(lost), LEFT[1], y_of(lost), GRID),
            _text(LEFT[0] - 8, y_of(lost) + 4, f"{lost:.1%}", anchor="end"),
        ]
    for minutes in (intervals[0], intervals[len(intervals) // 2], intervals[-1]):
        parts.append(_text(x_of(minutes), BOTTOM + 18, f"{minutes:.3g}"))
    for values, colour, label, offset in (
        (ours, OURS, "with Rekindle", 40),
        (theirs, THEIRS, "time-out and a person", 58),
    ):
        points = " ".join(
            f"{x_of(minutes):.1f},{y_of(lost):.1f}" for minutes, lost in zip(intervals, values, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(LEFT[0], BOTTOM + offset, label, anchor="start", fill=colour))
    marks = (
        ("Young", plan.young_s, 36),
        ("Daly", plan.daly_s, 50),
        ("simulated", plan.simulated.interval_s, 64),
    )
    for label, seconds, offset in marks:
        x = x_of(seconds / 60.0)
        parts.append(_line(x, TOP, x, BOTTOM, MARK, dashed=True))
        parts.append(_text(LEFT[1], BOTTOM + offset, f"{label} {seconds / 60:.1f} min", anchor="end", fill=MARK))
    return parts


def _lost(points: Sequence[Tried]) -> list[float]:
    return [1.0 - one.ettr for one in points]


def _bars(plan: Plan) -> list[str]:
    """GPU-hours lost without Rekindle, and with it by number of spares."""
    shown = _shown(plan)
    bars = [("without", plan.without.gpu_hours_lost, THEIRS)]
    for one in shown:
        label = f"{one.count} spare{'s' * (one.count != 1)}"
        bars.append((label, one.row.gpu_hours_lost, MARK if one.count == plan.pays else OURS))
    top = max(*(hours for _, hours, _ in bars), 1e-6) * 1.1
    room = (RIGHT[1] - RIGHT[0]) / len(bars)
    parts = [
        _text(
            RIGHT[0],
            TOP - 14,
            f"GPU-hours lost in {plan.wanted.days:g} days, spares' own in it; {plan.pays} pay",
            anchor="start",
        ),
        _line(RIGHT[0], BOTTOM, RIGHT[1], BOTTOM, INK),
    ]
    for number, (label, hours, colour) in enumerate(bars):
        x, tall = RIGHT[0] + number * room, hours / top * (BOTTOM - TOP)
        parts += [
            f'<rect x="{x + room * 0.15:.1f}" y="{BOTTOM - tall:.1f}" width="{room * 0.7:.1f}" height="{tall:.1f}" '
            f'fill="{colour}"/>',
            _text(x + room / 2, BOTTOM - tall - 6, f"{hours:,.0f}", size=11),
            _text(x + room / 2, BOTTOM + 18, label, size=11),
        ]
    return parts


def _shown(plan: Plan) -> list[Spares]:
    """At most MAX_BARS, those that pay and those that were asked for among them."""
    needed = {plan.pays, plan.chosen.count}
    others = [one.count for one in plan.spares if one.count not in needed][: MAX_BARS - len(needed)]
    return [one for one in plan.spares if one.count in needed or one.count in others]
