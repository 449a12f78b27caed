"""Where the run is, and which of its values were not finite: written by the loss intake, read by all other threads."""

from __future__ import annotations

import statistics
import threading
from array import array
from collections import deque
from dataclasses import dataclass

from rekindle.detectors.nonfinite import REARM_AFTER, classify
from rekindle.protocol.mailbox import LossState

DURATIONS_KEPT = 101
RECENT = 8
LOSSES_KEPT = 4096  # steps whose loss a manifest may still ask for, where a save is sealed long after it began
CALLS_KEPT = 1024  # calls of `step`, for how long ago a save can have begun
FORGET_AFTER_STEPS = 10  # a bad value that many steps after the last one begins a new stretch, and is reported again
# One value that is not finite may be a skipped step, which costs nothing; poisoned weights give nothing else any more.
ACT_AFTER = 3  # bad steps in a row
LASTING = (10, 100)  # or so many bad ones among the newest so many, where a trainer skips bad steps again and again
_NO_STEP = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadStretch:
    """Values that were not finite and did not pass: three steps in a row, or again and again."""

    step: int  # the first bad one
    loss_state: LossState
    metric: str
    own: bool  # a value of this rank's own, seen before any exchange with other ranks
    alone: bool | None  # whether this rank alone has it; None where that is not known


class BadSteps:
    """Counts steps with a value that is not finite, and says once per stretch when they are more than news.

    Not thread-safe. Steps without a value are neither good nor bad.
    """

    def __init__(self) -> None:
        self._first: BadStretch | None = None  # of the newest steps in a row
        self._in_a_row = 0
        self._newest_bad: int | None = None
        self._finite_in_a_row = REARM_AFTER
        self._recent: deque[bool] = deque(maxlen=LASTING[1])
        self._is_reported = False

    @property
    def is_bad(self) -> bool:
        """The newest step with a value had a bad one."""
        return self._in_a_row > 0

    @property
    def since(self) -> int | None:
        """The first of the bad steps in a row, None where the newest is good."""
        return self._first.step if self._first is not None else None

    @property
    def is_confirmed(self) -> bool:
        """Bad, and not only for a step or two."""
        return self.is_bad and (self._is_reported or self._lasts())

    def good(self) -> None:
        self._first = None
        self._in_a_row = 0
        self._recent.append(False)
        self._finite_in_a_row += 1
        if self._finite_in_a_row >= REARM_AFTER and not self._lasts():
            self._is_reported = False

    def bad(self, found: BadStretch) -> BadStretch | None:
        """A bad value of `found.step`. Returns what to report, where this makes it more than news."""
        self._finite_in_a_row = 0
        if self._newest_bad == found.step and self._in_a_row:
            return None  # another value of the same step
        self._newest_bad = found.step
        self._recent.append(True)
        self._in_a_row += 1
        self._first = self._first or found
        if self._is_reported or not self._lasts():
            return None
        return self.confirm()

    def confirm(self) -> BadStretch | None:
        """What is bad now, however short it was: at the end of a run. None where nothing is, or it was reported."""
        if self._first is None or self._is_reported:
            return None
        self._is_reported = True
        return self._first

    def _lasts(self) -> bool:
        return self._in_a_row >= ACT_AFTER or sum(self._recent) >= LASTING[0]


