"""What the agent cannot do at present: lines per part of the agent, sent with each heartbeat and logged once each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Final

log = logging.getLogger(__name__)

MAX_KEPT: Final = 50
MAX_CHARS: Final = 400


class Problems:
    """The current problems of all parts of the agent. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, tuple[str, ...]] = {}

    def set(self, part: str, lines: Iterable[str] = ()) -> None:
        """Replace the problems of one part; no lines: it has none any more. A new line is logged as a warning."""
        current = tuple(_printable(line) for line in lines)
        with self._lock:
            previous = self._lines.get(part, ())
            if current:
                self._lines[part] = current
            else:
                self._lines.pop(part, None)
        for line in current:
            if line not in previous:
                log.warning("part=%s problem=%s", part, line)
        if previous and not current:
            log.info("part=%s problem=none", part)

    def lines(self) -> tuple[str, ...]:
        """All problems as `part: line`, at most MAX_KEPT."""
        with self._lock:
            return tuple(f"{part}: {line}" for part, lines in self._lines.items() for line in lines)[:MAX_KEPT]


def _printable(line: str) -> str:
    """`line` as one printable line of at most MAX_CHARS; file names in it may hold any bytes."""
    encodable = line.encode("utf-8", "backslashreplace").decode()
    return "".join(char if char.isprintable() else " " for char in encodable)[:MAX_CHARS]
