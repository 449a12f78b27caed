"""Is this the loss of a model that has learned nothing?

A run that resumes without its weights (a checkpoint not found, a fresh initialisation under the old step counter) jumps
back to the level it once began at. It needs another answer than a spike: nothing heals it but a checkpoint.
"""

from __future__ import annotations

from rekindle.detectors.points import Point, Severity, Trouble, Verdict
from rekindle.detectors.scale import PROGRESS
from rekindle.detectors.spike import LossSpike

TOLERANCE = 0.06  # of the way from the baseline back to one of the first losses


class RestartDiscontinuity:
    """Tells a spike that lands on the run's first level from other spikes. Shares its spike detector if given one."""

    __slots__ = ("spike",)

    def __init__(self, spike: LossSpike | None = None) -> None:
        self.spike = spike if spike is not None else LossSpike()

    def update(self, point: Point) -> Verdict | None:
        """Judge and learn one row."""
        return self.judge(self.spike.update(point))

    def judge(self, verdict: Verdict | None) -> Verdict | None:
        """The discontinuity that the spike's verdict of the same row really is, or None."""
        if verdict is None or verdict.severity is not Severity.ACT:
            return None
        scale = self.spike.scale
        value = scale.baseline + self.spike.worst
        first = min(scale.first, key=lambda start: abs(start - value), default=scale.baseline)
        way = first - scale.baseline
        if way <= 0 or way < scale.needs(PROGRESS) or abs(value - first) > TOLERANCE * way:
            return None
        return Verdict(
            kind=Trouble.RESTART_DISCONTINUITY,
            severity=Severity.ACT,
            rule="back at the first loss",
            step=verdict.step,
            evidence={**verdict.evidence, "first_loss": scale.loss_at(first)},
        )
