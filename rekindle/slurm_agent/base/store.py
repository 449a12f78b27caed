"""The agent's own SQLite file: one writer at a time, whole transactions, and memory in its place while a disk is full.

A kill at any point leaves either all of a transaction or nothing (write-ahead log, synchronous=FULL: what is begun is
on the disk before the command runs). An error of the disk moves the whole store into memory: the rows that can be read
are taken along, `problem` tells it, and every half minute the store tries to go back, with all that has happened since.
What a kill loses meanwhile is caught by the orders' own looks at Slurm (see `verbs`). A file that is no database any
more is put aside under another name and a new one begun.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeVar

from rekindle.slurm_agent.base.clock import Clock

log = logging.getLogger(__name__)

BACK_TO_DISK_S: Final = 30.0
BUSY_S: Final = 10.0  # only a person's own sqlite3 shell can hold the file
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS orders(
    token TEXT PRIMARY KEY, body TEXT NOT NULL, verb TEXT NOT NULL, subject TEXT NOT NULL, attempt TEXT,
    new_attempt TEXT, state TEXT NOT NULL, outcome TEXT, answer TEXT, tries INTEGER NOT NULL DEFAULT 0,
    taken_at TEXT NOT NULL, begun_at TEXT, tried_at TEXT, due_at TEXT, done_at TEXT) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS orders_open ON orders(state, taken_at);
CREATE INDEX IF NOT EXISTS orders_of_attempt ON orders(attempt);
CREATE TABLE IF NOT EXISTS quarantine(id INTEGER PRIMARY KEY, at TEXT NOT NULL, reason TEXT NOT NULL, body TEXT);
CREATE TABLE IF NOT EXISTS documents(
    key TEXT PRIMARY KEY, seq INTEGER NOT NULL, since INTEGER NOT NULL, lane INTEGER NOT NULL,
    body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS news(
    seq INTEGER PRIMARY KEY, lane INTEGER NOT NULL, type TEXT NOT NULL, at TEXT NOT NULL, detail TEXT NOT NULL,
    token TEXT, tries INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS memory(key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counts(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

T = TypeVar("T")


class Store:
    """Open to every thread of the agent. `work` given to `write` may run twice (on the disk, then in memory)."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._tried_disk_at = clock.monotonic()
        self.problem: str | None = None
        self._is_on_disk = True
        try:
            self._db = self._open_disk()
        except sqlite3.Error as err:
            self._db = _open_memory(path)
            self._left_disk(err)

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction. Raises nothing of the disk's: what cannot be kept there is kept in memory."""
        with self._lock:
            self._return_to_disk()
            if self._is_on_disk:
                try:
                    return _transaction(self._db, work)
                except (sqlite3.OperationalError, sqlite3.DatabaseError) as err:
                    if isinstance(err, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.NotSupportedError):
                        raise
                    self._move_to_memory(err)
            return _transaction(self._db, work)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._lock:
            if self._is_on_disk:
                try:
                    return work(self._db)
                except sqlite3.DatabaseError as err:
                    if isinstance(err, sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.NotSupportedError):
                        raise
                    self._move_to_memory(err)
            return work(self._db)

    def settle(self) -> None:
        """The end is near: back to the disk if that can be. Nothing needs closing; other threads may still be here."""
        with self._lock:
            self._return_to_disk(at_once=True)

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # ---- disk and memory

    def _open_disk(self) -> sqlite3.Connection:
        """Raises: sqlite3.Error. A file that is no database is put aside first."""
        try:
            return _open(self._path)
        except sqlite3.DatabaseError as err:
            if not _is_broken(err):
                raise
            aside = self._path.with_name(f"{self._path.name}.broken-{self._clock.now():%Y%m%dT%H%M%SZ}")
            log.error("%s is no database any more (%s): put aside as %s", self._path, err, aside.name)  # noqa: TRY400
            with suppress(OSError):
                os.replace(self._path, aside)
            for suffix in ("-wal", "-shm"):
                with suppress(OSError):
                    self._path.with_name(self._path.name + suffix).unlink()
            return _open(self._path)

    def _move_to_memory(self, err: sqlite3.Error) -> None:
        memory = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        try:
            if self._db.in_transaction:
                self._db.rollback()
            self._db.backup(memory)
        except sqlite3.Error:  # not even readable: begin anew, Slurm's own state is looked at before anything is done
            memory.close()
            memory = _open_memory()
        with suppress(sqlite3.Error):
            self._db.close()
        memory.executescript(SCHEMA)
        self._db = memory
        self._left_disk(err)

    def _left_disk(self, err: sqlite3.Error) -> None:
        self._is_on_disk = False
        self._tried_disk_at = self._clock.monotonic()
        self.problem = f"the state in {self._path} cannot be kept on disk, only in memory: {err}"
        log.error("%s", self.problem)

    def _return_to_disk(self, *, at_once: bool = False) -> None:
        if self._is_on_disk:
            return
        if not at_once and self._clock.monotonic() - self._tried_disk_at < BACK_TO_DISK_S:
            return
        self._tried_disk_at = self._clock.monotonic()
        try:
            disk = self._open_disk()
        except sqlite3.Error:
            return
        try:
            self._db.backup(disk)
            _transaction(disk, lambda db: db.execute("DELETE FROM counts WHERE name = ''"))  # it can be written to
        except sqlite3.Error:
            disk.close()
            return
        self._db.close()
        self._db, self._is_on_disk, self.problem = disk, True, None
        log.warning("the state is on disk again")


def count(db: sqlite3.Connection, name: str, by: int = 1) -> None:
    """Add to a counter that outlives this process."""
    db.execute(
        "INSERT INTO counts VALUES(?, ?) ON CONFLICT(name) DO UPDATE SET value = value + excluded.value", (name, by)
    )


def counted(db: sqlite3.Connection, name: str) -> int:
    row = db.execute("SELECT value FROM counts WHERE name = ?", (name,)).fetchone()
    return int(row[0]) if row else 0


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=BUSY_S)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA journal_size_limit=1048576")
        db.executescript(SCHEMA)
        with closing(db.execute("PRAGMA quick_check(1)")) as cursor:
            if cursor.fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("database disk image is malformed")
    except sqlite3.Error:
        db.close()
        raise
    return db


def _open_memory(path: Path | None = None) -> sqlite3.Connection:
    """With what the file at `path` holds, where it can be read: on a read-only disk, all but its write-ahead log."""
    db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    if path is not None:
        with suppress(sqlite3.Error, OSError):
            source = f"{path.absolute().as_uri()}?mode=ro&immutable=1"  # Source: sqlite.org/uri.html
            with closing(sqlite3.connect(source, uri=True)) as disk:
                disk.backup(db)
    try:
        db.executescript(SCHEMA)
    except sqlite3.DatabaseError:  # what was read is damaged
        db.close()
        return _open_memory()
    return db


def _transaction(db: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    db.execute("BEGIN IMMEDIATE")
    try:
        given = work(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise
    return given


def _is_broken(err: sqlite3.DatabaseError) -> bool:
    """Source: sqlite.org/rescode.html, SQLITE_CORRUPT and SQLITE_NOTADB."""
    return any(text in str(err) for text in ("not a database", "malformed", "file is encrypted"))
