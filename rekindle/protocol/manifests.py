"""Documents that describe a checkpoint: its manifest, which proves that it is whole, and the hashes of its files.

A manifest is written once, after all files of the checkpoint, and lists each with its size. The hashes of the files are
a separate document, written later: reading 40 GB takes minutes, and a checkpoint counts as soon as it has a manifest.
Standard library only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final

from rekindle.compat import StrEnum
from rekindle.protocol.bounds import (
    Bytes,
    Count,
    Finite,
    Identity,
    Items,
    PlaceUri,
    Sha256,
    Sparse,
    Text,
    Whole,
    WorldSize,
)
from rekindle.protocol.codec import Document
from rekindle.protocol.keys import hashes_key, manifest_key
from rekindle.protocol.lives import OfLife
from rekindle.protocol.message import Message
from rekindle.protocol.wire import MAX_PATH_CHARS, MailboxError, Place

MAX_MANIFEST_BYTES: Final = 8 * 1024 * 1024  # about 40,000 files, far above a sharded checkpoint of 4,096 ranks
MAX_FILES: Final = 40_000
POISONED: Final = "a value that is not finite had been seen when it was sealed: its weights may be poisoned"


class SaveKind(StrEnum):
    """Why a checkpoint was saved."""

    PERIODIC = "periodic"  # by the training script, at its own interval
    EMERGENCY = "emergency"  # because the run is about to be stopped
    FINAL = "final"  # at the end of the run


OUTSIDE: Final = "it lies outside the Job's own mailbox and the places declared for its checkpoints"

ITSELF: Final = "."  # the path of the only file of a checkpoint whose root is that file


def check_path(value: object, field: str = "path") -> str:
    """A path inside a checkpoint: relative, forward slashes, no way out. Raises: MailboxError."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PATH_CHARS:
        raise MailboxError(field, f"must be a string of 1 to {MAX_PATH_CHARS} characters")
    if value == ITSELF:
        return value
    if "\\" in value or any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise MailboxError(field, "holds a backslash or a control character")
    if any(part in ("", ".", "..") for part in value.split("/")):
        raise MailboxError(field, "must be relative, with no empty, '.' or '..' part")
    return value


def is_below(place: Place, own: Sequence[Place]) -> bool:
    """Whether `place` is one of the places `own`, or lies below one.

    A whole bucket may be among `own`; the root of a file system is ignored, because everything lies below it.
    """
    return any(
        place.bucket == outer.bucket
        and (bool(outer.path) or outer.bucket is not None)
        and (place.path == outer.path or not outer.path or place.path.startswith(f"{outer.path}/"))
        for outer in own
    )


