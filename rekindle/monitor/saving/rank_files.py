"""One rank's part of a save: when it is over, and which files it has written. All on the negotiating thread.

    <session>/<save>/done/<rank>       its part is over: what it wrote, and what threads that the save began wrote
    <session>/<save>/failed            the first failure of any rank's
    <session>/<save>/root              where the checkpoint is, once all ranks' parts of it are over; empty for none
    <session>/<save>/files/<rank>      what that rank sees below it that was written since its own part began

Rank 0 may see another rank's files late, or not at all. A rank looks on a thread of its own, because a file system may
be slow. What is written meanwhile is in no list.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Final

from rekindle.checkpoints.found import Stamp
from rekindle.checkpoints.names import is_temporary
from rekindle.checkpoints.verdict import FINE_S
from rekindle.monitor.base.stacks import is_working
from rekindle.monitor.base.worker import begin
from rekindle.monitor.mail.exchange import Exchange
from rekindle.monitor.saving.file_clock import file_time_of
from rekindle.protocol.manifests import ITSELF, check_path

MAX_TOLD: Final = 1000  # files by one rank: of more, those that it wrote last
WRITERS_S: Final = 60.0  # how long the threads that a save began are waited for
MAX_PARTS: Final = 64  # that wait for a broken exchange
TELL_S: Final = 30.0  # how long a rank's file system is waited for
STOP_TELL_S: Final = 2.0  # the same of a save that all ranks were asked for: they may be ending

Told = Mapping[str, tuple[int, int]]
"""By name, relative to the checkpoint's root: bytes, and the time of the last writing in nanoseconds."""


@dataclass(frozen=True, slots=True)
class PartFiles:
    """Of one rank's part. root: an absolute path, None where it is not known. began: by the monotonic clock."""

    root: str | None
    began: float

    @classmethod
    def of(cls, path: str | os.PathLike[str] | None, began: float) -> PartFiles:
        raw = None if path is None else os.fspath(path)
        is_local = isinstance(raw, str) and not raw.startswith("s3://")
        return cls(os.path.abspath(str(raw).removeprefix("file://")) if is_local else None, began)


Over = Callable[[str | None, Told], None]
"""(why a save failed, None where it did not; what the other ranks told of its files)"""


@dataclass(frozen=True, slots=True)
class Part:
    """One rank's part of a save, which is complete, or failed with a reason.

    over: on rank 0, what to call when that of all ranks is. writers: threads that the save began, which are waited for
    until `until`.
    """

    save: str
    failure: str | None = None
    over: Over | None = None
    writers: Sequence[Thread] = ()
    files: PartFiles | None = None
    until: float = field(default_factory=lambda: time.monotonic() + WRITERS_S)

    def is_over(self, now: float) -> bool:
        return self.failure is not None or now > self.until or not any(map(is_working, self.writers))


class OwnParts:
    """Tells the other ranks, and rank 0, when this rank's part of a save is over."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._parts: deque[Part] = deque(maxlen=MAX_PARTS)

    @property
    def is_idle(self) -> bool:
        return not self._parts

    @property
    def are_writing(self) -> bool:
        """Threads that this rank's part of a save began are still at work. For any thread."""
        now = time.monotonic()
        return any(not part.is_over(now) for part in tuple(self._parts))

    def add(self, part: Part) -> None:
        self._parts.append(part)

    def turn(self, exchange: Exchange, session: str) -> None:
        """Raises what the exchange raises; what could not be told is at the next turn."""
        now = time.monotonic()
        for part in [part for part in self._parts if part.is_over(now)]:
            if part.failure is not None:
                exchange.put_new(f"{session}/{part.save}/failed", f"rank {self._rank}: {part.failure}")
            exchange.put(f"{session}/{part.save}/done/{self._rank}", "1")
            self._parts.remove(part)


@dataclass(slots=True)
class _Telling:
    save: str
    began: float
    until: float
    told: Future[dict[str, tuple[int, int]]] | None = None


def names_below(root: Path) -> Iterator[str]:
    """Its files; not those with temporary names, which are left by a save that was killed."""
    for folder, _, names in os.walk(root):
        for name in names:
            if not is_temporary(name):
                yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def _written(root: str, began: float) -> dict[str, tuple[int, int]]:
    """Raises: OSError; ValueError: no file can have such a path."""
    names = [ITSELF] if os.path.isfile(root) else names_below(Path(root))
    paths = {name: root if name == ITSELF else os.path.join(root, name) for name in names}
    from_ns = int(((file_time_of(began, Path(root)) or 0.0) - FINE_S) * 1e9)
    seen = ((name, Stamp.of(path)) for name, path in paths.items())
    written = [(name, stamp.bytes, stamp.mtime_ns or 0) for name, stamp in seen if (stamp.written_ns or 0) >= from_ns]
    newest = sorted(written, key=lambda item: item[2])[-MAX_TOLD:]
    return {name: (size, at) for name, size, at in newest}


class OwnFiles:
    """What a rank other than 0 tells; on the negotiating thread."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._waiting: list[_Telling] = []

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def tell(self, save: str, began: float, until: float) -> None:
        """This rank's part of a save is over. until: how long the others' parts are waited for."""
        self._waiting.append(_Telling(save, began, until))

    def turn(self, exchange: Exchange, session: str) -> None:
        """Raises what the exchange raises; what was to be told is told at the next turn then."""
        now = time.monotonic()
        for telling in tuple(self._waiting):
            key = f"{session}/{telling.save}"
            if telling.told is None:
                root = exchange.get(f"{key}/root")
                if root:
                    telling.told, telling.until = begin("files", partial(_written, root, telling.began)), now + TELL_S
                elif root is not None or now > telling.until:
                    self._waiting.remove(telling)
            elif telling.told.done() or now > telling.until:
                # Where it could not look: rank 0 looks as well, and says what is wrong.
                told = telling.told.result() if telling.told.done() and telling.told.exception() is None else {}
                exchange.put(f"{key}/files/{self._rank}", json.dumps(told))
                self._waiting.remove(telling)


def read_told(exchange: Exchange, key: str, ranks: int) -> Told:
    """What the other ranks told of the save below `key`; of each file, by the rank that saw it last written.

    Raises what the exchange raises.
    """
    found: dict[str, tuple[int, int]] = {}
    for rank in range(1, ranks):
        try:
            told = json.loads(exchange.get(f"{key}/files/{rank}") or "{}")
            for name, (size, at) in told.items():
                if at > found.get(name, (0, -1))[1]:
                    found[check_path(name)] = int(size), int(at)
        except (ValueError, TypeError, AttributeError):  # cut short on its way
            continue
    return found
