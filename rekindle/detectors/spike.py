"""Has the loss jumped, and stayed up for more than a moment?

Page's cumulative sum (E. S. Page, "Continuous inspection schemes", Biometrika 41, 1954) over the scores of `LossScale`,
each cut at `PEAK_Z`: one bad batch, however bad, adds `PEAK_Z - DRIFT` and drains away; two in a row, or one and its
slow way down, reach `SUM`. Where a row stands for `COARSE_STEPS` steps or more, one row is not one batch, and one is
enough: a spike that heals does so within about 30 steps (BLOOM's chronicles), so a second row may never show it.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf

from rekindle.detectors.points import Evidence, Point, Severity, Trouble, Verdict
from rekindle.detectors.scale import WINDOW, LossScale

PEAK_Z = 8.0  # at least one row stands so many spreads above the usual; a row counts no more than this
DRIFT = 2.5  # taken from the sum at each row: noise must not add up
SUM = 9.0  # more than one row can bring (PEAK_Z - DRIFT), less than two (11)
RISE = 0.20  # of the loss: less is a bump, not worth a recovery
HABIT = 1.25  # times what the highest rows of late have reached: runs with a habit of lone far rows are healthy
LEARNED_ROWS = 1  # of each spike count as a habit; the rest of it is the same event
COARSE_STEPS = 30  # steps per row from which one row is enough
COARSE_RISE = 0.13  # of the loss, where one row stands for many steps
HEAL_Z = 3.0
HEAL_RISE = 0.05  # back within 5 % of the baseline is back, however quiet the curve was
HEAL_ROWS = 5  # rows in a row that are back
QUIET_ROWS = 10  # rows after a spike in which only a higher one is news
HIGHER = 0.10  # of the loss: what "higher" means
GIVE_UP_ROWS = 100  # after so many rows above the old baseline the run is judged by a new one
LOST_RISE = 0.30  # of the loss: a run that then stands less above its old baseline has found its way back, slowly


class End(StrEnum):
    """How a spike ended, at the row just fed."""

    NOT = "not"
    HEALED = "healed"
    GIVEN_UP = "given_up"  # far up still, after `GIVE_UP_ROWS`


class LossSpike:
    """One verdict per spike: `watch` at the first far row, `act` when the sum is reached. Shares its scale if given.

    While `is_on`, `onset_step` is its first bad step; a row whose value (see `LossScale`) is under `heal_to` is back.
    `ended` says of the row just fed whether a spike ended there.
    """

    __slots__ = (
        "_far_step",
        "_good",
        "_habit",
        "_peak",
        "_peak_z",
        "_quiet",
        "_reference",
        "_rows_on",
        "_start_step",
        "_sum",
        "ended",
        "heal_to",
        "is_on",
        "onset_step",
        "scale",
        "worst",
    )

    def __init__(self, scale: LossScale | None = None) -> None:
        self.scale = scale if scale is not None else LossScale()
        self.is_on = False
        self.onset_step: int | None = None
        self.ended = End.NOT
        self.heal_to = self._reference = 0.0
        self.worst = 0.0
        self._sum = self._peak = self._peak_z = self._habit = 0.0
        self._start_step = 0
        self._far_step: int | None = None
        self._good = self._rows_on = 0
        self._quiet = QUIET_ROWS

    @property
    def is_watching(self) -> bool:
        """Whether a row of late was far, and the sum has neither drained nor been reached."""
        return self._far_step is not None and not self.is_on

    @property
    def is_returning(self) -> bool:
        """Whether the newest rows of the spike that is on are back, though too few of them to call it over."""
        return self.is_on and self._good > 0

    def update(self, point: Point) -> Verdict | None:
        """Judge one row and learn it. A row without a finite loss is passed over."""
        self.ended = End.NOT
        loss = point.loss
        if loss is None or not -inf < loss < inf:
            return None
        scale = self.scale
        if not scale.see(point.step, loss):
            scale.learn(is_usual=True)
            return None
        if scale.has_gone_back:
            self._sum = 0.0
            if self.is_on:
                self.heal_to = max(self.heal_to, scale.level + scale.needs(HEAL_RISE))
        verdict = None
        score, rise = scale.score, scale.rise
        total = self._sum + (score if score < PEAK_Z else PEAK_Z) - DRIFT
        if total > 0 or self.is_on:
            verdict = self._far(point, loss, score, rise, total if total > 0 else 0.0)
        else:
            self._sum = self._peak = self._peak_z = 0.0
            self._far_step = None
            self._quiet += 1
        scale.learn(is_usual=not self.is_on or self._good > 0 or self._rows_on <= LEARNED_ROWS)
        return verdict

    def _far(self, point: Point, loss: float, score: float, rise: float, total: float) -> Verdict | None:
        scale = self.scale
        if self._sum == 0.0:
            self._peak = self._peak_z = 0.0
            self._start_step = point.step
            self._habit = scale.habit  # before the event's own rows become one
        self._sum = total
        if total > 0:
            self._peak = max(self._peak, rise)
            self._peak_z = max(self._peak_z, score)
        rule = self._rule(score, rise)
        verdict = None
        if self.is_on:
            if rule and score > PEAK_Z and self._rows_on > 3 and rise > self.worst + scale.needs(HIGHER):
                verdict = self._verdict(point, loss, rule, Severity.ACT)
        elif rule:
            if self._quiet >= QUIET_ROWS or rise > self.worst + scale.needs(HIGHER):
                verdict = self._began(point, loss, rule)
        elif score > PEAK_Z and self._far_step is None and rise > scale.needs(COARSE_RISE):
            verdict = self._verdict(point, loss, "one row", Severity.WATCH)
            self._far_step = point.step
        self._quiet = 0 if rule else self._quiet + 1
        if self.is_on:
            self._go_on(rise)
        return verdict

    def _began(self, point: Point, loss: float, rule: str) -> Verdict:
        scale = self.scale
        self.is_on = True
        self.onset_step = self._start_step
        self._reference = scale.baseline
        self.heal_to = scale.baseline + max(scale.usual + HEAL_Z * scale.spread, scale.needs(HEAL_RISE))
        self.worst = self._peak
        self._rows_on = self._good = 0
        return self._verdict(point, loss, rule, Severity.ACT)

    def _go_on(self, rise: float) -> None:
        self._rows_on += 1
        self._sum = min(self._sum, SUM)
        if rise > self.worst:
            self.worst = rise
        self._good = self._good + 1 if self.scale.value < self.heal_to else 0
        if self._good >= HEAL_ROWS:
            self._end(End.HEALED)
        elif self._rows_on >= GIVE_UP_ROWS:
            scale = self.scale
            is_back = scale.level < self._reference + scale.needs(LOST_RISE)
            self._end(End.HEALED if is_back else End.GIVEN_UP)

    def _end(self, how: End) -> None:
        self.is_on = False
        self.ended = how
        self._far_step = None
        self._sum = 0.0

    def _rule(self, score: float, rise: float) -> str:
        if self._peak_z <= PEAK_Z:
            return ""
        scale = self.scale
        news = HABIT * self._habit
        if self._sum > SUM and self._peak > scale.needs(RISE) and self._peak > news:
            return "sum of scores"
        if score > PEAK_Z and scale.gap >= COARSE_STEPS and rise > scale.needs(COARSE_RISE) and rise > news:
            return "one row of many steps"
        return ""

    def _verdict(self, point: Point, loss: float, rule: str, severity: Severity) -> Verdict:
        scale = self.scale
        evidence: Evidence = {
            "loss": loss,
            "baseline": scale.loss_at(scale.baseline),
            "scale": "log" if scale.is_log else "plain",
            "rise": scale.rise,
            "usual_rise": scale.usual,
            "spread": scale.spread,
            "score": scale.score,
            "peak_score": self._peak_z,
            "threshold": PEAK_Z,
            "sum": self._sum,
            "sum_threshold": SUM,
            "window_rows": WINDOW,
            "onset_step": self._start_step,
            "steps_per_row": scale.gap,
        }
        return Verdict(kind=Trouble.LOSS_SPIKE, severity=severity, rule=rule, step=point.step, evidence=evidence)
