"""All that can be seen in a loss, in one watch."""

from __future__ import annotations

import math
from dataclasses import replace

from rekindle.detectors.divergence import FAR_BEYOND_FIRST, Divergence
from rekindle.detectors.excursion import HEAL_ROWS, End
from rekindle.detectors.kinds import Informativeness, LossKind
from rekindle.detectors.nonfinite import REARM_AFTER, NonFinite
from rekindle.detectors.planned import LearningRates, Planned
from rekindle.detectors.points import Health, Point, Severity, Trouble, Verdict
from rekindle.detectors.restart import RestartDiscontinuity
from rekindle.detectors.spike import LossSpike

NOTHING: tuple[Verdict, ...] = ()


class LossWatch:
    """Feeds one run's rows to every loss detector, and tells when the run is in trouble.

    `onset_step` is the first bad step of the trouble that lasts, or else of the newest one; `healed_step` is the step
    at which the newest trouble was seen to be over, None while it lasts. One owner; no clock; constant memory; rows
    may come one by one or in batches. Never raises, whatever floats it is fed. A `kind` that is only watched, one whose
    rows show that it says little, and a change that was announced make a `watch` of what would be an `act`.
    """

    __slots__ = (
        "_finite_rows",
        "_is_in_trouble",
        "_is_restart",
        "_meaning",
        "_planned",
        "_rates",
        "divergence",
        "healed_step",
        "nonfinite",
        "onset_step",
        "restart",
        "spike",
    )

    def __init__(self, kind: LossKind = LossKind.AUTO) -> None:
        self._meaning = Informativeness(kind)
        self._planned = Planned()
        self._rates = LearningRates()
        self.nonfinite = NonFinite()
        self.spike = LossSpike()
        self.restart = RestartDiscontinuity(self.spike)
        self.divergence = Divergence(self.spike)
        self.onset_step: int | None = None
        self.healed_step: int | None = None
        self._finite_rows = REARM_AFTER  # since the last bad value, and no more than the detector needs to know
        self._is_in_trouble = False
        self._is_restart = False

    @property
    def health(self) -> Health:
        """How the loss does at the last row."""
        if self._finite_rows < HEAL_ROWS:
            return Health.NON_FINITE
        if not self._is_in_trouble:
            is_up = self.spike.is_on or self.divergence.is_on or self.spike.is_watching
            return Health.WATCH if is_up else Health.OK if self.spike.scale.is_ready else Health.UNKNOWN
        if self.divergence.is_on:
            return Health.DIVERGING
        if self.spike.is_returning:  # one row of 100 steps may be back where five rows are 500 steps away
            return Health.WATCH
        if self.spike.is_on:
            return Health.SPIKING
        if self.spike.is_watching:
            return Health.WATCH
        return Health.OK if self.spike.scale.is_ready else Health.UNKNOWN

    @property
    def baseline(self) -> float | None:
        """The lowest recent level, as a loss; None before it is known."""
        scale = self.spike.scale
        return scale.loss_at(scale.baseline) if scale.is_ready else None

    def expect(self, step: int, steps: int | None = None) -> None:
        """The script changes something at `step` on purpose, which may lift the loss for so many steps.

        A rise in that time is a `watch`, unless it goes far beyond a new level; then the level of that time is the
        baseline. `steps` is 500 by default and 20,000 at most.
        """
        self._planned.expect(step, steps)

    def update(self, point: Point) -> tuple[Verdict, ...]:
        """Judge and learn one row. A row without a loss says nothing of it."""
        if point.lr is not None and self._rates.update(point.lr):
            self._planned.expect(point.step)
        loss = point.loss
        if loss is None:
            return NOTHING
        verdict = self._finite(point) if -math.inf < loss < math.inf else self._bad_value(point, loss)
        return NOTHING if verdict is None else (verdict,)

    def _finite(self, point: Point) -> Verdict | None:
        spike, divergence = self.spike, self.divergence
        if self._finite_rows < REARM_AFTER:
            self._finite_rows += 1
            self.nonfinite.update(0.0)
        spike.is_planned = is_planned = self._planned.is_on(point.step)
        if self._planned.closes(point.step):
            spike.settle()
            divergence.settle()
        if not spike.scale.is_log:
            self._meaning.see(point.loss or 0.0)
        verdict = spike.update(point)
        if verdict is not None and verdict.severity is Severity.ACT:
            verdict = self._judged(self.restart.judge(verdict) or verdict)
            if verdict.severity is Severity.ACT:
                self._is_restart = verdict.kind is Trouble.RESTART_DISCONTINUITY
                self._begin(spike.onset_step)
        if is_planned and spike.ended is not End.GIVEN_UP:
            divergence.settle()
        verdict = self._worse(verdict, divergence.judge(point))
        if self._is_in_trouble and not (spike.is_on or divergence.is_on or self._finite_rows < HEAL_ROWS):
            self._is_in_trouble = self._is_restart = False
            self.healed_step = point.step
        return verdict

    def _worse(self, verdict: Verdict | None, drift: Verdict | None) -> Verdict | None:
        """What counts of what is seen in the row and of the drift up to it."""
        if drift is None or (drift.rule == FAR_BEYOND_FIRST and self._is_in_trouble):
            return verdict
        drift = self._judged(drift)
        if drift.severity is Severity.ACT:
            self._begin(self.divergence.onset_step)
        is_more = verdict is None or (verdict.severity, drift.severity) == (Severity.WATCH, Severity.ACT)
        return drift if is_more and not self._is_restart else verdict

    def _judged(self, verdict: Verdict) -> Verdict:
        """The verdict, or the `watch` that is left of it."""
        why = self._meaning.why_little(self.spike.scale, needs_baseline=verdict.rule != FAR_BEYOND_FIRST)
        if not why:
            return verdict
        return replace(verdict, severity=Severity.WATCH, evidence={**verdict.evidence, "only_watched": why})

    def _bad_value(self, point: Point, loss: float) -> Verdict | None:
        state = self.nonfinite.update(loss)
        self._finite_rows = 0
        self._begin(point.step)
        if state is None:
            return None
        return Verdict(
            kind=Trouble.NON_FINITE,
            severity=Severity.ACT,
            rule="loss is not finite",
            step=point.step,
            evidence={"loss": str(loss)},
        )

    def _begin(self, onset_step: int | None) -> None:
        """Trouble begins; or gets worse, and then its onset stays."""
        if not self._is_in_trouble:
            self._is_in_trouble = True
            self.onset_step = onset_step
        self.healed_step = None
