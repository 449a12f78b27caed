"""The plan as a picture: lost time by checkpoint interval, and GPU-hours lost by number of spares. SVG text; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fleets.intervals import IntervalResult
from fleets.plan import Plan, Spares
from rekindle.drawing.scales import Scale
from rekindle.drawing.svg import Svg

WIDTH: Final = 1120
HEIGHT: Final = 500
TOP: Final = 70
BOTTOM: Final = 390
LEFT: Final = (80, 500)  # of the curve
RIGHT: Final = (650, 1090)  # of the bars
MAX_BARS: Final = 6
INK: Final = "#282828"
GRID: Final = "#e1e1e1"
OURS: Final = "#1f62a8"
THEIRS: Final = ("#d64520", "#b98a00", "#7a4fa3")  # of the baselines, in their order
MARK: Final = "#14825a"
SMALL: Final = 12


def draw(plan: Plan) -> str:
    """One SVG document."""
    title = (
        f"{plan.setting.gpus:,} GPUs ({plan.setting.nodes:,} x {plan.wanted.instance}), a failure every "
        f"{plan.mean_s / 3600:.3g} h, {plan.wanted.days:g} days"
    )
    svg = Svg(WIDTH, HEIGHT, title=title, background="#ffffff")
    svg.text(LEFT[0], 28, title, INK, size=15)
    _curves(svg, plan)
    _bars(svg, plan)
    return str(svg)


def _curves(svg: Svg, plan: Plan) -> None:
    """Lost share of the time by interval, on a logarithmic axis of minutes."""
    curves = [("with Rekindle", OURS, _lost(plan.curve))]
    curves += [(one.row.name, colour, _lost(one.curve)) for one, colour in zip(plan.baselines, THEIRS, strict=True)]
    intervals = [point.interval_s / 60.0 for point in plan.curve]
    top = max(1e-6, *(lost for _, _, values in curves for lost in values)) * 1.1
    x_of = Scale(intervals[0], intervals[-1], *LEFT, is_log=True)
    y_of = Scale(0, top, BOTTOM, TOP)
    svg.text(LEFT[0], TOP - 14, "time lost, by minutes between saves", INK, size=SMALL)
    for number in range(6):
        lost = top * number / 5
        svg.line(LEFT[0], y_of(lost), LEFT[1], y_of(lost), GRID)
        svg.text(LEFT[0] - 8, y_of(lost) + 4, f"{lost:.1%}", INK, size=SMALL, anchor="end")
    for minutes in (intervals[0], intervals[len(intervals) // 2], intervals[-1]):
        svg.text(x_of(minutes), BOTTOM + 18, f"{minutes:.3g}", INK, size=SMALL, anchor="middle")
    for number, (label, colour, values) in enumerate(curves):
        svg.polyline(zip(map(x_of, intervals), map(y_of, values), strict=True), colour, width=2)
        svg.text(LEFT[0], BOTTOM + 40 + 18 * number, label, colour, size=SMALL)
    marks = (
        ("Young", plan.young_s, 36),
        ("Daly", plan.daly_s, 50),
        ("simulated", plan.simulated.interval_s, 64),
    )
    for label, seconds, offset in marks:
        x = x_of(seconds / 60.0)
        svg.line(x, TOP, x, BOTTOM, MARK, dash="5 4")
        svg.text(LEFT[1], BOTTOM + offset, f"{label} {seconds / 60:.1f} min", MARK, size=SMALL, anchor="end")


def _lost(points: Sequence[IntervalResult]) -> list[float]:
    return [1.0 - point.ettr for point in points]


def _bars(svg: Svg, plan: Plan) -> None:
    """GPU-hours lost under each baseline, in its curve's colour, and with Rekindle by number of spares."""
    shown = _shown(plan)
    bars = [("", one.row.gpu_hours_lost, colour) for one, colour in zip(plan.baselines, THEIRS, strict=True)]
    for stock in shown:
        label = f"{stock.count} spare{'s' * (stock.count != 1)}"
        bars.append((label, stock.row.gpu_hours_lost, MARK if stock.count == plan.pays else OURS))
    top = max(*(hours for _, hours, _ in bars), 1e-6) * 1.1
    room = (RIGHT[1] - RIGHT[0]) / len(bars)
    heading = f"GPU-hours lost in {plan.wanted.days:g} days, spares' own in it; {plan.pays} pay"
    svg.text(RIGHT[0], TOP - 14, heading, INK, size=SMALL)
    svg.line(RIGHT[0], BOTTOM, RIGHT[1], BOTTOM, INK)
    for number, (label, hours, colour) in enumerate(bars):
        x, tall = RIGHT[0] + number * room, hours / top * (BOTTOM - TOP)
        svg.rect(x + room * 0.15, BOTTOM - tall, room * 0.7, tall, colour)
        svg.text(x + room / 2, BOTTOM - tall - 6, f"{hours:,.0f}", INK, size=11, anchor="middle")
        svg.text(x + room / 2, BOTTOM + 18, label, INK, size=11, anchor="middle")


def _shown(plan: Plan) -> list[Spares]:
    """At most MAX_BARS, those that pay and those that were asked for among them."""
    needed = {plan.pays, plan.chosen.count}
    others = [stock.count for stock in plan.spares if stock.count not in needed][: MAX_BARS - len(needed)]
    return [stock for stock in plan.spares if stock.count in needed or stock.count in others]
