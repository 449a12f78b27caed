"""The recoveries as one picture (SVG): loss over time, attempt by attempt, with what was done and what Rekindle did."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from localcloud.demo.report import Result
from localcloud.demo.story import TITLES, Fault, Recovery, StepSeen

Place = Callable[[float], float]  # from a value to a coordinate
WIDTH, HEIGHT = 1120, 460
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 128, 44
# Readable on white and on dark: GitHub shows the same file on both.
# Past participles for the title: what was done to this run, in the order in which it was done.
_DONE = {
    Fault.KILL: "killed",
    Fault.FREEZE: "frozen",
    Fault.NAN: "poisoned",
    Fault.SPIKE: "led astray",
    Fault.CHECKPOINT: "restarted",
}
INK, FAINT, FAULT, BACK, PATHS = "#57606a", "#8c959f", "#cf222e", "#1a7f37", ("#0969da", "#8250df")


def draw(steps: Sequence[StepSeen], result: Result) -> str:
    """The picture of one demo run."""
    finite = [step for step in steps if math.isfinite(step.loss)]
    if not finite:
        return _svg('<text x="20" y="40">no step was taken</text>')
    began = min(step.at for step in steps)
    end_s = max((step.at - began).total_seconds() for step in steps) or 1.0
    low, high = min(step.loss for step in finite), max(step.loss for step in finite)

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at_s / end_s

    def y(loss: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / ((high - low) or 1.0)

    parts = [f'<text x="{LEFT}" y="24" font-size="17" fill="{INK}" font-weight="600">{escape(_title(result))}</text>']
    parts += _axes(end_s, low, high, x, y)
    for index, name in enumerate(dict.fromkeys(step.attempt for step in sorted(steps, key=lambda step: step.at))):
        own = [step for step in finite if step.attempt == name]
        points = " ".join(f"{x((s.at - began).total_seconds()):.1f},{y(s.loss):.1f}" for s in own)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{PATHS[index % 2]}" stroke-width="1.6">'
            f"<title>{escape(name)}</title></polyline>"
        )
    for index, recovery in enumerate(result.recoveries):
        # Labels of neighbours stand in turn on two levels, because the next fault may come soon.
        parts += _recovery(recovery, (recovery.injection.at - began).total_seconds(), x, level=index % 2)
    return _svg("\n".join(parts))


def _title(result: Result) -> str:
    """What was done to the run, and whether it came back from all of it."""
    done = ", ".join(dict.fromkeys(_DONE[recovery.fault] for recovery in result.recoveries)) or "left alone"
    has_recovered = result.recoveries and all(recovery.mttr_s is not None for recovery in result.recoveries)
    return f"One training run, two workers: {done}.{' It comes back by itself.' if has_recovered else ''}"


def _axes(end_s: float, low: float, high: float, x: Place, y: Place) -> list[str]:
    floor = HEIGHT - BOTTOM
    parts = [
        f'<line x1="{LEFT}" y1="{floor}" x2="{WIDTH - RIGHT}" y2="{floor}" stroke="{FAINT}"/>',
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end" fill="{INK}">seconds</text>',
        f'<text x="12" y="{TOP - 6}" fill="{INK}">loss</text>',
    ]
    parts += [
        f'<text x="{x(second):.0f}" y="{floor + 18}" text-anchor="middle" fill="{INK}">{second}</text>'
        for second in range(0, int(end_s) + 1, 10)
    ]
    parts += [
        f'<text x="{LEFT - 6}" y="{y(loss) + 4:.0f}" text-anchor="end" fill="{INK}">{loss:.1f}</text>'
        for loss in (low, (low + high) / 2, high)
    ]
    return parts


def _recovery(recovery: Recovery, at_s: float, x: Place, *, level: int) -> list[str]:
    floor, left, title = HEIGHT - BOTTOM, x(at_s), escape(TITLES[recovery.fault])
    said_at = TOP - 26 - 36 * level
    # Near the right border a label stands left of its line.
    at, anchor = (left + 4, "start") if left < WIDTH - 220 else (left - 4, "end")
    parts = [
        f'<line x1="{left:.1f}" y1="{said_at - 28}" x2="{left:.1f}" y2="{floor}" stroke="{FAULT}" '
        'stroke-dasharray="4 3"/>',
        f'<text x="{at:.1f}" y="{said_at - 18}" text-anchor="{anchor}" fill="{FAULT}" font-weight="600">{title}</text>',
    ]
    if recovery.mttr_s is None:
        return parts
    right = x(at_s + recovery.mttr_s)
    said = f"recovered in {recovery.mttr_s:.0f} s"
    if recovery.resumed_at_step is not None:
        said += f", from step {recovery.resumed_at_step}"
    parts += [
        f'<rect x="{left:.1f}" y="{TOP - 16}" width="{right - left:.1f}" height="{floor - TOP + 16}" '
        f'fill="{BACK}" fill-opacity="0.10"/>',
        f'<line x1="{right:.1f}" y1="{TOP - 16}" x2="{right:.1f}" y2="{floor}" stroke="{BACK}"/>',
        f'<text x="{at:.1f}" y="{said_at}" text-anchor="{anchor}" fill="{BACK}" font-size="12">{escape(said)}</text>',
    ]
    return parts


def _svg(body: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img" '
        f'aria-label="Loss over time of a run that was disturbed and recovered">\n{body}\n</svg>\n'
    )
