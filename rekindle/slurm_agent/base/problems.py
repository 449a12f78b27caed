"""What the agent cannot do at present: one line per part of it, sent with each heartbeat and logged once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Final

log = logging.getLogger(__name__)

MAX_KEPT: Final = 50
MAX_CHARS: Final = 400


class Problems:
    """Each part sets its own lines, and takes them back by setting none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, tuple[str, ...]] = {}

    def set(self, part: str, lines: Iterable[str] = ()) -> None:
        now = tuple(_written(line) for line in lines)
        with self._lock:
            before = self._lines.get(part, ())
            if now:
                self._lines[part] = now
            else:
                self._lines.pop(part, None)
        for line in now:
            if line not in before:
                log.warning("part=%s problem=%s", part, line)
        if before and not now:
            log.info("part=%s problem=none", part)

    def lines(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(f"{part}: {line}" for part, lines in self._lines.items() for line in lines)[:MAX_KEPT]


def _written(line: str) -> str:
    """One line that a heartbeat can carry: names of files come with whatever bytes their users gave them."""
    whole = line.encode("utf-8", "backslashreplace").decode()
    return "".join(char if char.isprintable() else " " for char in whole)[:MAX_CHARS]
