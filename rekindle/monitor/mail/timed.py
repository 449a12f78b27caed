"""A mailbox that knows whether it answers in time: what would wait for it at the end of a run then does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from rekindle.monitor.mail.boxes import Box, BoxAround

SLOW_S: Final = 4.0  # for one call, which usually takes a few hundredths


class TimedBox(BoxAround):
    """For any number of threads. Raises what the mailbox does."""

    def __init__(self, box: Box) -> None:
        super().__init__(box, self._timed)
        self._lock = threading.RLock()  # a signal handler of the script may call the monitor inside itself
        self._began: dict[int, float] = {}  # of each call that is under way, by its thread
        self._took_s = 0.0  # the newest call that is over

    @property
    def is_slow(self) -> bool:
        """A call has been under way for `SLOW_S`, or the newest one took as long, whatever came of it."""
        with self._lock:
            longest = max((time.monotonic() - began for began in self._began.values()), default=0.0)
        return max(longest, self._took_s) >= SLOW_S

    def _timed(self, work: Callable[[], Any]) -> Any:
        me, began = threading.get_ident(), time.monotonic()
        with self._lock:
            self._began[me] = began
        try:
            return work()
        finally:
            with self._lock:
                self._began.pop(me, None)
                self._took_s = time.monotonic() - began
