"""Which files of a checkpoint each rank has written, as it sees them itself: rank 0 may see them late, or not at all.

    <session>/<save>/root              where the checkpoint is, once all ranks' parts of it are over; empty for none
    <session>/<save>/files/<rank>      what that rank sees below it that was written since its own part began

A rank looks on a thread of its own, because a file system may be slow. What is written meanwhile is in no list.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rekindle.checkpoints.found import Stamp
from rekindle.checkpoints.names import is_temporary
from rekindle.checkpoints.verdict import FINE_S
from rekindle.monitor.base.stacks import OWN_PREFIX
from rekindle.monitor.mail.exchange import Exchange
from rekindle.monitor.saving.file_clock import file_time_of
from rekindle.protocol.manifests import ITSELF, check_path

MAX_TOLD: Final = 1000  # files by one rank: of more, those that it wrote last
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


@dataclass(slots=True)
class _Part:
    save: str
    began: float
    until: float
    look: _Look | None = None


class _Look(threading.Thread):
    def __init__(self, root: str, began: float) -> None:
        super().__init__(name=f"{OWN_PREFIX}files", daemon=True)
        self.told: dict[str, tuple[int, int]] = {}
        self.until = time.monotonic() + TELL_S
        self._root, self._began = root, began
        self.start()

    def run(self) -> None:
        try:
            self.told = _written(self._root, self._began)
        except (OSError, ValueError):  # rank 0 looks as well, and says what is wrong
            return


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
        self._parts: list[_Part] = []

    @property
    def is_idle(self) -> bool:
        return not self._parts

    def tell(self, save: str, began: float, until: float) -> None:
        """This rank's part of a save is over. until: how long the others' parts are waited for."""
        self._parts.append(_Part(save, began, until))

    def turn(self, exchange: Exchange, session: str) -> None:
        """Raises what the exchange raises; what was to be told is told at the next turn then."""
        now = time.monotonic()
        for part in tuple(self._parts):
            key = f"{session}/{part.save}"
            if part.look is None:
                root = exchange.get(f"{key}/root")
                if root:
                    part.look = _Look(root, part.began)
                elif root is not None or now > part.until:
                    self._parts.remove(part)
            elif not part.look.is_alive() or now > part.look.until:
                exchange.put(f"{key}/files/{self._rank}", json.dumps(part.look.told))
                self._parts.remove(part)


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
