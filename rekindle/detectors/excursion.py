"""One stretch in which the loss stands far above its baseline: is it the weights, or the data?

Data that is hard lifts the loss at once and lets it fall at once: the rows inside are no noisier than the rows before,
and the first ordinary batch is back at the baseline. Weights that were bent need time: the loss comes down slowly, or
swings about. A single stretch of hard documents, a domain, a changed batch or sequence length is of the first sort and
calls for nothing; the labelled spikes of docs/detection.md are of the second.

The rules count steps where a row stands for few of them; a row of `COARSE_STEPS` steps or more hides its shape.
"""

from __future__ import annotations

from math import inf

from rekindle.compat import StrEnum
from rekindle.detectors.scale import LEARNED, LossScale

COARSE_STEPS = 30  # steps per row from which a row hides the shape of a spike
COARSE_AT_ONCE = 0.50  # of the loss: so far up, one row of a coarse log is enough; below it takes a second
COARSE_HEAL_Z, COARSE_HEAL_RISE = 1.5, 0.03  # what "back" is for that second row
AT_ONCE = 2.5  # of the loss: 3.5 times the baseline is beyond hard data, and two rows are enough
AT_ONCE_Z = (
    5.0  # and so many times what one row differs from the next: noise as large as the loss reaches far by itself
)
LARGE = 0.50  # of the loss: so far up, a slow way down is enough
LARGE_Z = 3.0
LARGE_STEPS = 10  # of a log with several steps per row: what two rows and more stand for
SPARSE_STEPS = 5  # steps per row from which hard data is no longer a run of neighbours
TAIL_ROWS = 4  # on the slow way down, between the baseline and half way up
CLIMB_ROWS = 4  # each higher than the one before: batches are hard in no such order
DOUBLE = 0.80  # of the loss: a level about twice as high is the data's for a shorter while than this
DOUBLE_STEPS = 36
LONG_STEPS = 20  # smaller excursions that heal sooner are not worth a recovery
LONG_TAIL_ROWS = 8
EARLY_STEPS = 500  # of a run: a small excursion has no record to be judged by, and a recovery would save little
ALL_LOST = 0.9  # of the way from the first losses: weights that have learned nothing
SETTLED_MOVE = 1.8  # times the usual move from row to row; less is a plateau as calm as the run was before
WILD_MOVE = 2.5  # times the usual move, over
WILD_ROWS = 10  # rows at least: no new level, however planned the change
MOVE_CUT = 4.0  # a single row counts no more than so many usual moves
MEAN_MOVE = 1.128  # of the difference of two normal values, in standard deviations: 2 / sqrt(pi)
TWICE = "stays at twice the loss"
FAR_UP = "far up"  # the rule that asks for no more than two rows
HEAL_Z = 3.0
HEAL_RISE = 0.05  # back within 5 % of the baseline is back, however quiet the curve was
HEAL_ROWS = 5  # rows in a row that are back
GIVE_UP_ROWS = 100  # after so many rows above the old baseline the run is judged by a new one
RETURNING = 3  # times as many for one that was acted on and is more than half of the way down again
LOST_RISE = 0.30  # of the loss: a run that then stands less above its old baseline has found its way back, slowly


class End(StrEnum):
    """How an excursion ended, at the row just fed."""

    NOT = "not"
    HEALED = "healed"
    GIVEN_UP = "given_up"  # far up still, after `GIVE_UP_ROWS`
    SETTLED = "settled"  # on a new level, as calm as the old one


