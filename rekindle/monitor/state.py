"""Where the run is: written by the training thread (and the one that reads tensors), read by all the others.

Only whole values are exchanged, so nothing here takes a lock on the training thread.
"""

from __future__ import annotations

import statistics
from collections import deque

from rekindle.detectors.nonfinite import NonFinite

DURATIONS_KEPT = 101
RECENT = 8
FORGET_AFTER_STEPS = 10  # a bad value that many steps after the last one begins a new story, and is told again


class RunState:
    """Steps, the newest loss, and what was not finite."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.first_step: int | None = None
        self.loss: float | None = None
        self.is_finished = False
        self.durations: deque[float] = deque(maxlen=DURATIONS_KEPT)
        self.work: deque[float] = deque(maxlen=DURATIONS_KEPT)
        self.saving_s: float | None = None  # how long the newest phase "saving" took
        self._nonfinite = NonFinite()
        self._bad_step: int | None = None  # of the newest value that was not finite
        self._own_bad_step: int | None = None  # of a rank's own one, until a later loss is finite

    def took(self, step: int, step_s: float | None, work_s: float | None) -> None:
        self.step = step
        if self.first_step is None:
            self.first_step = step
        if step_s is not None:
            self.durations.append(step_s)
        if work_s is not None:
            self.work.append(work_s)

    def see_loss(self, step: int, loss: float) -> tuple[str | None, bool]:
        """Take note of a loss.

        Returns its state ("nan", "inf") where it begins a bad stretch, else None; and whether it is the first bad value
        of any kind for a while (the loss that follows a bad gradient is not).
        """
        self.loss = loss
        news = self._nonfinite.update(loss)
        is_first = False
        if self._nonfinite.is_poisoned:
            is_first = self._is_first_bad(step)
        elif self._own_bad_step is not None and step > self._own_bad_step:
            self._own_bad_step = None  # weights that give a finite loss were not poisoned, or no longer are
        return (None if news is None else news.value), is_first

    def see_own_bad(self, step: int) -> bool:
        """A value of this rank's own was not finite. Whether it is the first for a while."""
        self._own_bad_step = step
        return self._is_first_bad(step)

    def _is_first_bad(self, step: int) -> bool:
        before, self._bad_step = self._bad_step, step
        return before is None or step > before + FORGET_AFTER_STEPS

    @property
    def is_poisoned(self) -> bool:
        """Whether weights saved now may hold what is not finite."""
        return self._nonfinite.is_poisoned or self._own_bad_step is not None

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
