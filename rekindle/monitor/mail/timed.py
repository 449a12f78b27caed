"""A mailbox that knows whether it answers in time: what would wait for it at the end of a run then does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

from rekindle.monitor.mail.boxes import Box

SLOW_S: Final = 4.0  # for one call, which usually takes a few hundredths

_Answer = TypeVar("_Answer")


class TimedBox:
    """For any number of threads. Raises what the mailbox does."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._lock = threading.RLock()  # a signal handler of the script may call the monitor inside itself
        self._began: dict[int, float] = {}  # of each call that is under way, by its thread
        self._took_s = 0.0  # the newest call that is over

    @property
    def is_slow(self) -> bool:
        """A call has been under way for `SLOW_S`, or the newest one took as long, whatever came of it."""
        with self._lock:
            longest = max((time.monotonic() - began for began in self._began.values()), default=0.0)
        return max(longest, self._took_s) >= SLOW_S

    @property
    def uri(self) -> str:
        return self._box.uri

    @property
    def is_directory(self) -> bool:
        return self._box.is_directory

    def get(self, key: str) -> bytes | None:
        return self._timed(lambda: self._box.get(key))

    def get_aged(self, key: str) -> tuple[bytes | None, float]:
        return self._timed(lambda: self._box.get_aged(key))

    def written_at(self, key: str) -> datetime | None:
        return self._timed(lambda: self._box.written_at(key))

    def put(self, key: str, body: bytes) -> None:
        self._timed(lambda: self._box.put(key, body))

    def put_new(self, key: str, body: bytes) -> bool:
        return self._timed(lambda: self._box.put_new(key, body))

    def replace(self, key: str, body: bytes, was: bytes) -> bool:
        return self._timed(lambda: self._box.replace(key, body, was))

    def names(self, prefix: str) -> tuple[str, ...]:
        return self._timed(lambda: self._box.names(prefix))

    def _timed(self, work: Callable[[], _Answer]) -> _Answer:
        me, began = threading.get_ident(), time.monotonic()
        with self._lock:
            self._began[me] = began
        try:
            return work()
        finally:
            with self._lock:
                self._began.pop(me, None)
                self._took_s = time.monotonic() - began
