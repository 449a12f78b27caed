"""The last values of a stream, in order of size: any quantile at once, a fixed amount of memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque


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

    def state(self) -> list[float]:
        """The values, oldest first."""
        return list(self._order)

    def restore(self, values: list[float]) -> None:
        """What `state` gave."""
        self._order = deque(values)
        self.values = sorted(values)
