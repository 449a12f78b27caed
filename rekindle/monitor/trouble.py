"""How the monitor fails: quietly. Every inner error is counted; each kind of trouble is told once per process."""

from __future__ import annotations

import logging
import threading
from collections import Counter

logger = logging.getLogger("rekindle.monitor")


class Trouble:
    """Counters and the "said it already" memory of one monitor. Thread-safe; never raises."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._told: set[str] = set()

    def count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self._counts[what] += by

    def once(self, what: str, message: str, *args: object) -> None:
        """Count, and warn the first time."""
        with self._lock:
            self._counts[what] += 1
            if what in self._told:
                return
            self._told.add(what)
        logger.warning(message, *args)

    def inner(self, where: str, err: BaseException) -> None:
        """An error of our own that training must not see."""
        self.once(f"inner_error.{where}", "Rekindle's monitor failed in %s and goes on: %r", where, err)

    def aws(self, operation: str, err: BaseException) -> None:
        """AWS is away, slow or denying. One warning for being away; one per operation for being refused."""
        code = getattr(err, "response", None)
        if isinstance(code, dict):
            reason = code.get("Error", {}).get("Code", "error")
            self.once(f"aws_refused.{operation}", "AWS refused %s (%s); training goes on without it", operation, reason)
        else:
            self.once(
                "aws_away", "AWS cannot be reached (%s: %r); training goes on, Rekindle keeps trying", operation, err
            )

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