class Excursion:
    """The record of one excursion, of fixed size. `add` each row; then ask `trouble` and `end`."""

    __slots__ = (
        "_climb",
        "_gap",
        "_is_early",
        "_lasts",
        "_left",
        "_moved",
        "_moves",
        "_needs",
        "_noise",
        "_previous",
        "_tail",
        "acted_row",
        "acted_rule",
        "good",
        "has_acted",
        "heal_to",
        "reference",
        "rows",
        "start_step",
        "worst",
    )

    def __init__(self, scale: LossScale, *, start_step: int, worst: float, rows: int) -> None:
        """At the row by which the sum was reached; `rows` of them since it left zero, the highest `worst`."""
        self.start_step = start_step
        self.reference = scale.baseline
        heal_z, heal_rise = (HEAL_Z, HEAL_RISE) if scale.gap < COARSE_STEPS else (COARSE_HEAL_Z, COARSE_HEAL_RISE)
        self.heal_to = scale.baseline + max(scale.usual + heal_z * scale.spread, scale.needs(heal_rise))
        self.worst = worst
        self.rows = rows
        self.good = 0  # rows in a row that are back
        self.has_acted = False
        self.acted_row = 0
        self.acted_rule = ""
        self._gap = max(scale.gap, 1)
        self._is_early = scale.rows * scale.gap < EARLY_STEPS
        self._noise = noise = scale.noise
        self._needs = (
            max(scale.needs(AT_ONCE), AT_ONCE_Z * noise),
            max(scale.needs(LARGE), LARGE_Z * noise),
            scale.needs(COARSE_AT_ONCE),
            max(scale.needs(DOUBLE), LARGE_Z * noise),
            ALL_LOST * scale.way if scale.way >= scale.needs(LEARNED) else inf,
        )
        self._previous = scale.value
        self._moved = 0.0
        self._moves = self._tail = 0
        self._climb = 1  # rows in a row that each stand higher than the one before, by more than noise
        self._left = scale.rise  # how far up the newest row is that is not back
        self._lasts = rows  # that are up

    def add(self, value: float) -> None:
        """The next row."""
        self.rows += 1
        rise = value - self.reference
        self._climb = self._climb + 1 if value > self._previous + self._noise else 0
        if value < self.heal_to:
            self.good += 1
            self._previous = value
            return
        self.good = 0
        self._lasts += 1
        self._left = rise
        if rise > self.worst:
            self.worst = rise
            self._tail = 0
        elif rise < self.worst / 2:
            self._tail += 1
        move = abs(value - self._previous) / self._noise
        self._moved += move if move < MOVE_CUT else MOVE_CUT
        self._moves += 1
        self._previous = value

    def act(self, rule: str) -> None:
        """It is trouble from this row on, by this rule."""
        self.has_acted = True
        self.acted_rule = rule
        self.acted_row = self.rows

    @property
    def is_coarse(self) -> bool:
        return self._gap >= COARSE_STEPS

    @property
    def is_settled(self) -> bool:
        """Whether the rows up there differ no more from each other than those below did."""
        return self._moved <= SETTLED_MOVE * MEAN_MOVE * self._moves

    @property
    def is_wild(self) -> bool:
        """Whether it is far up for some time already, and on no level."""
        if self._moves < WILD_ROWS or self._lasts * self._gap < LONG_STEPS or self.worst <= self._needs[0]:
            return False
        return self._moved > WILD_MOVE * MEAN_MOVE * self._moves

    @property
    def was_abrupt(self) -> bool:
        """Whether the last row that was up stood more than half way up still: the loss fell at once, as of data."""
        return self._left > self.worst / 2 and self._tail <= 1

    def trouble(self) -> str:
        """The rule by which this is trouble with the weights; "" while nothing says so, and for a row that is back."""
        if self.good:
            return ""
        if self.is_coarse:
            return "rows of many steps" if self.worst > self._needs[2] or self._lasts > 1 else ""
        return self._high() or self._long() if self._lasts > 1 else ""

    def _high(self) -> str:
        """By its height, within a few rows."""
        at_once, large, *_ = self._needs
        if self.worst > at_once:
            return FAR_UP
        if self.worst <= large:
            return ""
        if self._tail >= TAIL_ROWS:
            return "comes down slowly"
        if self._climb >= CLIMB_ROWS:
            return "climbs row by row"
        return "stays up" if self._gap >= SPARSE_STEPS and self._lasts * self._gap >= LARGE_STEPS else ""

    def _long(self) -> str:
        """By its length, and what it is made of."""
        _, large, _, double, all_lost = self._needs
        steps = self._lasts * self._gap
        if steps < LONG_STEPS or self._lasts <= 2:
            return ""
        if self.worst >= all_lost:
            return "nothing learned is left"
        is_early = self._is_early and self.worst <= large
        if not is_early and (self._tail >= LONG_TAIL_ROWS or not self.is_settled):
            return "stays up"
        return TWICE if steps >= DOUBLE_STEPS and self._left > double else ""

    def end(self, scale: LossScale) -> End:
        """Whether it is over."""
        if self.good >= HEAL_ROWS:
            return End.HEALED
        if self.rows < GIVE_UP_ROWS:
            return End.NOT
        up = scale.level - self.reference
        if self.has_acted:
            if up <= self.worst / 2 and self.rows < RETURNING * GIVE_UP_ROWS:
                return End.HEALED if up < scale.needs(LOST_RISE) else End.NOT
            return End.HEALED if up < scale.needs(LOST_RISE) else End.GIVEN_UP
        return End.GIVEN_UP if scale.is_lost(up) else End.SETTLED
