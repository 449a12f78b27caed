"""How the monitor fails: it counts each inner error, and logs each kind of trouble once per process."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

from rekindle.monitor.base.guard import must_pass


class NotWatched(RuntimeError):
    """Nothing watches this process. The text says why."""


class SafeLogger:
    """The logger `rekindle.monitor`, for callers that must not fail with it.

    `logging` itself raises where stderr is closed, where a handler of the script's raises, or where an argument cannot
    be formatted. Such a message is lost.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, message: str, *args: object) -> None:
        self.log(logging.INFO, message, *args)

    def warning(self, message: str, *args: object) -> None:
        self.log(logging.WARNING, message, *args)

    def log(self, level: int, message: str, *args: Any) -> None:
        try:
            self._logger.log(level, message, *args, stacklevel=3)
        except BaseException as err:
            if must_pass(err):
                raise


logger = SafeLogger("rekindle.monitor")


class Trouble:
    """Counters, and the memory of what was logged already, of one monitor. Thread-safe; never raises.

    The lock is re-entrant: a signal handler of the script may call the monitor while the same thread holds it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._counts: Counter[str] = Counter()
        self._logged: set[str] = set()

    def count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self._counts[what] += by

    def once(self, what: str, message: str, *args: object) -> None:
        """Count, and warn the first time."""
        self.count(what)
        if self._is_first(what):
            logger.warning(message, *args)

    def inner(self, where: str, err: BaseException) -> None:
        """An error of our own that training must not see."""
        self.once(f"inner_error.{where}", "Rekindle's monitor failed in %s and continues: %r", where, err)

    def aws(self, operation: str, err: BaseException) -> None:
        """AWS is away, slow or denying: one warning for each of the two; further refused calls are logged as info."""
        response = getattr(err, "response", None)
        if not isinstance(response, dict):
            self.once(
                "aws_away", "AWS cannot be reached (%s: %r); training continues, Rekindle keeps trying", operation, err
            )
            return
        reason = response.get("Error", {}).get("Code", "error")
        self.count(f"aws_refused.{operation}")
        if self._is_first(f"aws_refused.{operation}"):
            level = logging.WARNING if self._is_first("aws_refused") else logging.INFO
            logger.log(level, "AWS refused %s (%s); training continues without it", operation, reason)

    def forked(self) -> None:
        """In a forked child: another thread of the parent may have held the lock, and is not here to release it."""
        self._lock = threading.RLock()

    def _is_first(self, what: str) -> bool:
        with self._lock:
            is_first = what not in self._logged
            self._logged.add(what)
            return is_first

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)
