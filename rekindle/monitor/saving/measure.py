"""Measure a finished save: which files it consists of, how large they are, and whether they are complete.

Nothing is read but a few bytes at the ends of a few files, so that a checkpoint of any size is measured at once. What
its bytes are is found later, by `hashing`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rekindle.checkpoints.counts import closest
from rekindle.checkpoints.folders import declared_at
from rekindle.checkpoints.found import Stamp
from rekindle.checkpoints.names import STATE_ENDS, may_be_empty
from rekindle.checkpoints.verdict import OF_ANOTHER, Evidence, Fault, Problem, texts, verdict
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.stacks import is_working
from rekindle.monitor.saving.file_clock import file_time_of
from rekindle.monitor.saving.own_saves import OwnSaves
from rekindle.monitor.saving.rank_files import Told, names_below
from rekindle.monitor.saving.saved import SaveResult
from rekindle.protocol.manifests import ITSELF, MAX_FILES, ManifestFile, check_path, relative_path
from rekindle.protocol.wire import Place

SETTLE_S: Final = 0.1  # between two looks at the files: one that is still being written has changed
_TENSORS: Final = tuple(end for end in STATE_ENDS if end != ".json")
# Unchanged for so long, while a thread lives that the save began and that may be its writer.
WRITER_QUIET_S: Final = 5.0
MAX_VERSIONS: Final = 256  # objects of one checkpoint whose version is asked for, each by a request of its own


class SaveIncomplete(Exception):
    """The files are not what a manifest may vouch for: missing, empty, or damaged."""


class SaveUnsettled(Exception):
    """Its writer is still at work, or not all of it can be seen yet: a file has changed meanwhile, or is missing."""


class SaveGone(SaveUnsettled):
    """Nothing is there, or not any more."""


class Preempted(Exception):
    """Something more urgent waits; measure this one later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is said of a save. began: by the monotonic clock, before which nothing of it can have been written; None
    where that is not known. writers: threads that were born while it was made. own: the run's other
    checkpoints. told: what the other ranks see of its files. is_copied: elsewhere, from the disk of each host.
    """

    step: int | None = None
    began: float | None = None
    writers: Sequence[threading.Thread] = ()
    own: OwnSaves = field(default_factory=OwnSaves)
    told: Told = field(default_factory=dict)
    is_copied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSave:
    """A save's files. `root` is an absolute path or a URI; `stamps` are those of local files, by their names.

    nan: where its tensors hold NaN, in words; None where none was seen.
    """

    root: str
    files: tuple[ManifestFile, ...]
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    nan: str | None = None


def measure(
    result: SaveResult,
    clients: Clients,
    *,
    claim: Claim | None = None,
    is_preempted: Callable[[], bool] = lambda: False,
) -> MeasuredSave:
    """The files of a save. Never on the training thread: a file system may be slow.

    is_preempted: asked between files; a save with many of them gives way. Objects in S3 are listed, not read.
    Raises: SaveIncomplete, SaveUnsettled (SaveGone), Preempted, OSError, MailboxError, botocore's errors.
    """
    claim = claim or Claim()
    raw = os.fspath(result.path)
    if raw.startswith("s3://"):
        place = Place.parse(raw, "path")
        stamps = _of_the_save(_objects(place, clients), result.files, place)
        return MeasuredSave(root=place.uri, files=tuple(_with_versions(place, stamps, clients)))
    place = Place.parse(raw if raw.startswith("file://") else str(Path(raw).absolute()), "path")
    root = Path(place.path)
    before = _of_the_save(_stamps(root, result.files, is_preempted), result.files, place)
    _settle(root, before, claim)
    if _of_the_save(_stamps(root, result.files, is_preempted), result.files, place) != before:
        raise SaveUnsettled("its files are still being written")
    unseen = _unseen(before, result.files, claim)
    sizes = {name: stamp.bytes for name, stamp in before.items()} | unseen
    found = declared_at(root, sizes, elsewhere=frozenset(unseen))
    steps = found.inner_steps
    begun_at = None if claim.began is None else file_time_of(claim.began, root)
    evidence = Evidence(
        step=claim.step,
        left_out=claim.own.left_out,
        counted=claim.own.counted,
        inner_steps=steps,
        problems=(*found.certain, *claim.own.missing(root, sizes)),
        begun_at=begun_at,
        stamps=before,
    )
    named = {name: closest(claim.step or 0, steps.get(_name(root, name), ())) for name in before}
    problems = verdict(evidence)
    if claim.step is not None and not any(problem.fault is Fault.OLD for problem in problems):
        claim.own.saw(claim.step, root, named, is_sealed=not problems)
    _insist(problems)
    files = tuple(
        ManifestFile(
            path=name,
            bytes=before[name].bytes,
            mtime_ns=before[name].mtime_ns,
            inode=before[name].inode,
            step=named[name],
        )
        for name in sorted(before)
    )
    files += tuple(ManifestFile(path=name, bytes=size) for name, size in sorted(unseen.items()))
    return MeasuredSave(root=place.uri, files=files, stamps=before, nan=found.nan)


def _unseen(before: Mapping[str, Stamp], names: Sequence[str] | None, claim: Claim) -> dict[str, int]:
    """The files, with their sizes, that other ranks have on the disks of their hosts.

    Raises: SaveUnsettled for one that should be seen here, and is not yet, or not yet as it was written.
    """
    unseen: dict[str, int] = {}
    for name, (size, written_ns) in claim.told.items():
        stamp = before.get(name)
        if stamp is None:
            if (names is None or name in names) and not (size == 0 and may_be_empty(name)):
                unseen[name] = size
            continue
        seen_ns = stamp.mtime_ns or 0
        if seen_ns < written_ns or (seen_ns == written_ns and stamp.bytes < size):
            raise SaveUnsettled(f"{name} is not seen yet as another rank has written it")
    if unseen and not claim.is_copied:
        raise SaveUnsettled(f"{min(unseen)}, which another rank has written, is not seen here")
    return unseen


def _insist(problems: Sequence[Problem]) -> None:
    """Raises: SaveIncomplete, SaveUnsettled where a writer that is still at work would explain it."""
    if not problems:
        return
    why = "; ".join(texts(problems)[:3])
    if all(problem.fault in OF_ANOTHER and problem.fault is not Fault.OLD for problem in problems):
        raise SaveIncomplete(why)
    raise SaveUnsettled(why)


def _settle(root: Path, stamps: Mapping[str, Stamp], claim: Claim) -> None:
    """Wait for a moment without a change. Raises: SaveUnsettled where it has a writer that is at work."""
    threading.Event().wait(SETTLE_S)
    if _is_open(root):
        raise SaveUnsettled("a file of it is open for writing")
    if not any(is_working(thread) for thread in claim.writers):
        return
    newest = max((stamp.written_ns or 0 for stamp in stamps.values()), default=0) / 1e9
    now = file_time_of(time.monotonic(), root)
    if now is None or now - newest < WRITER_QUIET_S:
        raise SaveUnsettled("a thread that the save began is still at work")


def _is_open(root: Path) -> bool:
    """Whether this process has a file at or below `root` open for writing. Linux tells; elsewhere it is not known."""
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return False
    return any(_writes_to(root, number) for number in numbers)


def _writes_to(root: Path, number: str) -> bool:
    try:
        target = os.readlink(f"/proc/self/fd/{number}")
        if not (target == str(root) or target.startswith(f"{root}/")) or not target.endswith(_TENSORS):
            return False  # a log may stay open in a folder of checkpoints
        with open(f"/proc/self/fdinfo/{number}") as file:
            flags = next(line for line in file if line.startswith("flags:"))
        return bool(int(flags.split()[1], 8) & (os.O_WRONLY | os.O_RDWR))
    except (OSError, ValueError, StopIteration):  # closed meanwhile
        return False


def _name(root: Path, name: str) -> str:
    return root.name if name == ITSELF else name


def _stamps(root: Path, names: Sequence[str] | None, is_preempted: Callable[[], bool]) -> dict[str, Stamp]:
    """Raises: SaveUnsettled for a file that is missing, also behind a link; SaveIncomplete, Preempted."""
    if root.is_file():
        return {ITSELF: Stamp.of(root)}
    found: dict[str, Stamp] = {}
    for name in names_below(root) if names is None else map(check_path, names):
        if is_preempted():
            raise Preempted
        try:
            # A link to what lies elsewhere, such as the weights of a base model, is placed here when it is made.
            stamp, placed_ns = Stamp.of(root / name), os.lstat(root / name).st_ctime_ns
            found[name] = replace(stamp, changed_ns=max(stamp.changed_ns or 0, placed_ns))
        except FileNotFoundError as err:
            raise SaveUnsettled(f"{name} is missing") from err
        if len(found) > MAX_FILES:
            raise SaveIncomplete(f"it has more than {MAX_FILES} files")
    return found


def _of_the_save(found: dict[str, Stamp], names: Sequence[str] | None, place: Place) -> dict[str, Stamp]:
    """What is the save's of what is there. Raises: SaveUnsettled where one is missing or empty; SaveGone."""
    if names is None or ITSELF in found:
        found = {name: stamp for name, stamp in found.items() if stamp.bytes or not may_be_empty(name)}
    elif missing := {check_path(name) for name in names} - found.keys():
        raise SaveUnsettled(f"{min(missing)} is missing")
    else:
        found = {name: found[name] for name in names}
    if not found:
        raise SaveGone(f"{place.uri} holds no file")
    if empty := [name for name, stamp in found.items() if stamp.bytes == 0]:
        raise SaveUnsettled(f"{_name(Path(place.path), min(empty))} is empty")
    return found


def _objects(place: Place, clients: Clients) -> dict[str, Stamp]:
    listed = [item for item in clients.objects(place.bucket or "", place.path) if not item.key.endswith("/")]
    named = ((relative_path(place.path, item.key), item) for item in listed)
    return {name: Stamp(item.bytes, etag=item.etag or None) for name, item in named if name}


def _with_versions(place: Place, stamps: Mapping[str, Stamp], clients: Clients) -> Iterator[ManifestFile]:
    """Asked for until one has none: a bucket keeps them of all its objects, or of none."""
    has_versions = len(stamps) <= MAX_VERSIONS
    for name, stamp in stamps.items():
        key = place.path if name == ITSELF else place.join(name).path
        version = clients.version(place.bucket or "", key) if has_versions else None
        has_versions = version is not None
        yield ManifestFile(path=name, bytes=stamp.bytes, etag=stamp.etag, version=version)
