"""The recoveries as one picture (SVG): loss over time, attempt by attempt, with what was done and what Rekindle did."""

from __future__ import annotations

import math
from collections.abc import Sequence

from localcloud.demo.report import Result
from localcloud.demo.story import TITLES, Fault, Recovery, StepSeen
from rekindle.drawing.scales import Scale
from rekindle.drawing.svg import Svg

WIDTH, HEIGHT = 1120, 460
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 128, 44
# Past participles for the title: what was done to this run, in the order in which it was done.
_DONE = {
    Fault.NODE: "struck by a failing GPU",
    Fault.KILL: "killed",
    Fault.FREEZE: "frozen",
    Fault.NAN: "poisoned",
    Fault.SPIKE: "led astray",
    Fault.CHECKPOINT: "restarted",
}
# Readable on white and on dark: GitHub shows the same file on both.
INK, FAINT, FAULT, BACK, PATHS = "#57606a", "#8c959f", "#cf222e", "#1a7f37", ("#0969da", "#8250df")


def draw(steps: Sequence[StepSeen], result: Result) -> str:
    """The picture of one demo run."""
    svg = Svg(WIDTH, HEIGHT, title="Loss over time of a run that was disturbed and recovered")
    finite = [step for step in steps if math.isfinite(step.loss)]
    if not finite:
        svg.text(20, 40, "no step was taken", INK)
        return str(svg)
    began = min(step.at for step in steps)
    end_s = max((step.at - began).total_seconds() for step in steps) or 1.0
    x = Scale(0, end_s, LEFT, WIDTH - RIGHT)
    y = Scale(min(step.loss for step in finite), max(step.loss for step in finite), HEIGHT - BOTTOM, TOP)
    svg.text(LEFT, 24, _title(result), INK, size=17, bold=True)
    _axes(svg, x, y)
    for index, name in enumerate(dict.fromkeys(step.attempt for step in sorted(steps, key=lambda step: step.at))):
        own = [(x((point.at - began).total_seconds()), y(point.loss)) for point in finite if point.attempt == name]
        svg.polyline(own, PATHS[index % 2], width=1.6, title=name)
    for index, recovery in enumerate(result.recoveries):
        # Labels of neighbours stand in turn on two levels, because the next fault may come soon.
        _recovery(svg, recovery, (recovery.injection.at - began).total_seconds(), x, level=index % 2)
    return str(svg)


def _title(result: Result) -> str:
    """What was done to the run, and whether it came back from all of it."""
    done = ", ".join(dict.fromkeys(_DONE[recovery.fault] for recovery in result.recoveries)) or "left alone"
    has_recovered = result.recoveries and all(recovery.mttr_s is not None for recovery in result.recoveries)
    return f"One training run, two workers: {done}.{' It recovers without help.' if has_recovered else ''}"


def _axes(svg: Svg, x: Scale, y: Scale) -> None:
    floor = HEIGHT - BOTTOM
    svg.line(LEFT, floor, WIDTH - RIGHT, floor, FAINT)
    svg.text(WIDTH - RIGHT, HEIGHT - 8, "seconds", INK, anchor="end")
    svg.text(12, TOP - 6, "loss", INK)
    for second in range(0, int(x.high) + 1, 10):
        svg.text(x(second), floor + 18, str(second), INK, anchor="middle")
    for loss in (y.low, (y.low + y.high) / 2, y.high):
        svg.text(LEFT - 6, y(loss) + 4, f"{loss:.1f}", INK, anchor="end")


def _recovery(svg: Svg, recovery: Recovery, at_s: float, x: Scale, *, level: int) -> None:
    floor, left = HEIGHT - BOTTOM, x(at_s)
    label_y = TOP - 26 - 36 * level
    # Near the right border a label stands left of its line.
    at, anchor = (left + 4, "start") if left < WIDTH - 220 else (left - 4, "end")
    svg.line(left, label_y - 28, left, floor, FAULT, dash="4 3")
    svg.text(at, label_y - 18, TITLES[recovery.fault], FAULT, anchor=anchor, bold=True)
    if recovery.mttr_s is None:
        return
    right = x(at_s + recovery.mttr_s)
    label = f"recovered in {recovery.mttr_s:.0f} s"
    if recovery.resumed_at_step is not None:
        label += f", from step {recovery.resumed_at_step}"
    svg.rect(left, TOP - 16, right - left, floor - TOP + 16, BACK, opacity=0.1)
    svg.line(right, TOP - 16, right, floor, BACK)
    svg.text(at, label_y, label, BACK, size=12, anchor=anchor)
