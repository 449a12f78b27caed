"""How high is this loss, measured by what the run itself did lately?

Three things are kept, each of fixed size:

- the *level*: the median of the last few losses, which follows the curve;
- the *baseline*: the lowest level of the last `WINDOW` rows, which a rising loss cannot pull up after itself;
- two measures of noise: how far losses usually stand above the baseline, and how far one loss stands from the next.

A loss is judged by its logarithm, so noise and rises are shares of the loss, and a loss in other units gives the same
answers. A run whose loss is not always positive (a reward, a log-likelihood) is judged on the plain values instead, and
by the range the level has covered; then answers do not change with the units, nor with an offset.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection


class SortedWindow:
    """The newest `size` values. NaN must not be added: it has no place in an order."""

    __slots__ = ("_order", "size", "values")

    def __init__(self, size: int) -> None:
        self.size = size
        self.values: list[float] = []  # rising
        self._order: deque[float] = deque()

    def add(self, value: float) -> None:
        """The oldest value leaves when the window is full."""
        order, values = self._order, self.values
        if len(order) == self.size:
            del values[bisect_left(values, order.popleft())]
        order.append(value)
        insort(values, value)

    def quantile(self, share: float) -> float:
        """The value below which `share` of the window lies (no interpolation). The window must not be empty."""
        return self.values[int(share * (len(self.values) - 1))]

    @property
    def oldest(self) -> float:
        """The value that leaves next. The window must not be empty."""
        return self._order[0]

    def clear(self) -> None:
        self.values.clear()
        self._order.clear()

    def __len__(self) -> int:
        return len(self.values)


WINDOW = 160  # rows that the noise and the baseline remember
LEVEL_ROWS = 9  # a level is the median of so many: four bad rows do not move it far
MIN_ROWS = 10  # of noise, before anything is judged
UPPER = 0.8  # noise is read at this quantile, not the middle one: the upper tail is what makes false alarms
UPPER_Z = 0.8416  # where the quantile stands in a normal distribution
STEP_QUANTILE = 0.7
STEP_Z = 1.466  # the same for the difference of two normal values: sqrt(2) x 1.0364
LATE_ROWS = 24  # what the noise has come to: pairs of answers are alike until the model learns, and then are not
LATE_Z = 1.812  # where UPPER of the differences of two normal values stands: sqrt(2) x 1.2816
MIN_SPREAD = 0.01  # noise below 1 % is taken for 1 %: a curve smoothed by its logger is not that certain
JUMP_WEIGHT = 0.5  # a jump against the latest level counts half: only sharp ones are told by it
HABIT_ROWS = 3  # far rows make a habit; two may be one event
TAIL = 0.975  # what one row in forty reaches is a habit of the run, however far it stands out
CADENCE_RATIO = 3.0  # steps per row changed by more than this: another kind of row, whose noise has to be learned anew
LINEAR_AFTER = 3  # losses that are zero or negative, before the run is judged on plain values
MARKS = 64  # remembered (step, level) pairs, to know what to expect when a run goes back to an earlier step
BACK_ROWS = 3  # rows that step back by less are rows out of order, not a run that resumed
CADENCE_ROWS = 2  # so many rows in a row agree before a new cadence is believed
FIRST_ROWS = 3  # rows that show what an untrained model loses
CONTINUED_STEP = 500  # of the first row, from which a run is one that continues, and
CONTINUED_ROWS = 5  # times the steps per row: a coarse log's first rows stand for the steps before them
PROGRESS = 0.5  # of the loss: the first losses stood at least so much above the best level, or "back" means nothing
LEARNED = 1.0  # of the loss: from so far above, half the way back is much
LOST_RISE = 0.50  # of the loss: less is not lost
LOST_ANYHOW = 1.0  # of the loss: lost, whatever the first losses were
MAX_LOG = 709.0  # exp of more overflows
HUGE = 1e300  # plain values are cut here, so that no difference of two overflows


class LossScale:
    """Feed it every finite loss with `see`, then tell it with `learn` whether the row was part of the usual.

    After `see` returned True, the row's figures stand in the attributes: `value` (the loss, or its logarithm), its
    `rise` over the `baseline`, the `usual` rise and its `spread`, and the `score` (rise less usual, in spreads).
    """

    __slots__ = (
        "_cadence_votes",
        "_excess",
        "_first_step",
        "_is_skipped",
        "_lately",
        "_level_window",
        "_lows",
        "_mark_every",
        "_marks",
        "_moves",
        "_noise_there",
        "_nonpositive",
        "_previous",
        "_row",
        "baseline",
        "best",
        "first",
        "gap",
        "has_gone_back",
        "highest",
        "is_log",
        "is_ready",
        "last_step",
        "level",
        "lowest",
        "noise",
        "rise",
        "score",
        "spread",
        "usual",
        "value",
    )

    def __init__(self) -> None:
        self.is_log = True
        self.gap = 0  # steps per row; 0 until two rows are known
        self.last_step: int | None = None
        self._first_step = 0
        self._cadence_votes = 0
        self._nonpositive = 0
        self.has_gone_back = False  # at the row just seen: the run went on from an earlier step
        self._restart()

    def _restart(self) -> None:
        self._row = 0
        self._level_window = SortedWindow(LEVEL_ROWS)
        self._lows: deque[tuple[int, float]] = deque()  # (row, level), levels rising: the front is the baseline
        self._excess = SortedWindow(WINDOW)
        self._moves = SortedWindow(WINDOW)
        self._lately: deque[float] = deque(maxlen=LATE_ROWS)  # moves
        self._previous: float | None = None
        self._marks: list[tuple[int, float]] = []
        self._mark_every = 1
        self.is_ready = self._is_skipped = False
        self.first: list[float] = []  # the first values: what a model that has learned nothing loses
        self.best = math.inf  # the lowest level so far, or since a change that was planned
        self.lowest = math.inf  # the lowest level of a full window
        self._noise_there = 0.0  # about when it was reached; as a share, noise is another at another height
        self.highest = -math.inf  # the highest level so far
        self.value = self.level = self.baseline = self.rise = self.usual = 0.0
        self.noise = self.spread = self.score = 0.0

    def see(self, step: int, loss: float) -> bool:
        """Measure one finite loss. False while too little is known to judge it."""
        last = self.last_step
        self.has_gone_back = False
        if last is None:
            self._first_step = step
        elif step - last != self.gap:
            self._pace_changed(step, step - last)
        self.last_step = step
        self.is_ready = self._is_skipped = False
        if self.is_log and loss > 0:
            value = math.log(loss)
        elif self._is_plain():
            value = min(max(loss, -HUGE), HUGE)
        else:
            self._is_skipped = True
            return False
        self.value = value
        if not self._lows:
            return False
        self.baseline = baseline = self._lows[0][1]
        self.rise = rise = value - baseline
        excess, moves = self._excess.values, self._moves.values
        if len(excess) < MIN_ROWS or not moves:
            return False
        # Comparisons in place of max(): this runs for every row of every run.
        usual = excess[len(excess) // 2]
        self.usual = usual = usual if usual > 0.0 else 0.0
        floor = MIN_SPREAD if self.is_log else MIN_SPREAD * (self.highest - self.best)
        noise = moves[int(STEP_QUANTILE * (len(moves) - 1))] / STEP_Z
        if noise < floor:
            noise = floor
        if noise <= 0:
            return False  # a run that never moved says nothing of what is far
        self.noise = noise
        if self._noise_there == 0.0:
            self._noise_there = noise
        spread = (excess[int(UPPER * (len(excess) - 1))] - usual) / UPPER_Z
        self.spread = spread = spread if spread > noise else noise
        score = (rise - usual) / spread
        jump = JUMP_WEIGHT * (value - self.level) / noise
        self.score = jump if jump > score else score
        self.is_ready = True
        return True

    @property
    def habit(self) -> float:
        """The rise that the highest rows of late have reached: one in forty of them, but no fewer than three."""
        values = self._excess.values
        return values[min(int(TAIL * (len(values) - 1)), len(values) - HABIT_ROWS)]

    def needs(self, share: float) -> float:
        """A rise by this share of the loss (of the range of levels, where losses are judged plainly), as a `rise`."""
        return math.log1p(share) if self.is_log else share * (self.highest - self.best)

    def is_lost(self, rise: float) -> bool:
        """Whether so much of a rise takes back what was learned: half the way from the first losses, or twice the loss.

        A run that never learned much, as far as its rows tell, has nothing else to measure a slow rise by.
        """
        way = self.way
        if way >= self.needs(LEARNED) and rise >= way / 2 and rise >= self.needs(LOST_RISE):
            return True
        return rise >= self.needs(LOST_ANYHOW)

    @property
    def rows(self) -> int:
        """How many rows it has learned."""
        return self._row

    @property
    def way(self) -> float:
        """How far the level has come down from the first losses."""
        first = sorted(self.first)
        return first[len(first) // 2] - self.best if first else 0.0

    @property
    def fallen(self) -> float:
        """How far the level has ever been below each of the first losses, in noises; negative where it never was."""
        noise = max(self.noise_of_late, self._noise_there)
        return (min(self.first, default=-math.inf) - self.lowest) / noise if noise > 0 else 0.0

    @property
    def noise_of_late(self) -> float:
        """The noise of the last rows that were usual, where it has grown; of all rows that are remembered else."""
        return max(self.noise, _upper(self._lately) / LATE_Z)

    @property
    def is_continued(self) -> bool:
        """Whether the first row here is not the run's first: it may have learned before."""
        return self._first_step > max(CONTINUED_STEP, CONTINUED_ROWS * self.gap)

    def settle(self) -> None:
        """The level of now is the baseline from now on."""
        self._lows.clear()
        self._lows.append((self._row, self.level))

    def loss_at(self, value: float) -> float:
        """The loss that a `value` stands for."""
        if not self.is_log:
            return value
        return math.exp(value) if value < MAX_LOG else math.inf

    def learn(self, *, is_usual: bool) -> None:
        """Take the row into the memory; one that is not usual does not count as noise, but does move the level."""
        if self._is_skipped:
            return
        value = self.value
        if is_usual and self._lows:
            self._excess.add(self.rise)
        if self._previous is not None:
            move = abs(value - self._previous)
            self._moves.add(move)
            if is_usual:
                self._lately.append(move)
        self._previous = value
        window = self._level_window
        window.add(value)
        self.level = level = window.values[len(window.values) // 2]
        self._row = row = self._row + 1
        if row <= FIRST_ROWS:
            self.first.append(value)
        lows = self._lows
        while lows and lows[-1][1] >= level:
            lows.pop()
        lows.append((row, level))
        if lows[0][0] <= row - WINDOW:
            lows.popleft()
        if level < self.best:
            self.best = level
        if level > self.highest:
            self.highest = level
        if level < self.lowest and row >= LEVEL_ROWS:
            self.lowest = level
            self._noise_there = self.noise if self.is_ready else 0.0
        if not row % self._mark_every:
            self._mark(level)

    def _is_plain(self) -> bool:
        if self.is_log:
            self._nonpositive += 1
            if self._nonpositive >= LINEAR_AFTER:
                self.is_log = False
                self._restart()
        return not self.is_log

    def _pace_changed(self, step: int, gap: int) -> None:
        if gap <= 0:
            if -gap > BACK_ROWS * self.gap:
                self._go_back(step)
            return
        if self.gap and (gap > CADENCE_RATIO * self.gap or self.gap > CADENCE_RATIO * gap):
            self._cadence_votes += 1
            if self._cadence_votes < CADENCE_ROWS:
                return
            self._excess.clear()
            self._moves.clear()
        self._cadence_votes = 0
        self.gap = gap

    def _mark(self, level: float) -> None:
        marks = self._marks
        marks.append((self.last_step or 0, level))
        if len(marks) > MARKS:
            del marks[1::2]
            self._mark_every *= 2

    def _go_back(self, step: int) -> None:
        """The run resumes from an earlier step: what was the level there?"""
        while len(self._marks) > 1 and self._marks[-1][0] > step:
            self._marks.pop()
        self.has_gone_back = True
        self._previous = None
        self._level_window.clear()
        self._lows.clear()
        if self._marks:
            self.level = self._marks[-1][1]
            self._lows.append((self._row, self.level))
            self.best = self.level


def _upper(moves: Collection[float]) -> float:
    """The quantile of moves at which late noise is read; 0 for none."""
    return sorted(moves)[int(UPPER * (len(moves) - 1))] if moves else 0.0
