"""All that can be seen in a loss, in one watch."""

from __future__ import annotations

import math
from dataclasses import replace
from math import inf

from rekindle.detectors.divergence import FAR_BEYOND_FIRST, Divergence
from rekindle.detectors.excursion import HEAL_ROWS, End
from rekindle.detectors.health import Health
from rekindle.detectors.kinds import Informativeness, LossKind
from rekindle.detectors.nonfinite import REARM_AFTER, NonFinite
from rekindle.detectors.points import Point, Severity, Trouble, Verdict
from rekindle.detectors.scale import PROGRESS
from rekindle.detectors.spike import LossSpike

PLANNED_STEPS = 500  # for which a change explains a rise, unless it says otherwise
MOST_STEPS = 20_000  # more than that is asked of no detector: it would be blind
DECAYED = 0.8  # of its peak: a learning rate that has come down so far
RAISED = 1.25  # times the lowest since: has begun again


class Planned:
    """The window in which a rise is explained. Steps are the run's own."""

    __slots__ = ("_is_open", "_until")

    def __init__(self) -> None:
        self._until = 0
        self._is_open = False

    def expect(self, step: int, steps: int | None = None) -> None:
        """A change at `step`; `steps` it may take, by default `PLANNED_STEPS`, at most `MOST_STEPS`."""
        length = PLANNED_STEPS if steps is None or steps < 1 else min(steps, MOST_STEPS)
        until = step + length
        self._until = max(self._until, until) if self._is_open else until
        self._is_open = True

    def is_on(self, step: int) -> bool:
        """Whether a rise at this step is explained. A step far before the window is not in it: the run went back."""
        return self._is_open and self._until - 2 * MOST_STEPS <= step <= self._until

    def closes(self, step: int) -> bool:
        """Once, at the first row after the window: True."""
        if not self._is_open or self.is_on(step):
            return False
        self._is_open = False
        return True


class LearningRates:
    """Sees a learning rate begin again: a warm restart, a new cycle, a schedule that was rewound."""

    __slots__ = ("_lowest", "_peak")

    def __init__(self) -> None:
        self._peak = 0.0
        self._lowest = inf

    def update(self, rate: float) -> bool:
        """Whether the rate of this step begins again, after it had decayed. The first warm-up does not."""
        if not 0.0 < rate < inf:
            return False
        if rate < self._lowest:
            self._lowest = rate
        if self._lowest <= DECAYED * self._peak and rate >= RAISED * self._lowest:
            self._lowest = rate  # as it keeps rising it is reported again
            if rate >= self._peak * DECAYED:
                self._peak = rate
            return True
        if rate > self._peak:
            self._peak = self._lowest = rate
        return False


NOTHING: tuple[Verdict, ...] = ()
RESTART_TOLERANCE = 0.06  # of the way from the baseline back to one of the first losses


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
        "spike",
    )

    def __init__(self, kind: LossKind = LossKind.AUTO) -> None:
        self._meaning = Informativeness(kind)
        self._planned = Planned()
        self._rates = LearningRates()
        self.nonfinite = NonFinite()
        self.spike = LossSpike()
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
            verdict = self._judged(self._restart(verdict) or verdict)
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

    def _restart(self, verdict: Verdict) -> Verdict | None:
        """The discontinuity that a spike really is which lands on the run's first level; None for any other.

        A run that resumes without its weights (a checkpoint not found, a fresh initialisation under the old step
        counter) jumps back to the level it once began at: nothing heals it but a checkpoint.
        """
        scale = self.spike.scale
        value = scale.baseline + self.spike.worst
        first = min(scale.first, key=lambda start: abs(start - value), default=scale.baseline)
        way = first - scale.baseline
        if way <= 0 or way < scale.needs(PROGRESS) or abs(value - first) > RESTART_TOLERANCE * way:
            return None
        return replace(
            verdict,
            kind=Trouble.RESTART_DISCONTINUITY,
            rule="back at the first loss",
            evidence={**verdict.evidence, "first_loss": scale.loss_at(first)},
        )

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
