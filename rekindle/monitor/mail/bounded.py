"""Reads that a start waits for, within one budget of seconds: training never waits for a store that does not answer.

Each read is on a thread of its own, which is left behind when the time is over; what it would have found is unknown
then, and the caller continues with what it has.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TypeVar

from rekindle.monitor.base.aws import MAX_OBJECTS, Clients
from rekindle.monitor.base.stacks import OWN_PREFIX
from rekindle.monitor.mail.boxes import Box

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
        found: list[_Answer] = []
        raised: list[Exception] = []

        def run() -> None:
            try:
                found.append(work())
            except Exception as err:  # handed to the caller below
                raised.append(err)

        thread = threading.Thread(target=run, name=f"{OWN_PREFIX}start", daemon=True)
        thread.start()
        thread.join(left_s)
        if raised:
            raise raised[0]
        if not found:
            raise TooSlow(f"no answer within {self._budget_s:g} s")
        return found[0]


class BoundedBox:
    """A mailbox whose calls share a budget."""

    def __init__(self, box: Box, budget: Budget) -> None:
        self._box = box
        self._budget = budget

    @property
    def uri(self) -> str:
        return self._box.uri

    @property
    def is_directory(self) -> bool:
        return self._box.is_directory

    def get(self, key: str) -> bytes | None:
        return self._budget.call(lambda: self._box.get(key))

    def get_aged(self, key: str) -> tuple[bytes | None, float]:
        return self._budget.call(lambda: self._box.get_aged(key))

    def written_at(self, key: str) -> datetime | None:
        return self._budget.call(lambda: self._box.written_at(key))

    def put(self, key: str, body: bytes) -> None:
        self._budget.call(lambda: self._box.put(key, body))

    def put_new(self, key: str, body: bytes) -> bool:
        return self._budget.call(lambda: self._box.put_new(key, body))

    def replace(self, key: str, body: bytes, was: bytes) -> bool:
        return self._budget.call(lambda: self._box.replace(key, body, was))

    def names(self, prefix: str) -> tuple[str, ...]:
        return self._budget.call(lambda: self._box.names(prefix))


class BoundedClients(Clients):
    """Clients whose listings share a budget."""

    def __init__(self, budget: Budget) -> None:
        super().__init__()
        self._budget = budget

    def objects(self, bucket: str, prefix: str, limit: int = MAX_OBJECTS) -> Iterator[tuple[str, int, str]]:
        yield from self._budget.call(lambda: list(super(BoundedClients, self).objects(bucket, prefix, limit)))


def load_boto3() -> None:
    """Import it, where it is installed, before a budget begins: that needs no network, but time on a busy machine."""
    if importlib.util.find_spec("boto3") is not None:
        importlib.import_module("boto3")
