"""Changes of the run that are meant: announced by the script, or read from its learning rate.

A longer sequence, another data mixture or a learning rate that begins again lifts the loss to a new level. For a
bounded number of steps after such a change a rise is a `watch`; then the run is judged by the level it has by then.
"""

from __future__ import annotations

from math import inf

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