class RunState:
    """Steps, the newest loss and the losses of late, and what was not finite. Thread-safe; no call waits."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.first_step: int | None = None
        self.is_finished = False  # `finish` was called: nothing is watched any more
        self.is_complete = False  # and the script came to its end: no error, no stop
        self.died_of = ""  # the error that ended it
        self.durations: deque[float] = deque(maxlen=DURATIONS_KEPT)
        self.work: deque[float] = deque(maxlen=DURATIONS_KEPT)
        self._calls: deque[tuple[int, float]] = deque(maxlen=CALLS_KEPT)
        self.saving_s: float | None = None  # how long the newest phase "saving" took
        self._lock = threading.RLock()  # a signal handler of the script may call the monitor inside itself
        self._loss: float | None = None
        self._loss_step: int | None = None
        self._steps = array("q", [_NO_STEP]) * LOSSES_KEPT
        self._losses = array("d", [0.0]) * LOSSES_KEPT
        self._bad = BadSteps()
        self.is_loss_unread = False  # the newest loss that was handed over could not be read
        self._bad_step: int | None = None  # of the newest value of any kind that was not finite
        self._own_bad_step: int | None = None  # of a rank's own one, until a later loss is finite

    def took(self, step: int, step_s: float | None, work_s: float | None, now: float = 0.0) -> None:
        """now: by the monotonic clock."""
        self.step = step
        self._calls.append((step, now))
        if self.first_step is None:
            self.first_step = step
        if step_s is not None:
            self.durations.append(step_s)
        if work_s is not None:
            self.work.append(work_s)

    def no_save_before(self, step: int) -> float | None:
        """By the monotonic clock, a time before which no save of `step` can have begun; None where that is not known.

        The step before it was over by then. One more is left for scripts that count differently when they save.
        """
        newest = self.step
        if newest is None:
            return None
        limit = min(step, newest) - 1
        calls = list(self._calls)  # in one go: the training thread appends meanwhile
        return next((at for called, at in reversed(calls) if called < limit), None)

    def see_loss(self, step: int, loss: float) -> tuple[BadStretch | None, bool]:
        """Take note of a loss.

        Returns what to report of values that stay bad, once per stretch; and whether this is the first bad value of any
        kind for a while (the loss that follows a bad gradient is not).
        """
        state = classify(loss)
        with self._lock:
            self._loss, self._loss_step, self.is_loss_unread = loss, step, False
            if abs(step) < 2**63:
                self._steps[step % LOSSES_KEPT], self._losses[step % LOSSES_KEPT] = step, loss
            if state is not LossState.FINITE:
                found = BadStretch(step=step, loss_state=state, metric="loss", own=False, alone=None)
                return self._bad.bad(found), self._is_first_bad(step)
            if self._own_bad_step is None or step > self._own_bad_step:
                # Weights that give a finite loss were not poisoned, or no longer are.
                self._own_bad_step = None
                self._bad.good()
            return None, False

    def see_own_bad(self, step: int, metric: str, alone: bool | None) -> tuple[BadStretch | None, bool]:
        """A value of this rank's own was not finite. Returns what `see_loss` returns."""
        found = BadStretch(step=step, loss_state=LossState.NAN, metric=metric, own=True, alone=alone)
        with self._lock:
            stretch, is_first = self._bad.bad(found), self._is_first_bad(step)
            if self._is_finite_after(step):  # read late: what followed was well again
                self._bad.good()
            else:
                self._own_bad_step = step
            return stretch, is_first

    def see_bad_gradient(self, step: int) -> None:
        """The gradient's norm of this step is not finite: its update may have spoiled the weights.

        A loss scaler that skips the step looks the same, so it is no report; a later finite loss says that all is well.
        """
        with self._lock:
            if not self._is_finite_after(step):
                self._own_bad_step = step

    def _is_finite_after(self, step: int) -> bool:
        return self._loss_step is not None and self._loss_step > step and classify(self._loss) is LossState.FINITE

    def _is_first_bad(self, step: int) -> bool:
        before, self._bad_step = self._bad_step, step
        return before is None or step > before + FORGET_AFTER_STEPS

    def bad_at_the_end(self) -> BadStretch | None:
        """What a run ends with: a bad value that nothing followed, unless it was reported."""
        with self._lock:
            return self._bad.confirm()

    @property
    def bad_since(self) -> int | None:
        """The first step of the values that are not finite now; None while the newest is finite."""
        with self._lock:
            return self._bad.since

    @property
    def is_poisoned(self) -> bool:
        """Whether weights saved now may hold what is not finite, as far as values were read: see `Losses.settle`."""
        with self._lock:
            return self._bad.is_bad or self._own_bad_step is not None

    def may_be_poisoned_at(self, step: int) -> bool:
        """Whether weights saved after `step` may hold what is not finite, as far as is known now.

        A finite loss of `step` itself proves nothing: its update may be what made the next loss bad.
        """
        with self._lock:
            if self._own_bad_step is not None and self._own_bad_step <= step:
                return True
            since = self._bad.since
            return since is not None and step >= since - 1

    def loss_at(self, step: int) -> float | None:
        """The loss of exactly this step; None where it was not given, not read, or is too long ago."""
        place = step % LOSSES_KEPT
        with self._lock:
            return self._losses[place] if self._steps[place] == step else None

    def newest_loss(self) -> tuple[float | None, LossState]:
        """The newest loss and its state, for the heartbeat.

        A single value that is not finite is no state yet: `none`, which is never read as finite, until it lasts.
        """
        with self._lock:
            state = classify(self._loss)
            if state in (LossState.NAN, LossState.INF) and not (self._bad.is_confirmed or self.is_finished):
                return None, LossState.NONE
            return (self._loss if state is LossState.FINITE else None), state

    @property
    def step_s(self) -> float | None:
        return median(self.durations)

    @property
    def slow_step_s(self) -> float | None:
        """The longest of the last few steps, in seconds: how long a step may take, where too short a guess is worse."""
        return max(list(self.durations)[-RECENT:], default=None)


def median(values: deque[float]) -> float | None:
    copy = list(values)  # in one go: the training thread appends meanwhile
    return statistics.median(copy) if copy else None
