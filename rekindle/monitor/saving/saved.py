"""What a save function returns, and a finished save on its way to its manifest."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from threading import Thread
from typing import Any, Protocol

from rekindle.monitor.saving.rank_files import Told
from rekindle.protocol.mailbox import CheckpointRequest
from rekindle.protocol.manifests import ITSELF, SaveKind, relative_path
from rekindle.protocol.wire import Place


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
    """What a save function returns, on every rank, where its framework saves this very step right after."""

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
    poisoned: bool = False  # a value that is not finite had been seen when it was saved
    began: float | None = None  # by the monotonic clock, before which nothing of it was written; None: not known
    writers: Sequence[Thread] = ()  # born while the save function ran
    told: Told = field(default_factory=dict)  # what the other ranks see of its files
    is_loss_unread: bool = False  # the newest loss could not be read, so that neither is known

    @property
    def is_urgent(self) -> bool:
        """An emergency checkpoint, or one that answers a request: it goes before all others, and is never dropped."""
        return self.kind is SaveKind.EMERGENCY or bool(self.requests)

    @property
    def request_id(self) -> str | None:
        """What the manifest says about who asked: a signal has no id of its own, so its step gives it one."""
        if self.requests:
            return self.requests[0].request_id
        return f"signal-{self.step}" if self.kind is SaveKind.EMERGENCY else None  # else a request asked for it


class NoCheckpoint(Exception):
    """A save function returned nothing that names a checkpoint."""


def as_result(returned: object) -> SaveResult:
    """Raises: NoCheckpoint."""
    if isinstance(returned, SaveResult):
        return returned
    if isinstance(returned, str | os.PathLike):
        return SaveResult(path=returned)
    raise NoCheckpoint(f"the save function returned {type(returned).__name__}, not a path or a SaveResult")


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


_sampler: tuple[weakref.WeakMethod[Callable[[int], int | None]], int] | None = None


def watch_samples(used: Callable[[int], int | None], used_by_step: int) -> None:
    """Manifests of this process say from now on what a sampler counts, by all ranks, for as long as it lives.

    used: its method, for the samples that were used up to a step; None where that is not known.
    """
    global _sampler
    _sampler = weakref.WeakMethod(used), used_by_step


def samples_at(step: int) -> tuple[int | None, int | None]:
    """(samples that were used up to the step, samples per step); None where they are not known. For any thread."""
    used = None if _sampler is None else _sampler[0]()
    return (None, None) if _sampler is None or used is None else (used(step), _sampler[1])
