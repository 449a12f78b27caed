"""Has the loss jumped, and is it the weights?

Page's cumulative sum (E. S. Page, "Continuous inspection schemes", Biometrika 41, 1954) over the scores of `LossScale`,
each cut at `PEAK_Z`: one bad batch, however bad, adds `PEAK_Z - DRIFT` and drains away; two in a row, or one and its
slow way down, reach `SUM`. What is then an excursion is worth a recovery once its shape says that the weights are hurt
(`excursion`), and only if the run has no habit of excursions like it (`habits`).
"""

from __future__ import annotations

from math import inf

from rekindle.detectors.excursion import COARSE_STEPS, FAR_UP, HEAL_ROWS, TWICE, End, Excursion
from rekindle.detectors.habits import EXAMPLES, Habits
from rekindle.detectors.points import Evidence, Point, Severity, Trouble, Verdict
from rekindle.detectors.scale import WINDOW, LossScale

PEAK_Z = 8.0  # at least one row stands so many spreads above the usual; a row counts no more than this
DRIFT = 2.5  # taken from the sum at each row: noise must not add up
SUM = 9.0  # more than one row can bring (PEAK_Z - DRIFT), less than two (11)
RISE = 0.20  # of the loss: less is a bump, not worth a recovery
HABIT = 1.25  # times what the highest rows of late have reached: runs with a habit of lone far rows are healthy
SEEN_ROWS = 2  # of few steps each, since the sum left zero: worth a look
SEEN_RISE = 0.05  # of the loss, for that
SEEN_Z, COARSE_SEEN_RISE = 5.0, 0.10  # the same for one row that stands for many steps
LEARNED_ROWS = 1  # of each spike count as a habit; the rest of it is the same event
COARSE_RISE = 0.13  # of the loss, where one row stands for many steps
QUIET_ROWS = 10  # rows after a spike in which only a higher one is news
HIGHER = 0.10  # of the loss: what "higher" means
ESCALATE_ROWS = 3  # of a spike; a higher row after them is news of its own


