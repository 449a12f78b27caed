"""All that can be seen in a loss, in one watch."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from rekindle.detectors.points import Evidence, Health, Point, Severity, Trouble, Verdict

WINDOW = 64
MIN_SAMPLES = 12
ACT_Z = 8.0
ACT_RISE = 0.05  # of the baseline
HEAL_Z = 4.0
DIVERGED_AFTER = 100  # points above the baseline without a return
HEALED_AFTER = 3  # points back at the baseline
CONFIRM = 2


class LossWatch:
    """Feeds one run's loss, point by point, and tells when it is in trouble.

    `onset_step` is the first bad step of the trouble that goes on, or else of the newest one; `healed_step` is the step
    at which the newest trouble was seen to be over, None while it goes on. One owner; no clock; constant memory.
    """

    def __init__(self) -> None:
        self.health = Health.UNKNOWN
        self.onset_step: int | None = None
        self.healed_step: int | None = None
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._bad = 0
        self._good = 0
        self._first_bad_step = 0
        self._first_bad: float = 0.0

    @property
    def baseline(self) -> float | None:
        """The median of the healthy losses of late; None before the first few."""
        return self._sorted[len(self._sorted) // 2] if len(self._sorted) >= MIN_SAMPLES else None

    def update(self, point: Point) -> tuple[Verdict, ...]:
        """Learn one point. Never raises; a point without a loss says nothing."""
        loss = point.loss
        if loss is None:
            return ()
        if not math.isfinite(loss):
            return self._non_finite(point, loss)
        baseline = self.baseline
        if baseline is None:
            self._learn(loss)
            return ()
        spread = self._spread(baseline)
        score = (loss - baseline) / spread if spread > 0 else 0.0
        is_high = score > ACT_Z and loss - baseline > ACT_RISE * abs(baseline)
        in_trouble = self.health in (Health.SPIKING, Health.DIVERGING, Health.NON_FINITE)
        if is_high or (in_trouble and score > HEAL_Z):
            return self._high(point, loss, baseline, spread, score)
        self._bad = 0
        self._learn(loss)
        if in_trouble:
            self._good += 1
            if self._good >= HEALED_AFTER:
                self.health = Health.OK
                self.healed_step = point.step
        else:
            self.health = Health.OK
        return ()

    def _non_finite(self, point: Point, loss: float) -> tuple[Verdict, ...]:
        self._good = 0
        if self.health is Health.NON_FINITE:
            return ()
        if self.health not in (Health.SPIKING, Health.DIVERGING):
            self.onset_step = point.step
        self.health = Health.NON_FINITE
        self.healed_step = None
        value = "nan" if math.isnan(loss) else str(loss)
        return (
            Verdict(
                kind=Trouble.NON_FINITE,
                severity=Severity.ACT,
                rule="loss is not finite",
                step=point.step,
                evidence={"value": value},
            ),
        )

    def _high(self, point: Point, loss: float, baseline: float, spread: float, score: float) -> tuple[Verdict, ...]:
        self._good = 0
        self._bad += 1
        if self._bad == 1:
            self._first_bad_step = point.step
        evidence = {
            "loss": loss,
            "baseline": baseline,
            "spread": spread,
            "score": score,
            "threshold": ACT_Z,
            "window": len(self._sorted),
            "points": self._bad,
        }
        if self.health in (Health.SPIKING, Health.NON_FINITE):
            if self._bad < DIVERGED_AFTER:
                return ()
            self.health = Health.DIVERGING
            return (self._verdict(Trouble.DIVERGENCE, Severity.ACT, point.step, evidence),)
        if self.health is Health.DIVERGING:
            return ()
        if self._bad < CONFIRM:
            self.health = Health.WATCH
            return (self._verdict(Trouble.LOSS_SPIKE, Severity.WATCH, point.step, evidence),)
        self.health = Health.SPIKING
        self.onset_step = self._first_bad_step
        self.healed_step = None
        return (self._verdict(Trouble.LOSS_SPIKE, Severity.ACT, point.step, evidence),)

    @staticmethod
    def _verdict(kind: Trouble, severity: Severity, step: int, evidence: Evidence) -> Verdict:
        return Verdict(kind=kind, severity=severity, rule="robust z over the window", step=step, evidence=evidence)

    def _spread(self, baseline: float) -> float:
        """Half the width of the middle half, scaled to a normal's standard deviation."""
        ordered = self._sorted
        quarter = len(ordered) // 4
        return max((ordered[-1 - quarter] - ordered[quarter]) / 1.349, 1e-6 * abs(baseline))

    def _learn(self, loss: float) -> None:
        self._order.append(loss)
        insort(self._sorted, loss)
        if len(self._order) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
