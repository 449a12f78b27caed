"""When the ranks ask each other, and what they agree on. The training thread's; see `agree.py` for the collective.

The ranks must save at the same step, or a checkpoint holds two different ones. Nothing but a collective says for sure
that all have heard: a plan left in the mailbox is read by each rank when it can, and one that could not would leave
the others waiting in their save for ever. So there is one tiny all-reduce, but not in every step: about every
`agree_s` seconds. How many steps that is changes with the run's own pace, so the ranks agree on that too, in the same
integer: the wish in the high bits, the number of steps until the next agreement in the low ones (the highest of both
wins, on all ranks alike).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from rekindle.monitor.agree import Coordinator, Wish
from rekindle.monitor.trouble import Trouble

# At most so many steps apart, however short the steps were so far: one that is suddenly 10 s long must not put off an
# emergency save for hours. 128 steps of 40 ms are the 5 s of the default.
MAX_APART = 128
_BITS = 20
TOP = 2**24 - 1


class Agreement:
    """`is_due` is called once per step on every rank, and `ask` wherever it said yes."""

    def __init__(
        self, coordinator: Coordinator, trouble: Trouble, *, agree_s: float, step_s: Callable[[], float | None]
    ) -> None:
        self._coordinator = coordinator
        self._trouble = trouble
        self._agree_s = agree_s
        self._step_s = step_s
        every = coordinator.every
        self._fixed = None if every is None else max(1, every)
        self._apart = self._fixed or 1
        self._calls = 0
        self._next = self._apart

    def is_due(self) -> bool:
        self._calls += 1
        return self._calls >= self._next

    def ask(self, wish: Wish) -> Wish:
        """What all ranks do now. Raises: whatever the coordinator does."""
        if self._fixed is not None:
            agreed = self._ask(int(wish))
        else:
            packed = self._ask(int(wish) << _BITS | self._wanted_apart())
            agreed, self._apart = packed >> _BITS, max(1, packed & ((1 << _BITS) - 1))
        self._next = self._calls + self._apart
        return Wish(agreed) if agreed else Wish.NOTHING

    def are_same(self, value: int) -> bool:
        """Whether all ranks come with the same value, which is below 2**24. A collective: all ranks must come here."""
        return self._ask(value) == TOP - self._ask(TOP - value)

    def is_any(self, mine: bool) -> bool:
        """Whether any rank says yes. A collective: all ranks must come here."""
        return self._ask(int(mine)) > 0

    def give_up(self, err: Exception) -> None:
        """A broken collective: asking again could hang the ranks that still work."""
        self._next = sys.maxsize
        self._trouble.once("coordinator", "The ranks can no longer agree on saves (%r); none will be asked for", err)

    def _ask(self, value: int) -> int:
        """The one place that waits for other ranks: a stack that ends in here is a rank that waits."""
        return self._coordinator.highest(value)

    def _wanted_apart(self) -> int:
        """Steps in `agree_s`; at most twice as many as now, so that a few quick first steps settle nothing."""
        step_s = self._step_s()
        if not step_s:
            return 1
        return int(max(1, min(self._agree_s / step_s, MAX_APART, 2 * self._apart)))
