"""How long the work for each user has taken in one pass: no user's jobs or files may keep all others waiting."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager


class TimeSpent:
    """`limit_s` is what the work for one user may take; a piece of work that has begun is finished."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._spent: dict[Hashable, float] = {}
        self._over: dict[Hashable, None] = {}

    @contextmanager
    def by(self, user: Hashable) -> Iterator[None]:
        """What is done inside counts as that user's."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._spent[user] = self._spent.get(user, 0.0) + time.monotonic() - began

    def is_over(self, user: Hashable) -> bool:
        """Nothing more is done for that user in this pass."""
        if self._spent.get(user, 0.0) < self._limit_s:
            return False
        self._over[user] = None
        return True

    def over(self) -> tuple[Hashable, ...]:
        """The users for whom work was left over."""
        return tuple(self._over)
