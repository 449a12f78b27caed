"""Measure a finished save: which files it consists of, how large they are, and whether they are complete.

Nothing is read but a few bytes at the ends of a few files, so that a checkpoint of any size is measured at once. What
its bytes are is found later, by `hashing`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rekindle.checkpoints.containers import problem_of
from rekindle.checkpoints.folders import reader_of
from rekindle.checkpoints.formats import judge
from rekindle.checkpoints.found import Folder, Format
from rekindle.checkpoints.names import is_temporary
from rekindle.checkpoints.sharded import dcp_problems, deepspeed_problems, is_dcp, is_deepspeed
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.saving.saved import SaveResult
from rekindle.protocol.mailbox import ITSELF, MAX_FILES, ManifestFile, Place, check_path, relative_path

# Empty by intent, and no part of the state: completion marks and lock files. Any other empty file is a damaged one.
MARKERS: Final = ("_SUCCESS", ".complete", ".lock")
SETTLE_S: Final = 0.1  # between two looks at the files: one that is still being written has changed
MAX_LOOKS: Final = 16  # files of one checkpoint that are opened, the largest first
_ZIP_HEAD: Final = b"PK\x03\x04"
_ZIP_ENDS: Final = (".pt", ".pth", ".ckpt", ".bin", ".npz", ".pth.tar")


class SaveIncomplete(Exception):
    """The files are not what a manifest may vouch for: missing, empty, or damaged."""


class SaveUnsettled(Exception):
    """A file changed between two reads of it: its writer is still at work."""


class Preempted(Exception):
    """Something more urgent waits; measure this one later."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes when a local file is written again."""

    bytes: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """Raises: OSError."""
        seen = path.stat()
        return cls(seen.st_size, seen.st_mtime_ns, seen.st_ino)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSave:
    """A save's files. `root` is an absolute path or a URI; `stamps` are those of local files, by their names."""

    root: str
    files: tuple[ManifestFile, ...]
    stamps: Mapping[str, Stamp] = field(default_factory=dict)


def measure(result: SaveResult, clients: Clients, *, is_preempted: Callable[[], bool] = lambda: False) -> MeasuredSave:
    """The files of a save. Never on the training thread: a file system may be slow.

    is_preempted: asked between files; a save with many of them gives way. Objects in S3 are listed, not read.
    Raises: SaveIncomplete, SaveUnsettled, Preempted, OSError, MailboxError, botocore's errors.
    """
    raw = os.fspath(result.path)
    if raw.startswith("s3://"):
        place = Place.parse(raw, "path")
        files = tuple(_objects(place, result.files, clients))
        if not files:
            raise SaveIncomplete(f"{place.uri} holds no file")
        return MeasuredSave(root=place.uri, files=files)
    place = Place.parse(raw if raw.startswith("file://") else str(Path(raw).absolute()), "path")
    root = Path(place.path)
    before = _stamps(root, result.files, is_preempted)
    if not before:
        raise SaveIncomplete(f"{place.uri} holds no file")
    threading.Event().wait(SETTLE_S)
    if _stamps(root, result.files, is_preempted) != before:
        raise SaveUnsettled("its files are still being written")
    for name, stamp in before.items():
        if stamp.bytes == 0:
            raise SaveIncomplete(f"{_name(root, name)} is empty")
    problems = damage(root, {name: stamp.bytes for name, stamp in before.items()})
    if problems:
        raise SaveIncomplete("; ".join(problems[:3]))
    files = tuple(ManifestFile(path=name, bytes=before[name].bytes) for name in sorted(before))
    return MeasuredSave(root=place.uri, files=files, stamps=before)


def damage(root: Path, sizes: Mapping[str, int]) -> list[str]:
    """What shows that files of a local save are cut short or missing; without a known layout: nothing.

    Only what is certain counts: the trainer declared this a checkpoint, and a rule that guesses the layout must not
    contradict it.
    """
    if ITSELF in sizes:
        folder = Folder(name="", files={root.name: sizes[ITSELF]}, read=reader_of(root.parent))
        return _broken_files(folder)
    folder = Folder(name=root.name, files=sizes, read=reader_of(root))
    if "trainer_state.json" in folder.here:
        return judge(Format.HF_TRAINER, root.name, folder)[1]
    problems: list[str] = []
    inner = {name.rpartition("/")[0] for name in sizes}
    for prefix in sorted(inner):
        below = folder.below(prefix) if prefix else folder
        if is_deepspeed(below):
            problems += [f"{prefix}/{problem}" if prefix else problem for problem in deepspeed_problems(below)]
        elif is_dcp(below):
            problems += [f"{prefix}/{problem}" if prefix else problem for problem in dcp_problems(below)]
    return problems + _broken_files(folder)


def _broken_files(folder: Folder) -> list[str]:
    """Archives without their end, and .safetensors that are not as long as their headers say."""
    largest = sorted(folder.files, key=lambda path: (-folder.files[path], path))[:MAX_LOOKS]
    problems = []
    for path in largest:
        is_archive = path.endswith(_ZIP_ENDS) and folder.read(path, 0, len(_ZIP_HEAD)) == _ZIP_HEAD
        if is_archive or path.endswith(".safetensors"):
            problem = problem_of(folder, path)
            problems += [problem] if problem is not None else []
    return problems


def _name(root: Path, name: str) -> str:
    return root.name if name == ITSELF else name


def _stamps(root: Path, names: Sequence[str] | None, is_preempted: Callable[[], bool]) -> dict[str, Stamp]:
    """Raises: SaveIncomplete for a file that is missing, Preempted."""
    if root.is_file():
        return {ITSELF: Stamp.of(root)}
    found: dict[str, Stamp] = {}
    for name in _walk(root) if names is None else names:
        if is_preempted():
            raise Preempted
        try:
            stamp = Stamp.of(root / check_path(name))
        except FileNotFoundError as err:
            raise SaveIncomplete(f"{name} is missing") from err
        if names is None and stamp.bytes == 0 and name.endswith(MARKERS):
            continue
        found[name] = stamp
        if len(found) > MAX_FILES:
            raise SaveIncomplete(f"it has more than {MAX_FILES} files")
    return found


def _walk(root: Path) -> Iterator[str]:
    """Files below `root`; not those with temporary names, which are left by a save that was killed."""
    for folder, _, names in os.walk(root):
        for name in names:
            if not is_temporary(name):
                yield (Path(folder) / name).relative_to(root).as_posix()


def _objects(place: Place, names: Sequence[str] | None, clients: Clients) -> Iterator[ManifestFile]:
    wanted = None if names is None else {check_path(name) for name in names}
    for key, size in clients.objects(place.bucket or "", place.path):
        name = relative_path(place.path, key)
        if name is None or name == "" or key.endswith("/") or (wanted is not None and name not in wanted):
            continue
        if wanted is None and size == 0 and name.endswith(MARKERS):
            continue
        if size == 0:
            raise SaveIncomplete(f"{name} is empty")
        if wanted is not None:
            wanted.discard(name)
        yield ManifestFile(path=name, bytes=size)
    if wanted:
        raise SaveIncomplete(f"{min(wanted)} is missing")
