"""Whole folders: all ranks write beside, then the folder gets its name. What has the name is complete.

    step-100.tmp-rekindle-<attempt>-<number>     while it is written
    step-100                                     when all ranks have written

A process that is killed leaves the former, which no rule takes for a checkpoint, and which the next start removes.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from rekindle.integrations.gang import is_gang, rank_and_world
from rekindle.mailbox import ENV_ATTEMPT_NAME
from rekindle.monitor.leftovers import FOLDER_MARK, remove_leftovers
from rekindle.monitor.settings import process_environment

WAIT_S = 1800.0  # for the slowest rank's files; a rank that failed ends it at once
MIN_LOOK_S = 0.02
MAX_LOOK_S = 1.0

_saves: dict[str, int] = {}  # of each folder in this process; the same on all ranks, for all ranks save it
_cleaned: set[Path] = set()


@contextlib.contextmanager
def write_folder(path: str | os.PathLike[str], *, timeout_s: float = WAIT_S) -> Iterator[Path]:
    """The folder to write into instead of `path`; on leaving, it becomes `path`. Called on every rank.

    When all ranks have left, rank 0 gives the folder its name, as does one rank of each host with a disk of its own;
    then it returns. A rank that raises leaves `path` as it was, and ends the others' wait at once. What `path` was
    before is replaced.

    Raises: RuntimeError where another rank failed, TimeoutError after `timeout_s`, OSError.
    """
    save = FolderSave(path)
    try:
        yield save.beside
    except BaseException:
        save.failed()
        raise
    save.done(timeout_s)


class FolderSave:
    """`write_folder` for a save that ends elsewhere, such as on a thread. Made on every rank, before it writes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises: OSError."""
        self.target = Path(path)
        self._pause = threading.Event()
        rank, self._world = rank_and_world()
        self._is_first = rank == 0
        # Another host's disk may not be the one that rank 0 sees.
        self._is_first_of_host = process_environment().get("LOCAL_RANK") == "0"
        self._store = dist.distributed_c10d._get_default_store() if is_gang() and self._world > 1 else None
        _saves[self.target.name] = number = _saves.get(self.target.name, 0) + 1
        self._key = f"rekindle/folder/{self.target.name}/{number}"
        if self._is_first:
            remove_leftovers_once(self.target.parent)
        self.beside = self.target.with_name(
            f"{self.target.name}{FOLDER_MARK}{_attempt()}-{_group(self._store)}{number}"
        )
        self.beside.mkdir(parents=True, exist_ok=True)

    def failed(self) -> None:
        """This rank's part is not written, so there is no checkpoint. Never raises."""
        with contextlib.suppress(Exception):  # the error of the save itself is the one to raise
            self._add("failed", 1)
        if self._is_first or self._is_first_of_host:
            shutil.rmtree(self.beside, ignore_errors=True)

    def done(self, timeout_s: float = WAIT_S) -> None:
        """This rank's part is written; returns when the folder has its name. Raises: see `write_folder`."""
        self._add("done", 1)
        try:
            if self._is_first:
                self._wait("done", self._world, timeout_s)
                rename_over(self.beside, self.target)
                self._add("named", 1)
                return
            self._wait("named", 1, timeout_s)
            if self._is_first_of_host and self.beside.is_dir():
                rename_over(self.beside, self.target)
        except BaseException:
            self.failed()
            raise

    def _add(self, what: str, count: int) -> int:
        return count if self._store is None else int(self._store.add(f"{self._key}/{what}", count))

    def _wait(self, what: str, count: int, timeout_s: float) -> None:
        """Counts in the store that torch.distributed has anyway: a collective would hang with a rank that failed."""
        if self._store is None:
            return
        until = time.monotonic() + timeout_s
        look_s = MIN_LOOK_S
        while (there := self._add(what, 0)) < count:
            if self._add("failed", 0):
                raise RuntimeError("another rank failed to write its part of the checkpoint")
            if time.monotonic() > until:
                raise TimeoutError(f"the ranks did not all write their parts in {timeout_s:.0f} s ({there} of {count})")
            self._pause.wait(look_s)
            look_s = min(2 * look_s, MAX_LOOK_S)


def rename_over(beside: Path, target: Path) -> None:
    """`beside` becomes `target`; what that was is removed. Raises: OSError."""
    old = beside.with_name(f"{beside.name}-old")
    if target.exists():
        target.rename(old)
    beside.rename(target)
    _sync(target.parent)
    if old.is_dir():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink(missing_ok=True)


def remove_leftovers_once(folder: Path) -> None:
    """What killed saves left there, on a thread, at this process's first save into that folder."""
    if folder not in _cleaned:
        _cleaned.add(folder)
        threading.Thread(target=remove_leftovers, args=(folder,), name="rekindle-clean", daemon=True).start()


def _attempt() -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", process_environment().get(ENV_ATTEMPT_NAME) or "run")[:100]


def _group(store: Any) -> str:
    """Names these processes: the same on all ranks, and never that of an earlier start, whose files may lie there."""
    own = secrets.token_hex(4)
    return own if store is None else str(store.compare_set("rekindle/folder", "", own), "utf-8")


def _sync(folder: Path) -> None:
    """A rename lasts when its folder is on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