class LossSpike:
    """`watch` at the first far row, `act` when the excursion is trouble. Shares its scale if given one.

    While `is_on` (it has acted, and the spike lasts), `onset_step` is its first bad step; a row whose value (see
    `LossScale`) is under `heal_to` is back. `ended` says of the row just fed whether a spike ended there.
    """

    __slots__ = (
        "_event",
        "_far_step",
        "_habit",
        "_habits",
        "_is_reported",
        "_peak",
        "_peak_z",
        "_quiet",
        "_rows",
        "_start_step",
        "_sum",
        "_worst",
        "ended",
        "heal_to",
        "is_known_level",
        "is_planned",
        "onset_step",
        "scale",
    )

    def __init__(self) -> None:
        self.scale = LossScale()
        self.onset_step: int | None = None
        self.ended = End.NOT
        self.heal_to = 0.0
        self.is_known_level = False  # whether the spike that ended was acted on for the calm level that it stayed at
        self.is_planned = False  # whether a change that was announced explains a new level at the row to come
        self._event: Excursion | None = None
        self._habits = Habits()
        self._worst = 0.0
        self._sum = self._peak = self._peak_z = self._habit = 0.0
        self._rows = self._start_step = 0
        self._far_step: int | None = None
        self._is_reported = False  # whether the rows since the sum left zero have had their `watch`
        self._quiet = QUIET_ROWS

    @property
    def is_on(self) -> bool:
        """Whether a spike worth a recovery lasts."""
        return self._event is not None and self._event.has_acted

    @property
    def is_watching(self) -> bool:
        """Whether rows of late were far or worth a look, and nothing says that it is trouble."""
        return not self.is_on and (self._far_step is not None or self._event is not None or self._is_reported)

    @property
    def is_returning(self) -> bool:
        """Whether the newest rows of the spike that is on are back, though too few of them to call it over."""
        return self._event is not None and self._event.has_acted and self._event.good > 0

    def settle(self) -> None:
        """Make the present level the baseline, unless a spike worth a recovery lasts."""
        if not self.is_on:
            self._event = self._far_step = None
            self._is_reported = False
            self._sum = 0.0
            self.scale.settle()

    @property
    def worst(self) -> float:
        """The highest rise of the newest excursion."""
        return self._event.worst if self._event is not None else self._worst

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
            if self._event is not None:
                self.heal_to = self._event.heal_to = max(self._event.heal_to, scale.level + scale.needs(0.05))
        verdict = None
        score, rise = scale.score, scale.rise
        total = self._sum + (score if score < PEAK_Z else PEAK_Z) - DRIFT
        event = self._event
        if total > 0 or event is not None:
            verdict = self._far(point, loss, score, rise, total if total > 0 else 0.0)
        else:
            if self._far_step is not None:
                self._habits.remember_lone(self._peak)
            self._sum = self._peak = self._peak_z = 0.0
            self._far_step = None
            self._is_reported = False
            self._quiet += 1
        event = self._event
        scale.learn(is_usual=event is None or event.good > 0 or event.rows <= LEARNED_ROWS + 1)
        self._habits.see(scale)
        if event is not None:
            self._end(point, event)
        return verdict

    def _far(self, point: Point, loss: float, score: float, rise: float, total: float) -> Verdict | None:
        """A row while the sum is above zero, or an excursion lasts."""
        self._add(point, score, rise, total)
        is_far = self._is_far(score, rise)
        verdict = self._follow(point, loss, score, rise, is_far=is_far)
        event = self._event
        if event is not None and not event.has_acted:
            verdict = self._judge(point, loss, event) or verdict
        if self._far_step is None and score > PEAK_Z and rise > self.scale.needs(COARSE_RISE):
            self._far_step = point.step
        if verdict is None and not self._is_reported:
            rule = self._seen(score, rise)
            if rule:
                self._is_reported = True
                verdict = self._verdict(point, loss, rule, Severity.WATCH)
        self._quiet = 0 if event is not None or (is_far and score > PEAK_Z) else self._quiet + 1
        self._sum = min(self._sum, SUM)
        return verdict

    def _add(self, point: Point, score: float, rise: float, total: float) -> None:
        """Take the row into the sum, and into the peak of the rows since the sum left zero."""
        if self._sum == 0.0:
            self._peak = self._peak_z = 0.0
            self._rows = 0
            self._start_step = point.step
            self._habit = self.scale.habit  # before the event's own rows become one
        self._sum = total
        if total > 0:
            self._rows += 1
            self._peak = max(self._peak, rise)
            self._peak_z = max(self._peak_z, score)

    def _follow(self, point: Point, loss: float, score: float, rise: float, *, is_far: bool) -> Verdict | None:
        """Begin an excursion, or add the row to the one that lasts; a verdict where that has grown higher still."""
        event = self._event
        if event is None:
            if is_far and (self._quiet >= QUIET_ROWS or rise > self._worst + self.scale.needs(HIGHER)):
                self._event = Excursion(self.scale, start_step=self._start_step, worst=self._peak, rows=self._rows)
            return None
        higher = event.worst + self.scale.needs(HIGHER)
        event.add(self.scale.value)
        is_late = event.has_acted and event.rows > event.acted_row + ESCALATE_ROWS
        if is_late and is_far and score > PEAK_Z and rise > higher:
            return self._verdict(point, loss, "higher still", Severity.ACT)
        return None

    def _judge(self, point: Point, loss: float, event: Excursion) -> Verdict | None:
        """Whether the excursion is trouble by now."""
        rule = event.trouble()
        if not rule or self._is_explained(point, event, rule):
            return None
        event.act(rule)
        self._is_reported = True
        self.onset_step = event.start_step
        self.heal_to = event.heal_to
        return self._verdict(point, loss, rule, Severity.ACT)

    def _seen(self, score: float, rise: float) -> str:
        """The rule by which the rows up to this one are worth a look; "" while they are not.

        Where a row stands for few steps, one of them is a batch; a second one that is up makes it the run's affair.
        """
        scale = self.scale
        if scale.gap >= COARSE_STEPS:
            return "one row" if score > SEEN_Z and rise > scale.needs(COARSE_SEEN_RISE) else ""
        if self._rows < SEEN_ROWS or self._sum <= SUM or rise <= scale.needs(SEEN_RISE):
            return ""
        return "several rows" if self._peak > HABIT * self._habit else ""

    def _is_explained(self, point: Point, event: Excursion, rule: str) -> bool:
        """Whether an announced change or a habit of the run explains it."""
        if self.is_planned and not event.is_wild:
            return True
        if rule == FAR_UP and self._habits.has_lone(event.worst):
            return True
        if event.is_coarse:
            return self._is_habit(point, event.worst, event)
        has_fallen = self._habits.has_fallen(event.worst, examples=1 if rule == TWICE else EXAMPLES)
        return has_fallen or self._is_habit(point, event.worst, event)

    def _is_habit(self, point: Point, height: float, event: Excursion) -> bool:
        # A run that continues is as old as its steps say, however short its record here.
        age = max(point.step, self.scale.rows * self.scale.gap)
        return self._habits.explain(point.step, height, event.rows, age=age)

    def _end(self, point: Point, event: Excursion) -> None:
        scale = self.scale
        ended = event.end(scale)
        if ended is End.NOT:
            return
        if ended is End.GIVEN_UP and not event.has_acted:
            rise = scale.level - event.reference
            is_habit = self._is_habit(point, rise, event) or self._habits.has_fallen(rise)
            ended = End.SETTLED if is_habit or self.is_planned else ended
        self._habits.remember(point.step, event.worst, event.rows, was_abrupt=event.was_abrupt)
        self._worst = event.worst
        self._event = None
        self._far_step = None
        self._is_reported = False
        self._sum = 0.0
        if event.has_acted or ended is End.GIVEN_UP:
            self.ended = ended
            self.is_known_level = event.acted_rule == TWICE
            self.onset_step, self.heal_to = event.start_step, event.heal_to
        if ended is End.SETTLED or (ended is End.HEALED and event.good < HEAL_ROWS):
            scale.settle()  # the level it has come to, which may stand above the one that it left
            self._quiet = QUIET_ROWS

    def _is_far(self, score: float, rise: float) -> bool:
        """Whether the rows since the sum left zero are an excursion."""
        if self._peak_z <= PEAK_Z:
            return False
        scale = self.scale
        news = HABIT * self._habit
        if self._sum > SUM and self._peak > scale.needs(RISE) and self._peak > news:
            return True
        return score > PEAK_Z and scale.gap >= COARSE_STEPS and rise > scale.needs(COARSE_RISE) and rise > news

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
            "onset_step": self._start_step if self._event is None else self._event.start_step,
            "steps_per_row": scale.gap,
        }
        return Verdict(kind=Trouble.LOSS_SPIKE, severity=severity, rule=rule, step=point.step, evidence=evidence)
