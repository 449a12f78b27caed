"""What says that a checkpoint is whole: its manifest, and the hashes of its files, which follow later.

A manifest is written once, after every one of its files was, and names each with its size. The hashes of the same files
are a document of their own beside it, written when they are known: reading 40 GB takes minutes, and a checkpoint counts
as soon as its manifest is there. Standard library only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Final

from rekindle.compat import Self, StrEnum
from rekindle.protocol.keys import hashes_key, manifest_key
from rekindle.protocol.wire import MAX_PATH_CHARS, MAX_RANK, MailboxError, Message, Place, Reader

MAX_MANIFEST_BYTES: Final = 8 * 1024 * 1024  # about 40,000 files, far above a sharded checkpoint of 4,096 ranks
MAX_FILES: Final = 40_000
POISONED: Final = "a value that is not finite had been seen when it was sealed: its weights may be poisoned"

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class SaveKind(StrEnum):
    PERIODIC = "periodic"
    EMERGENCY = "emergency"
    FINAL = "final"


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
    """Whether it is one of those places, or lies in one. A whole file system is no such place; a bucket may be."""
    return any(
        place.bucket == one.bucket
        and (bool(one.path) or one.bucket is not None)
        and (place.path == one.path or not one.path or place.path.startswith(f"{one.path}/"))
        for one in own
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One file."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Message):
    """Says that a checkpoint is whole: written after every one of its files was written and measured.

    `root` is the checkpoint's folder; or, where `files` is one entry with the path `.`, the file itself.
    `data` is the trainer's own small JSON (position of the sampler and the like), opaque to the service.
    `loss` is the last finite loss of a run that was not poisoned. `poisoned`: when this was sealed, a loss or gradient
    that is not finite had been seen, so that the weights may hold such values.
    """

    LIMIT_BYTES: ClassVar[int] = MAX_MANIFEST_BYTES

    job_id: str
    attempt: str
    attempt_number: int
    step: int
    kind: SaveKind
    root: str
    files: tuple[ManifestFile, ...]
    world_size: int
    saved_at: datetime
    request_id: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    loss: float | None = None
    poisoned: bool = False

    @property
    def key(self) -> str:
        return manifest_key(self.step, self.attempt)

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest as it is written; what `Hashes.manifest` names."""
        return hashlib.sha256(self.to_json()).hexdigest()

    @property
    def total_bytes(self) -> int:
        return sum(item.bytes for item in self.files)

    def place_of(self, item: ManifestFile) -> Place:
        """Where one of the files lies."""
        root = Place.parse(self.root, "root")
        return root if item.path == ITSELF else root.join(check_path(item.path))

    def to_wire(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "attempt": self.attempt,
            "attempt_number": self.attempt_number,
            "step": self.step,
            "kind": self.kind.value,
            "request_id": self.request_id,
            "root": self.root,
            "files": [{"path": item.path, "bytes": item.bytes} for item in self.files],
            "world_size": self.world_size,
            "data": dict(self.data),
            "loss": self.loss,
            "poisoned": self.poisoned,
            "saved_at": self.saved_at.isoformat(),
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        root = reader.text("root", 2 * MAX_PATH_CHARS)
        Place.parse(root, "root")
        return cls(
            job_id=reader.identity("job_id"),
            attempt=reader.identity("attempt"),
            attempt_number=reader.whole("attempt_number"),
            step=reader.whole("step"),
            kind=reader.word("kind", SaveKind),
            request_id=reader.optional_identity("request_id"),
            root=root,
            files=_read_files(reader.items("files", MAX_FILES)),
            world_size=reader.whole("world_size", 1, MAX_RANK),
            data=reader.mapping("data"),
            loss=reader.optional_number("loss"),
            poisoned=reader.flag("poisoned"),
            saved_at=reader.moment("saved_at"),
        )


def _read_files(items: Sequence[Any]) -> tuple[ManifestFile, ...]:
    files: list[ManifestFile] = []
    seen: set[str] = set()
    for index, item in enumerate(items):
        at = f"files.{index}."
        if not isinstance(item, dict):
            raise MailboxError(f"files.{index}", "must be an object")
        reader = Reader(item, at)
        path = check_path(item.get("path"), f"{at}path")
        if path in seen:
            raise reader.fail("path", "is named twice")
        seen.add(path)
        files.append(ManifestFile(path=path, bytes=reader.whole("bytes", 0, 2**63 - 1)))
    if not files:
        raise MailboxError("files", "must name at least one file")
    if ITSELF in seen and len(files) > 1:
        raise MailboxError("files", "'.' must be the only file where the root is a file")
    return tuple(files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hashes(Message):
    """SHA-256 of files that a manifest names, as they were read back some time after it was written.

    They tell what sizes cannot: a file whose content has changed since, by a bad disk, a bad copy or another writer.
    `manifest` is the digest of that manifest (see `Manifest.digest`); hashes of another one say nothing about it.
    `files` maps paths of the manifest to lower-case hex; a file that is not in it was not read.
    """

    LIMIT_BYTES: ClassVar[int] = MAX_MANIFEST_BYTES

    job_id: str
    attempt: str
    step: int
    manifest: str
    files: Mapping[str, str]
    hashed_at: datetime

    @property
    def key(self) -> str:
        return hashes_key(self.step, self.attempt)

    def to_wire(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "attempt": self.attempt,
            "step": self.step,
            "manifest": self.manifest,
            "files": dict(self.files),
            "hashed_at": self.hashed_at.isoformat(),
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        files = reader.mapping("files")
        if len(files) > MAX_FILES:
            raise reader.fail("files", f"names more than {MAX_FILES} files")
        for path, digest in files.items():
            check_path(path, "files")
            _check_digest(digest, "files")
        return cls(
            job_id=reader.identity("job_id"),
            attempt=reader.identity("attempt"),
            step=reader.whole("step"),
            manifest=_check_digest(reader.text("manifest", 64), "manifest"),
            files={str(path): str(digest) for path, digest in files.items()},
            hashed_at=reader.moment("hashed_at"),
        )


def _check_digest(value: object, name: str) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise MailboxError(name, "must be 64 lower-case hex digits")
    return value


def relative_path(root: str, item: str) -> str | None:
    """The manifest path of `item` under `root` (two keys or two directory paths), or None where it lies elsewhere.

    Turns a listing into the `sizes` of `verify_listing`, also where the root is the file itself.
    """
    root, item = root.rstrip("/"), item.rstrip("/")
    if item == root:
        return ITSELF
    return item[len(root) + 1 :] if root == "" or item.startswith(f"{root}/") else None


def verify_listing(manifest: Manifest, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The problems that keep a checkpoint from being *verified*, in the manifest's order; empty means whole.

    `sizes` maps each path found under the manifest's root (see `relative_path`) to its size in bytes.
    Files beyond the manifest's are no problem. An empty file is one: it is what a full disk leaves behind. So is a
    checkpoint that was sealed as poisoned, whole as its files may be.
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
        found = sizes.get(path)
        if found is None:
            problems.append(f"{path} is missing")
        elif found != item.bytes:
            problems.append(f"{path} has {found} bytes, the manifest says {item.bytes}")
        elif found == 0:
            problems.append(f"{path} is empty")
    return tuple(problems)
