"""Has the loss gone up for good?

A spike does not come back, the level creeps up so slowly that no row stands out from the last, or the loss stands far
beyond what a model that has learned nothing loses: for that no noise and no baseline has to be known.
"""

from __future__ import annotations

from math import inf, log

from rekindle.detectors.excursion import GIVE_UP_ROWS, LOST_RISE, End
from rekindle.detectors.points import Point, Severity, Trouble, Verdict
from rekindle.detectors.scale import FIRST_ROWS
from rekindle.detectors.spike import LossSpike

CREEP_ROWS = 100  # rows in a row with the level far above the best one, or
CREEP_AGE = 0.05  # of all rows of the run, up to
CREEP_MOST = 2000  # rows: what creeps is slow, and so may be the answer
HIGHER = 1.25  # times the highest rise that the run has come back from by itself
BEYOND = log(6.0)  # times the first losses, in two rows, or
FAR_BEYOND = log(20.0)  # in one row
NEAR_ZERO = log(0.1)  # a first loss under this is no untrained model's, but a penalty's that begins at zero
FAR_BEYOND_FIRST = "far beyond the first losses"
GROWN = log(3.0)  # times the first losses: a level so high was reached by growing
YOUNG_ROWS = 1000  # of a run, for which its first losses are a measure: values that are learned grow beyond them later
BEYOND_Z = 5.0  # times what one row differs from the next, where that is known
CREEP_Z = 6.0  # and so many spreads: the best level of a long noisy run is a lucky one


class Divergence:
    """One verdict per divergence, `act`; of a loss that is far beyond the first ones, the kind is a spike, which a
    rollback answers. Shares its spike detector if given one.

    While `is_on`, `heal_to` is the value (see `LossScale`) that the level has to come back under.
    """

    __slots__ = (
        "_above",
        "_beyond",
        "_beyond_step",
        "_beyond_top",
        "_returned",
        "_since_step",
        "_top",
        "heal_to",
        "is_on",
        "onset_step",
        "spike",
    )

    def __init__(self, spike: LossSpike) -> None:
        self.spike = spike
        self.is_on = False
        self.onset_step: int | None = None
        self.heal_to = 0.0
        self._above = 0
        self._beyond = 0  # rows in a row, from `_beyond_step` on
        self._beyond_step = 0
        self._beyond_top = -inf  # the highest of those that were acted on: the run has come back from it
        self._since_step = 0
        self._top = 0.0  # the highest rise of the level over the best one, since it was last half as high
        self._returned = 0.0

    def judge(self, point: Point) -> Verdict | None:
        """After the spike detector has seen the row."""
        spike, scale = self.spike, self.spike.scale
        if self.is_on:
            if scale.level < self.heal_to:
                self.is_on = False
                self._above = 0
            return None
        if spike.ended is End.GIVEN_UP:
            self.start(spike.onset_step, spike.heal_to)
            return self._verdict(point, "no way back", GIVE_UP_ROWS) if not spike.is_known_level else None
        if self._is_beyond(point):
            self._beyond_top = scale.value
            self.start(self._beyond_step, max(scale.first))
            return self._verdict(point, FAR_BEYOND_FIRST, self._beyond, Trouble.LOSS_SPIKE)
        rise = scale.level - scale.best
        if rise > self._top:
            self._top = rise
        elif rise < self._top / 2:
            self._returned = max(self._returned, self._top)
            self._top = rise
        is_high = rise > HIGHER * self._returned and rise >= CREEP_Z * scale.spread and rise >= scale.needs(LOST_RISE)
        if not is_high or spike.is_on or not scale.is_lost(rise):
            self._above = 0
            return None
        if self._above == 0:
            self._since_step = point.step
        self._above += 1
        if self._above < min(max(CREEP_ROWS, CREEP_AGE * scale.rows), CREEP_MOST):
            return None
        self.start(self._since_step, scale.best + scale.needs(LOST_RISE) / 2)
        return self._verdict(point, "level creeps up", self._above)

    def _is_beyond(self, point: Point) -> bool:
        """Whether the row, or the row and the one before it, lost many times what the run began with."""
        scale = self.spike.scale
        loss = point.loss or 0.0
        if loss <= 0 or not scale.is_log or not FIRST_ROWS < scale.rows <= YOUNG_ROWS:
            return False
        first = max(scale.first)
        rise = scale.value - first
        if rise <= BEYOND or first < NEAR_ZERO or scale.value < self._beyond_top + GROWN or scale.level - first > GROWN:
            self._beyond = 0
            return False
        is_out = scale.value - scale.level >= max(BEYOND_Z * scale.noise_of_late, BEYOND)
        if is_out and self._beyond == 0:
            self._beyond_step = point.step
        self._beyond = self._beyond + 1 if is_out else 0
        return self._beyond > 1 or (is_out and rise > FAR_BEYOND)

    def settle(self) -> None:
        """Make the present level the best one, unless a divergence lasts."""
        if not self.is_on:
            self.spike.scale.best = self.spike.scale.level
            self._above = 0
            self._top = 0.0

    def start(self, onset_step: int | None, heal_to: float) -> None:
        """The loss is off from now on, and has been since `onset_step`."""
        self.is_on = True
        self.onset_step = onset_step
        self.heal_to = heal_to

    def _verdict(self, point: Point, rule: str, rows: int, kind: Trouble = Trouble.DIVERGENCE) -> Verdict:
        scale = self.spike.scale
        return Verdict(
            kind=kind,
            severity=Severity.ACT,
            rule=rule,
            step=point.step,
            evidence={
                "loss": point.loss if point.loss is not None else "none",
                "level": scale.loss_at(scale.level),
                "best_level": scale.loss_at(scale.best),
                "has_to_fall_under": scale.loss_at(self.heal_to),
                "spread": scale.spread,
                "rows": rows,
                "onset_step": self.onset_step if self.onset_step is not None else point.step,
            },
        )