Nanoseconds = Annotated[int, Whole(-(2**63), 2**63 - 1)]
FilePath = Annotated[str, Text(MAX_PATH_CHARS, check=check_path)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile(Document):
    """One file of a checkpoint: its path below the root, and its size.

    mtime_ns, inode: of a local file, so that one that is written again under the same name is not taken for it. etag,
    version: of an object in S3, the latter where its bucket keeps versions. All of these are None where not the files
    that were sealed lie at the root, but copies of them. step: the number that its content names as its step.
    """

    path: FilePath
    bytes: Bytes
    mtime_ns: Annotated[Nanoseconds | None, Sparse()] = None
    inode: Annotated[Annotated[int, Whole(0, 2**64 - 1)] | None, Sparse()] = None
    etag: Annotated[Annotated[str, Text(128)] | None, Sparse()] = None
    version: Annotated[Annotated[str, Text(1024)] | None, Sparse()] = None
    step: Annotated[Count | None, Sparse()] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(OfLife, Message):
    """Proves that a checkpoint is whole: it is written after all of its files were written and measured.

    `root` is the checkpoint's folder; or, where `files` is one entry with the path `.`, the file itself.
    `data` is the trainer's own small JSON (position of the sampler and the like), opaque to the service.
    `loss` is the last finite loss of a run that was not poisoned. `poisoned`: when this was sealed, a loss or gradient
    that is not finite had been seen, so that the weights may hold such values. `loss_unread`: the newest loss could not
    be read then, so that this is not known. `life`: which start of the attempt's processes saved it. `samples`: how
    many all steps had used, each epoch as a whole; `samples_per_step`: by all ranks.
    """

    LIMIT_BYTES: ClassVar[int] = MAX_MANIFEST_BYTES

    job_id: Identity
    attempt: Identity
    attempt_number: Count
    step: Count
    kind: SaveKind
    request_id: Identity | None = None
    root: PlaceUri
    files: Annotated[tuple[ManifestFile, ...], Items(MAX_FILES, least=1)]
    world_size: WorldSize
    data: Mapping[str, Any] = field(default_factory=dict)
    loss: Finite | None = None
    poisoned: bool = False
    life: Count = 0
    loss_unread: Annotated[bool, Sparse()] = False
    samples: Annotated[Count | None, Sparse()] = None
    samples_per_step: Annotated[Count | None, Sparse()] = None
    saved_at: datetime

    @property
    def key(self) -> str:
        return manifest_key(self.step, self.attempt, self.life)

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest as it is written; what `Hashes.manifest` names."""
        return hashlib.sha256(self.to_json()).hexdigest()

    @property
    def total_bytes(self) -> int:
        return sum(item.bytes for item in self.files)

    def place_of(self, item: ManifestFile) -> Place:
        root = Place.parse(self.root, "root")
        return root if item.path == ITSELF else root.join(check_path(item.path))

    def check_fields(self) -> None:
        """Raises: MailboxError for a file that is listed twice, or for files beside a root that is itself a file."""
        seen: set[str] = set()
        for index, item in enumerate(self.files):
            if item.path in seen:
                raise MailboxError(f"files.{index}.path", "is named twice")
            seen.add(item.path)
        if ITSELF in seen and len(seen) > 1:
            raise MailboxError("files", "'.' must be the only file where the root is a file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashes(OfLife, Message):
    """SHA-256 of files that a manifest names, as they were read back some time after it was written.

    They detect what sizes do not: content that has changed since, by a bad disk, a bad copy or another writer.
    `manifest` is the digest of that manifest (see `Manifest.digest`), so that a manifest that replaced it is not
    checked against these hashes. `files` maps paths of the manifest to lower-case hex; other files were not read.
    """

    LIMIT_BYTES: ClassVar[int] = MAX_MANIFEST_BYTES

    job_id: Identity
    attempt: Identity
    step: Count
    manifest: Sha256
    files: Annotated[Mapping[FilePath, Sha256], Items(MAX_FILES)] = field(default_factory=dict)
    life: Count = 0
    hashed_at: datetime

    @property
    def key(self) -> str:
        return hashes_key(self.step, self.attempt, self.life)


def relative_path(root: str, item: str) -> str | None:
    """The manifest path of `item` under `root` (two keys or two directory paths), or None where it lies elsewhere.

    Turns a listing into the `sizes` of `verify_listing`, also where the root is the file itself.
    """
    root, item = root.rstrip("/"), item.rstrip("/")
    if item == root:
        return ITSELF
    if root == "":
        return item.lstrip("/")  # the whole bucket, or the file system's own root
    return item[len(root) + 1 :] if item.startswith(f"{root}/") else None


def verify_listing(manifest: Manifest, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The problems that keep a checkpoint from being *verified*, in the manifest's order; empty means whole.

    `sizes` maps each path found under the manifest's root (see `relative_path`) to its size in bytes.
    Files that the manifest does not list are no problem. An empty file is one: a full disk leaves such files. A
    poisoned checkpoint has a problem even if its files are whole.
    """
    problems: list[str] = []
    if manifest.poisoned:
        problems.append(POISONED)
    if not manifest.files:
        problems.append("names no file")
    for item in manifest.files:
        try:
            path = check_path(item.path)
        except MailboxError as err:
            problems.append(f"{item.path!r} leads out of the checkpoint: {err.problem}")
            continue
        found, named = sizes.get(path), "the file" if path == ITSELF else path
        if found is None:
            problems.append(f"{named} is missing")
        elif found != item.bytes:
            problems.append(f"{named} has {found} bytes, the manifest says {item.bytes}")
        elif found == 0:
            problems.append(f"{named} is empty")
    return tuple(problems)
