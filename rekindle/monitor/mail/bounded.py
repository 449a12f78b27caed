"""Reads that a start waits for, within one budget of seconds: training never waits for a store that does not answer.

Each read is on a thread of its own, which is left behind when the time is over; what it would have found is unknown
then, and the caller continues with what it has.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from typing import TypeVar

from rekindle.monitor.base.aws import MAX_OBJECTS, Clients, StoredObject
from rekindle.monitor.base.worker import begin

_Answer = TypeVar("_Answer")


class TooSlow(TimeoutError):
    """The budget was used up before the store answered. Trying again would not help."""


class Budget:
    """Seconds that all calls share; they run from the first one on."""

    def __init__(self, budget_s: float) -> None:
        self._budget_s = budget_s
        self._until: float | None = None

    def call(self, work: Callable[[], _Answer]) -> _Answer:
        """What `work` returns or raises. Raises: TooSlow."""
        if self._until is None:
            self._until = time.monotonic() + self._budget_s
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TooSlow(f"no answer within {self._budget_s:g} s")
        found = begin("start", work)
        wait((found,), left_s)
        if not found.done():
            raise TooSlow(f"no answer within {self._budget_s:g} s")
        return found.result()


class BoundedClients(Clients):
    """Clients whose listings share a budget."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self._budget = budget

    def objects(self, bucket: str, prefix: str, limit: int = MAX_OBJECTS) -> Iterator[StoredObject]:
        yield from self._budget.call(lambda: list(super(BoundedClients, self).objects(bucket, prefix, limit)))


def load_boto3() -> None:
    """Import it, where it is installed, before a budget begins: that needs no network, but time on a busy machine."""
    if importlib.util.find_spec("boto3") is not None:
        importlib.import_module("boto3")
