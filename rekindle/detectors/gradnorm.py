"""Has the gradient's norm jumped? A hint that a loss spike may follow; never a reason to act by itself.

On the open curves that log both, docs/detection.md counts how often it came first, and how often it cried wolf.
"""

from __future__ import annotations

import math

from rekindle.detectors.points import Point, Severity, Trouble, Verdict
from rekindle.detectors.window import SortedWindow

WINDOW = 128
MIN_ROWS = 20
THRESHOLD_Z = 8.0
RATIO = 3.0  # times the median
UPPER, UPPER_Z = 0.8, 0.8416
MIN_SPREAD = 0.05  # of the norm
QUIET_ROWS = 10  # after which the next far row is news


class GradNorm:
    """One `watch` for each stretch of far or non-finite norms. Norms that are not positive are passed over."""

    __slots__ = ("_quiet", "_window")

    def __init__(self) -> None:
        self._window = SortedWindow(WINDOW)
        self._quiet = QUIET_ROWS

    def update(self, point: Point) -> Verdict | None:
        """Judge and learn one row."""
        norm = point.grad_norm
        if norm is None:
            return None
        if not math.isfinite(norm):
            return self._far(point, {"grad_norm": str(norm)}, "not finite")
        if norm <= 0:
            return None
        value = math.log(norm)
        window, values = self._window, self._window.values
        if len(values) < MIN_ROWS:
            window.add(value)
            return None
        usual = values[len(values) // 2]
        spread = max((values[int(UPPER * (len(values) - 1))] - usual) / UPPER_Z, MIN_SPREAD)
        score = (value - usual) / spread
        if score <= THRESHOLD_Z or value - usual < math.log(RATIO):
            self._quiet += 1
            window.add(value)
            return None
        window.add(usual + THRESHOLD_Z * spread)
        evidence: dict[str, float | int | str] = {
            "grad_norm": norm,
            "baseline": math.exp(usual),
            "spread": spread,
            "score": score,
            "threshold": THRESHOLD_Z,
            "window_rows": len(values),
        }
        return self._far(point, evidence, "far above the median")

    def _far(self, point: Point, evidence: dict[str, float | int | str], rule: str) -> Verdict | None:
        is_news = self._quiet >= QUIET_ROWS
        self._quiet = 0
        if not is_news:
            return None
        return Verdict(kind=Trouble.GRAD_NORM, severity=Severity.WATCH, rule=rule, step=point.step, evidence=evidence)
