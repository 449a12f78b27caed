"""A save in which all ranks take part and one rank's write fails: all ranks learn of it, and none waits for another.

A framework's save is a sequence of collectives with each rank's own writes between them. A write that raises in the
middle takes its rank out of the sequence, and the others wait in the next collective until the group's timeout, half
an hour by default. Inside `RankCoordinator.save()` such a failure is kept instead: the rank goes through the
rest of the sequence, and at its end every rank raises what the first one met.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final

import torch

from rekindle.integrations.torch_ranks import all_done, rank_and_world, store
from rekindle.monitor.base.guard import must_pass
from rekindle.monitor.base.trouble import logger

WRITING, REPLACED = ".rekindle-writing", ".rekindle-replaced"  # ends of names that no framework reads as a checkpoint

COME_S: Final = 30.0  # for the other ranks' parts of a save, once one rank has left it in the middle


class SaveFailed(RuntimeError):
    """A save of several ranks did not succeed on all of them. The text names the rank and its reason."""


class RankCoordinator:
    """One per integration, used on the training thread.

    meets: whether ranks wait for each other in the middle of the framework's saves, as far as is known.
    """

    def __init__(self, *, meets: bool = True) -> None:
        self.meets = meets
        self._is_saving = False
        self._failure: BaseException | None = None
        self._failures = 0  # saves that failed on some rank, which all ranks count alike

    @contextmanager
    def save(self) -> Iterator[None]:
        """Around one save, on all ranks. Inside another one it changes nothing.

        Raises: on all ranks where any rank failed or did not come to the end in time: `SaveFailed`; for a rank that is
        alone, what its save raised. What ends a program passes at once. SystemExit on a rank whose failure could not be
        kept, where the others then wait for it in the middle of the save: the launcher ends them too.
        """
        if self._is_saving:
            yield
            return
        self._is_saving, self._failure = True, None
        has_left = False
        try:
            with self._torch_save_kept():
                yield
        except BaseException as err:  # torch's CheckpointException is one
            if must_pass(err):
                raise
            has_left = True
            self._keep(err)
        finally:
            self._is_saving = False
            failure, self._failure = self._failure, None
        why = all_done(None if failure is None else f"{type(failure).__name__}: {failure}"[:1000])
        if why is None:
            return
        self._failures += 1
        if failure is not None and rank_and_world()[1] == 1:
            raise failure
        if not self._have_all_come() and has_left and self.meets:
            raise SystemExit(
                f"Rekindle ends this process: its part of a save failed ({why}) between two points at which the ranks "
                "wait for each other, and the others, which wait there, cannot be called back"
            ) from failure
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
            until = time.monotonic() + COME_S
            pause = threading.Event()
            while not shared.has_all(everyone):
                if time.monotonic() > until:
                    return False
                pause.wait(shared.quick_s)
        except Exception as err:
            logger.warning("Rekindle cannot tell whether all ranks came out of a save that failed: %r", err)
        return True

    @contextmanager
    def folder(self, target: Path) -> Iterator[Path]:
        """A name beside `target`, for all ranks to write a folder or a file to; `target` is it once all have.

        What `target` named before is there until then, and stays where the save fails: a name stands for a whole
        checkpoint. Raises: what `save` raises, after what was written has been removed.
        """
        is_first = rank_and_world()[0] == 0
        beside = target.with_name(f".{target.name}{WRITING}")
        with self.save():
            if is_first:
                target.parent.mkdir(parents=True, exist_ok=True)
                clean(target.parent)
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

    @contextmanager
    def in_place(self, target: Path, *, is_writer: bool | None = None) -> Iterator[None]:
        """Around a save that has to be made under its own name. What had the name is kept aside until all have written.

        is_writer: whether this rank moves and removes; by default rank 0. Raises: what `save` raises; `target` is then
        what it was.
        """
        writes = rank_and_world()[0] == 0 if is_writer is None else is_writer
        aside = target.with_name(f".{target.name}{REPLACED}")
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
            with suppress(OSError):
                remove(aside)

    def local(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, which waits for no other rank: in a save its failure is kept, and after a failure it is left out."""

        def kept(*args: Any, **kwargs: Any) -> Any:
            if not self._is_saving:
                return call(*args, **kwargs)
            if self._failure is not None:
                return None
            return self._tried(call, args, kwargs)

        return kept

    def collective(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, which meets the other ranks: in a save its failure is kept, and it is made whatever failed before."""

        def kept(*args: Any, **kwargs: Any) -> Any:
            return self._tried(call, args, kwargs) if self._is_saving else call(*args, **kwargs)

        return kept

    def keeps_writes_of(self, engine: Any) -> None:
        """Keep the failures of a DeepSpeed engine's own writes, and write `latest` only after all other files.

        Source: deepspeed 0.19.8, runtime/engine.py (save_checkpoint: barriers after makedirs and at the end; rank 0
        writes `latest` and the recovery script in between), runtime/checkpoint_engine.
        """
        if getattr(engine, "_rekindle_keeps", None) is not None:
            return
        engine._rekindle_keeps = self
        writer = engine.checkpoint_engine
        for name in ("makedirs", "create", "save"):
            setattr(writer, name, self.local(getattr(writer, name)))
        writer.commit = self.collective(writer.commit)
        engine._copy_recovery_script = self.local(engine._copy_recovery_script)
        save_checkpoint = engine.save_checkpoint

        @wraps(save_checkpoint)  # the Trainer looks for an argument in its signature
        def saved(
            save_dir: Any, tag: Any = None, client_state: Any = None, save_latest: bool = True, **kwargs: Any
        ) -> Any:
            tag = f"global_step{engine.global_steps}" if tag is None else str(tag)
            is_last = save_latest and not self._is_saving
            done = save_checkpoint(save_dir, tag, client_state or {}, save_latest=is_last, **kwargs)
            if save_latest and not is_last and engine.global_rank == 0:
                self.local(write_latest)(save_dir, tag)
            return done

        engine.save_checkpoint = saved

    def _tried(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return call(*args, **kwargs)
        except BaseException as err:
            if must_pass(err):
                raise
            self._keep(err)
            return None

    def _keep(self, err: BaseException) -> None:
        if self._failure is None:
            self._failure = err

    @contextmanager
    def _torch_save_kept(self) -> Iterator[None]:
        """`torch.save` to a path, by which every framework here writes, keeps its failures on this thread.

        FSDP's full checkpoints leave no other place: rank 0 writes the weights, and all ranks then gather the
        optimizer. Source: accelerate 1.15, utils/fsdp_utils.py. What goes to a buffer is written by its caller, who has
        to learn of a failure.
        """
        write, thread = torch.save, threading.get_ident()
        kept = self.local(write)

        @wraps(write)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            is_file = isinstance(f, str | os.PathLike) and threading.get_ident() == thread
            return (kept if is_file else write)(obj, f, *args, **kwargs)

        torch.save = save
        try:
            yield
        finally:
            torch.save = write


def put_in_place(beside: Path, target: Path) -> None:
    """Rename, also where `target` is a folder with content. Raises: OSError; `target` is then what it was."""
    replaced = target.with_name(f".{target.name}{REPLACED}")
    is_there = target.exists()
    if is_there:
        target.rename(replaced)
    try:
        beside.rename(target)
    except OSError:
        if is_there:
            replaced.rename(target)
        raise
    with suppress(OSError):
        remove(replaced)


def clean(folder: Path) -> None:
    """Remove what saves that were killed left in a folder, and put back what they were about to replace."""
    for entry in folder.glob(f".*{REPLACED}"):
        target = entry.with_name(entry.name[1 : -len(REPLACED)])
        if target.exists():
            remove(entry)
        else:
            entry.rename(target)
    for entry in folder.glob(f".*{WRITING}"):
        remove(entry)


def write_latest(folder: str | os.PathLike[str], tag: str) -> None:
    """DeepSpeed's file that names the newest tag of a folder, whole or as it was. Raises: OSError."""
    beside = Path(folder) / ".latest.writing"
    beside.write_text(tag)
    beside.replace(Path(folder) / "latest")


def remove(path: Path) -> None:
    """A folder with its content, or a file; nothing where nothing is. Raises: OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
