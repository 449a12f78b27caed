"""A save in which all ranks take part: none enters it before all can write, and all learn of a failure.

A framework's save is a sequence of collectives with each rank's own writes between them. A write that raises in the
middle takes its rank out of the sequence, and the others wait in the next collective until the group's timeout, half
an hour by default. So the ranks agree before: each writes a little where the save goes to, and looks whether there is
space for as much as the last save took. A write that fails after that, in the middle, is kept until the save's end
(`RankCoordinator.keep`). After any other error there the others cannot be called back: where they do not come out, that
rank ends its process with the reason.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from rekindle.integrations.folder_save import REPLACED, folder_beside, put_in_place, remove, remove_leftovers_once
from rekindle.integrations.torch_ranks import all_done, rank_and_world, store
from rekindle.monitor.base.guard import must_pass
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.base.worker import wait_until

COME_S: Final = 30.0  # for the other ranks' parts of a save, once one rank has left it in the middle
TRIAL_BYTES: Final = 2**16  # that are written where a save goes to: a full disk, a quota and a lost mount refuse them


class SaveFailed(RuntimeError):
    """A save of several ranks did not succeed on all of them. The text names the rank and its reason."""


class RankCoordinator:
    """One per integration, used on the training thread."""

    def __init__(self) -> None:
        self.meets = True  # whether ranks wait for each other in the middle of the framework's saves, if known
        self._is_saving = False
        self._kept: BaseException | None = None
        self._failures = 0  # saves that failed on some rank, which all ranks count alike
        self._needs = 0  # bytes of the newest save

    def ready(self, folder: Path) -> None:
        """Before a save into that folder, on all ranks: each of them can write there.

        Raises, on all ranks where one cannot: `SaveFailed`; for a rank that is alone, its own OSError.
        """
        failure = None
        try:
            _try_to_write(folder, self._needs)
        except OSError as err:
            failure = err
        why = all_done(None if failure is None else _told(failure))
        if why is not None:
            self._raise(why, failure)

    @contextmanager
    def save(self) -> Iterator[None]:
        """Around one save, on all ranks.

        Raises: on all ranks where any rank failed or did not come to the end in time: `SaveFailed`; for a rank that is
        alone, what its save raised. What ends a program passes at once. SystemExit on a rank that left in the middle,
        where the others then wait for it in the save: the launcher ends them too.
        """
        self._is_saving, self._kept = True, None
        failure: BaseException | None = None
        try:
            yield
        except BaseException as err:  # torch's CheckpointException is one
            if must_pass(err):
                raise
            failure = err
        finally:
            self._is_saving = False
        has_left, failure = failure is not None, self._kept or failure  # the first: what was kept led to the other
        self._kept = None
        why = all_done(None if failure is None else _told(failure))
        if why is None:
            return
        self._failures += 1
        if rank_and_world()[1] > 1 and not self._have_all_come() and has_left and self.meets:
            raise SystemExit(
                f"Rekindle ends this process: its part of a save failed ({why}) between two points at which the ranks "
                "wait for each other, and the others, which wait there, cannot be called back"
            ) from failure
        self._raise(why, failure)

    def keep(self, call: Callable[..., Any], *args: Any, frees: Path | None = None, **kwargs: Any) -> None:
        """`call`, a write after which this rank meets the others: in a save its failure is raised at the end only.

        frees: a file, or a folder whose files, which are then removed: the framework's further small ones, such as a
        note of its newest checkpoint, need a little room on a disk that is full.
        """
        try:
            call(*args, **kwargs)
        except BaseException as err:
            if must_pass(err) or not self._is_saving:
                raise
            self._kept = self._kept or err
            with suppress(OSError):
                for path in () if frees is None else [frees, *frees.glob("*")]:
                    if path.is_file():
                        path.unlink()

    def _raise(self, why: str, failure: BaseException | None) -> None:
        if failure is not None and rank_and_world()[1] == 1:
            raise failure
        raise SaveFailed(why) from failure

    def _have_all_come(self) -> bool:
        """Wait until every rank has come out of the save that failed, so that what it wrote can be removed.

        False where one does not within `COME_S`; True where that is unknown.
        """
        try:
            shared, key = store(), f"came-out-{self._failures}"
            rank, world = rank_and_world()
            shared.put(f"{key}/{rank}", "1")
            everyone = [f"{key}/{other}" for other in range(world)]
            return wait_until(lambda: shared.has_all(everyone), time.monotonic() + COME_S, shared.quick_s)
        except Exception as err:
            logger.warning("Rekindle cannot tell whether all ranks came out of a save that failed: %r", err)
            return True

    @contextmanager
    def folder(self, target: Path) -> Iterator[Path]:
        """A name beside `target`, for all ranks to write a folder or a file to; `target` is it once all have.

        What `target` named before is there until then, and stays where the save fails: a name stands for a whole
        checkpoint. Raises: what `ready` and `save` raise, after what was written has been removed.
        """
        is_first = rank_and_world()[0] == 0
        self.ready(target.parent)
        with self.save():
            beside = folder_beside(target)
            if is_first:
                remove_leftovers_once(target.parent)
        try:
            with self.save():
                yield beside
            with self.save():
                if is_first:
                    put_in_place(beside, target)
        except Exception:
            if is_first:
                with suppress(OSError):
                    remove(beside)
            raise
        self._needs = size_of(target) if is_first else 0

    @contextmanager
    def in_place(self, target: Path, *, is_writer: bool | None = None) -> Iterator[None]:
        """Around a save that has to be made under its own name. What had the name is kept aside until all have written.

        is_writer: whether this rank moves and removes; by default rank 0. Raises: what `ready` and `save` raise;
        `target` is then what it was.
        """
        writes = rank_and_world()[0] == 0 if is_writer is None else is_writer
        aside = target.with_name(f".{target.name}{REPLACED}")
        self.ready(target.parent)
        with self.save():
            if writes and aside.exists():  # then what has the name is what a save was killed in
                remove(target)
            elif writes and target.exists():
                target.rename(aside)
        try:
            with self.save():
                yield
        except Exception:
            if writes:
                with suppress(OSError):
                    remove(target)
                with suppress(OSError):
                    aside.rename(target)
            raise
        if writes:
            self._needs = size_of(target)
            with suppress(OSError):
                remove(aside)


def _told(err: BaseException) -> str:
    return f"{type(err).__name__}: {err}"[:1000]


def _try_to_write(folder: Path, needs: int) -> None:
    """Raises: OSError where the folder takes no file, or its disk has fewer bytes free than are needed."""
    folder.mkdir(parents=True, exist_ok=True)
    trial = folder / f".rekindle-trial-{rank_and_world()[0]}-{os.getpid()}"
    try:
        with trial.open("wb") as file:
            file.write(bytes(TRIAL_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        with suppress(OSError):  # some mounts of object stores take files, and delete none
            trial.unlink()
    disk = shutil.disk_usage(folder)
    if disk.total > 0 and disk.free < needs:  # a mounted object store may count nothing
        raise OSError(f"{folder} has {disk.free} bytes free, and the last checkpoint took {needs}")


def size_of(path: Path) -> int:
    """Bytes of a file, or of a folder's files; what disappears meanwhile does not count."""
    total = 0
    for entry in (path, *path.rglob("*")):
        with suppress(OSError):
            total += entry.stat().st_size if entry.is_file() else 0
    return total
