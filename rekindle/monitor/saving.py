"""From "the trainer's files are written" to "the checkpoint is whole": find the files, measure them, manifest last."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from rekindle.mailbox import ITSELF, CheckpointRequest, ManifestFile, Place, SaveKind, check_path, relative_path
from rekindle.monitor.aws import Clients
from rekindle.monitor.boxes import list_objects

HASH_CHUNK_BYTES = 4 * 1024 * 1024
# Empty by intent, and no part of the state: completion marks and lock files. Any other empty file is a damaged one.
MARKERS = ("_SUCCESS", ".complete", ".lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveResult:
    """What a save function may return instead of a bare path.

    path: folder or file, local or `s3://`. files: names below `path`, where the folder holds more than this checkpoint.
    data: small JSON for the manifest (the sampler's position and the like).
    """

    path: str | os.PathLike[str]
    files: Sequence[str] | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


class Later(Enum):
    """What a save function returns, on every rank, where its framework saves this very step by itself right after."""

    LATER = "later"


LATER = Later.LATER


class SaveFunction(Protocol):
    """The trainer's own way to save, called on the training thread between two steps, on every rank.

    Writes the state after `step` and returns when its own files are complete: a path, a `SaveResult`, or None on
    ranks other than 0. Or `LATER`: `Monitor.saved(path, step)` then tells when that save is complete.
    """

    def __call__(self, step: int, kind: str, /) -> SaveResult | Later | str | os.PathLike[str] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveJob:
    """A finished save that waits for its manifest. `requests` are answered when the manifest is there."""

    step: int
    kind: SaveKind
    result: SaveResult
    saved_at: datetime
    took_s: float | None  # None: not known
    requests: tuple[CheckpointRequest, ...] = ()
    signalled: bool = False  # a signal asked for it, and no request

    @property
    def request_id(self) -> str | None:
        """What the manifest says about who asked: a signal has no id of its own, so its step gives it one."""
        if self.requests:
            return self.requests[0].request_id
        return f"signal-{self.step}" if self.signalled else None


class SaveIncomplete(Exception):
    """The files are not what a manifest may vouch for: missing, empty, or still being written."""


def as_result(returned: object) -> SaveResult:
    """Raises: SaveIncomplete where a save function returned nothing that names a checkpoint."""
    if isinstance(returned, SaveResult):
        return returned
    if isinstance(returned, str | os.PathLike):
        return SaveResult(path=returned)
    raise SaveIncomplete(f"the save function returned {type(returned).__name__}, not a path or a SaveResult")


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """A local directory whose content appears under a URI, as SageMaker's checkpoint folder does."""

    directory: str
    uri: str

    def to_uri(self, local: str) -> str:
        inside = relative_path(self.directory, local)
        return local if inside is None else Place.parse(self.uri).join("" if inside == ITSELF else inside).uri

    def to_local(self, uri: str) -> str | None:
        inside = relative_path(self.uri, uri)
        if inside is None:
            return None
        return self.directory if inside == ITSELF else f"{self.directory.rstrip('/')}/{inside}"


def local_path(uri: str | None, upload: Upload | None) -> str | None:
    """Where a checkpoint's URI lies on this machine, if it does."""
    if uri is None:
        return None
    if upload is not None and (local := upload.to_local(uri)) is not None:
        return local
    return None if uri.startswith("s3://") else uri.removeprefix("file://")


def measure(result: SaveResult, clients: Clients) -> tuple[str, tuple[ManifestFile, ...]]:
    """(absolute path or URI, its files with sizes and checksums). Reads every byte: never on the training thread.

    Objects that the trainer put in S3 itself are listed, not read back: their checksum stays None.
    Raises: SaveIncomplete, OSError, MailboxError, botocore's errors.
    """
    raw = os.fspath(result.path)
    if raw.startswith("s3://"):
        place = Place.parse(raw, "path")
        files = tuple(_measure_objects(place, result.files, clients))
    else:
        place = Place.parse(raw if raw.startswith("file://") else str(Path(raw).absolute()), "path")
        files = tuple(_measure_local(Path(place.path), result.files))
    if not files:
        raise SaveIncomplete(f"{place.uri} holds no file")
    return place.uri, files


def _measure_local(root: Path, names: Sequence[str] | None) -> Iterator[ManifestFile]:
    if root.is_file():
        yield _measure_file(root, ITSELF)
        return
    found = names if names is not None else _walk(root)
    for name in sorted(found):
        path = root / check_path(name)
        if names is None and path.name.endswith(MARKERS) and path.stat().st_size == 0:
            continue
        yield _measure_file(path, name)


def _walk(root: Path) -> Iterator[str]:
    for folder, _, names in os.walk(root):
        for name in names:
            yield (Path(folder) / name).relative_to(root).as_posix()


def _measure_file(path: Path, name: str) -> ManifestFile:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            before = os.fstat(file.fileno())
            while chunk := file.read(HASH_CHUNK_BYTES):
                digest.update(chunk)
        after = path.stat()
    except FileNotFoundError as err:
        raise SaveIncomplete(f"{name} is missing") from err
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise SaveIncomplete(f"{name} was still being written")
    if after.st_size == 0:
        raise SaveIncomplete(f"{name} is empty")
    return ManifestFile(path=name, bytes=after.st_size, sha256=digest.hexdigest())


def _measure_objects(place: Place, names: Sequence[str] | None, clients: Clients) -> Iterator[ManifestFile]:
    wanted = None if names is None else {check_path(name) for name in names}
    for key, size in list_objects(clients, place.bucket or "", place.path):
        name = relative_path(place.path, key)
        if name is None or name == "" or key.endswith("/") or (wanted is not None and name not in wanted):
            continue
        if wanted is None and size == 0 and name.endswith(MARKERS):
            continue
        if size == 0:
            raise SaveIncomplete(f"{name} is empty")
        if wanted is not None:
            wanted.discard(name)
        yield ManifestFile(path=name, bytes=size, sha256=None)
    if wanted:
        raise SaveIncomplete(f"{min(wanted)} is missing")
