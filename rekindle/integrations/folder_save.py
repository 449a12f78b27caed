"""Whole folders: all ranks write beside, then the folder gets its name. What has the name is complete.

    step-100.tmp-rekindle-<attempt>-<start>-<number>     while it is written
    step-100                                             when all ranks have written

A process that is killed leaves the former, which no rule takes for a checkpoint, and which the next start removes.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rekindle.integrations.torch_ranks import all_done, rank_and_world, store
from rekindle.monitor.base.settings import process_environment
from rekindle.monitor.base.worker import begin
from rekindle.monitor.saving.leftovers import FOLDER_MARK, remove_leftovers
from rekindle.protocol.launch_orders import ENV_ATTEMPT_NAME

REPLACED = ".rekindle-replaced"  # the end of a name that no framework reads as a checkpoint

_OWN = secrets.token_hex(8)
_cleaned: set[Path] = set()
_saves: dict[str, int] = {}  # of each folder by this process; the same on all ranks, for all save it


@contextmanager
def write_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """The folder to write into instead of `path`; on leaving, it becomes `path`. Called on every rank.

    When all ranks have left, rank 0 gives the folder its name, as does one rank of each host with a disk of its own;
    then it returns. A rank that raises leaves `path` as it was, and ends the others' wait at once. What `path` was
    before is replaced.

    Raises: RuntimeError where another rank failed or did not come, OSError.
    """
    save = FolderSave(path)
    try:
        save.beside.mkdir(parents=True, exist_ok=True)
        yield save.beside
    except BaseException as err:
        save.failed(err)
        raise
    save.done()


class FolderSave:
    """`write_folder` for a save that ends elsewhere, such as on a thread. Made on every rank, before it writes.

    Each rank makes the folder `beside`, and ends with `done` or `failed`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises what torch's store raises."""
        self.target = Path(path)
        self._is_first = rank_and_world()[0] == 0
        # Another host's disk may not be the one that rank 0 sees.
        self._is_first_of_host = process_environment().get("LOCAL_RANK") == "0"
        if self._is_first:
            remove_leftovers_once(self.target.parent)
        self.beside = folder_beside(self.target)

    def failed(self, error: BaseException) -> None:
        """This rank's part is not written, so there is no checkpoint, on any rank.

        Raises: RuntimeError where another rank had failed before, for that one took away what this one wrote into.
        """
        why = repr(error)
        first = all_done(why, self._name)
        self._clear()
        if isinstance(error, OSError) and first is not None and not first.endswith(why):
            raise RuntimeError(f"the checkpoint is not whole: {first}") from error

    def ready(self) -> None:
        """Before a collective: returns when no rank has failed so far. Raises: RuntimeError where one has."""
        failure = all_done(None, self._name)
        if failure is not None:
            self._clear()
            raise RuntimeError(f"the checkpoint cannot be written: {failure}")

    def done(self) -> None:
        """This rank's part is written; returns when the folder has its name. Raises: RuntimeError, OSError."""
        failure = all_done(None, self._name)
        if failure is None:
            try:
                if self._is_first:
                    put_in_place(self.beside, self.target)
            except OSError as err:
                all_done(f"the folder could not be given its name: {err}", self._name)
                raise
            failure = all_done(None, self._name)
        if failure is not None:
            self._clear()
            raise RuntimeError(f"the checkpoint is not whole: {failure}")
        if self._is_first_of_host and self.beside.is_dir():
            put_in_place(self.beside, self.target)

    @property
    def _name(self) -> str:
        return f"folder-{self.target.name}"

    def _clear(self) -> None:
        """On every rank, when its part is over: what slower ranks still write is taken away by the last of them."""
        shutil.rmtree(self.beside, ignore_errors=True)


def folder_beside(target: Path) -> Path:
    """Never that of another save's, whose files may still lie there; the same on all ranks, which all call this.

    Raises what torch's store raises.
    """
    _saves[target.name] = number = _saves.get(target.name, 0) + 1
    attempt = re.sub(r"[^A-Za-z0-9._-]", "-", process_environment().get(ENV_ATTEMPT_NAME) or "run")[:100]
    start = store().space if rank_and_world()[1] > 1 else _OWN
    return target.with_name(f"{target.name}{FOLDER_MARK}{attempt}-{start}-{number}")


def remove_leftovers_once(folder: Path) -> None:
    """What killed saves left there, on a thread, at this process's first save into that folder.

    What they were about to replace is put back before. Never raises: what cannot be is no reason not to save.
    """
    if folder in _cleaned:
        return
    _cleaned.add(folder)
    for entry in folder.glob(f".*{REPLACED}"):
        target = entry.with_name(entry.name[1 : -len(REPLACED)])
        with suppress(OSError):
            if target.exists():
                remove(entry)
            else:
                entry.rename(target)
    with suppress(RuntimeError):  # the process may have no more threads
        begin("clean", lambda: remove_leftovers(folder))


def put_in_place(beside: Path, target: Path) -> None:
    """Rename, also where `target` is a folder with content. Raises: OSError; `target` is then what it was."""
    replaced = target.with_name(f".{target.name}{REPLACED}")
    is_there = target.exists()
    if is_there:
        remove(replaced)
        target.rename(replaced)
    try:
        beside.rename(target)
    except OSError:
        if is_there:
            replaced.rename(target)
        raise
    sync(target.parent)
    with suppress(OSError):
        remove(replaced)


def sync(folder: Path) -> None:
    """A rename lasts when its folder is on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def remove(path: Path) -> None:
    """A folder with its content, or a file; nothing where nothing is. Raises: OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
