"""What an agent knows of itself: its id for the life of its state directory, and when it last held the lease."""

from __future__ import annotations

import platform
import sqlite3
import uuid
from pathlib import Path
from typing import Final

from rekindle.slurm_agent.base.store import Store

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")  # Source: random(4), drawn anew at each start of the kernel
_PREFIX: Final = "agent/"
_IDENTITY: Final = f"{_PREFIX}id"
_EPOCH: Final = f"{_PREFIX}epoch"


def host() -> str:
    """This machine's name, as far as an id may hold it."""
    name = "".join(char if char.isascii() and (char.isalnum() or char == "-") else "-" for char in platform.node())
    return name[:60] or "host"


def boot() -> str:
    """ "" where it is unknown."""
    try:
        return BOOT_ID.read_text().strip()[:64]
    except OSError:
        return ""


def identity(store: Store) -> str:
    """The same for the life of the state directory; the host's name is in it for people."""
    found = _get(store, _IDENTITY)
    if found is not None:
        return found
    made = f"{host()}-{uuid.uuid4().hex[:8]}"
    _set(store, _IDENTITY, made)
    return made


def last_epoch(store: Store) -> int:
    """The lease's epoch when this agent last held it; 0: it never did."""
    found = _get(store, _EPOCH)
    return int(found) if found is not None and found.isdecimal() else 0


def keep_epoch(store: Store, epoch: int) -> None:
    _set(store, _EPOCH, str(epoch))


def forget_all_else(store: Store) -> None:
    """What is still to be published: another agent has seen and published more since. Orders stay, see `takeover`."""

    def work(db: sqlite3.Connection) -> None:
        db.execute("DELETE FROM documents")
        db.execute("DELETE FROM news")
        db.execute("DELETE FROM memory WHERE substr(key, 1, ?) != ?", (len(_PREFIX), _PREFIX))

    store.write(work)


def _get(store: Store, key: str) -> str | None:
    row = store.read(lambda db: db.execute("SELECT value FROM memory WHERE key = ?", (key,)).fetchone())
    return bytes(row[0]).decode() if row else None


def _set(store: Store, key: str, value: str) -> None:
    store.write(lambda db: db.execute("INSERT OR REPLACE INTO memory VALUES(?, ?)", (key, value.encode())))
