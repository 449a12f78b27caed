"""The emergency-checkpoint wire format: one definition for the service and for the monitor.

A mailbox is a folder, `<prefix>/rekindle/`, under the Job's own S3 prefix or shared directory:

    fence.json                                  service → monitor   the one attempt that may write
    requests/<request_id>.json                  service → monitor   save now, answer before the deadline
    replies/<request_id>.json                   monitor → service   saved | cannot | refused
    manifests/step-<step, 12 digits>-<attempt>.json   monitor → service   written last: the checkpoint is whole
    beats/<attempt>.json                        monitor → service   overwritten at every beat

Keys made and parsed here are relative to `<prefix>`. Everything read from a mailbox is untrusted: each reader either
returns a whole message or raises `MailboxError`, which names the field. Standard library only.

What "step" means everywhere: the number of the last step whose update is contained. Training resumes at `step + 1`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, Final, Self, TypeVar
from urllib.parse import unquote, urlsplit

WIRE_VERSION: Final = 1
FOLDER: Final = "rekindle"
MAX_STEP: Final = 10**12 - 1  # twelve digits keep manifest names sorted by step
MAX_MESSAGE_BYTES: Final = 256 * 1024  # fence, request, reply and beat; a reply's stacks are the only large part
MAX_MANIFEST_BYTES: Final = 8 * 1024 * 1024  # about 40,000 files, far above a sharded checkpoint of 4,096 ranks
MAX_FILES: Final = 40_000
MAX_PATH_CHARS: Final = 1024  # an S3 key's own limit
MAX_TEXT_CHARS: Final = 2000
MAX_STACKS_CHARS: Final = 48 * 1024  # a reply travels as an event too, and an event has 256 KB
MAX_ENV_CHARS: Final = 512  # Source: botocore sagemaker TrainingEnvironmentValue, max 512

# What a new attempt is told: environment variables of the training container.
ENV_JOB_ID: Final = "REKINDLE_JOB_ID"
ENV_ATTEMPT: Final = "REKINDLE_ATTEMPT"
ENV_MAILBOX: Final = "REKINDLE_MAILBOX"
ENV_BUS: Final = "REKINDLE_BUS"
ENV_RESUME_STEP: Final = "REKINDLE_RESUME_STEP"
ENV_RESUME_URI: Final = "REKINDLE_RESUME_URI"
ENV_RESUME_MANIFEST: Final = "REKINDLE_RESUME_MANIFEST"
ENV_SKIP: Final = "REKINDLE_SKIP"
ENV_INCIDENT: Final = "REKINDLE_INCIDENT"
ENV_ATTEMPT_NAME: Final = "TRAINING_JOB_NAME"  # set by SageMaker itself; Source: sagemaker-training-toolkit
# Where the container's own checkpoint folder appears (SageMaker's CheckpointConfig); optional. With both set, manifests
# name the URI, and the monitor turns a resume URI back into the local path.
ENV_CHECKPOINT_DIR: Final = "REKINDLE_CHECKPOINT_DIR"
ENV_CHECKPOINT_URI: Final = "REKINDLE_CHECKPOINT_URI"
ENV_NAMES: Final = (
    ENV_JOB_ID,
    ENV_ATTEMPT,
    ENV_MAILBOX,
    ENV_BUS,
    ENV_RESUME_STEP,
    ENV_RESUME_URI,
    ENV_RESUME_MANIFEST,
    ENV_SKIP,
    ENV_INCIDENT,
)

_ID: Final = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,128}\Z")
_KEY: Final = re.compile(
    rf"(?:(?P<prefix>.*)/)?{FOLDER}/(?:"
    r"(?P<fence>fence)\.json"
    r"|requests/(?P<request>[A-Za-z0-9._-]{1,128})\.json"
    r"|replies/(?P<reply>[A-Za-z0-9._-]{1,128})\.json"
    r"|manifests/step-(?P<step>[0-9]{12})-(?P<manifest>[A-Za-z0-9._-]{1,128})\.json"
    r"|beats/(?P<beat>[A-Za-z0-9._-]{1,128})\.json"
    r")\Z",
    re.DOTALL,
)


class MailboxError(ValueError):
    """A message, key, URI or variable is wrong. `field` is its dotted path, `problem` says what is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class KeyKind(StrEnum):
    FENCE = "fence"
    REQUEST = "request"
    REPLY = "reply"
    MANIFEST = "manifest"
    BEAT = "beat"


class ReplyOutcome(StrEnum):
    """`saved`: the manifest is there. `cannot`: tried or stuck, see `why`. `refused`: not mine to do, or too late."""

    SAVED = "saved"
    CANNOT = "cannot"
    REFUSED = "refused"


class SaveKind(StrEnum):
    PERIODIC = "periodic"
    EMERGENCY = "emergency"
    FINAL = "final"


class LossState(StrEnum):
    """`none`: no loss was reported yet; never to be read as finite."""

    FINITE = "finite"
    NAN = "nan"
    INF = "inf"
    NONE = "none"


class RunPhase(StrEnum):
    STARTUP = "startup"
    TRAINING = "training"
    EVALUATION = "evaluation"
    SAVING = "saving"
    FINISHED = "finished"
    STALLED = "stalled"


def check_id(value: object, field: str = "id") -> str:
    """The id itself. Raises: MailboxError for anything outside `[A-Za-z0-9._-]{1,128}`, and for dots alone."""
    if not isinstance(value, str) or not _ID.match(value):
        raise MailboxError(field, "must be 1 to 128 characters of A-Z a-z 0-9 . _ -, and not dots alone")
    return value


def fence_key() -> str:
    return f"{FOLDER}/fence.json"


def request_prefix() -> str:
    return f"{FOLDER}/requests/"


def request_key(request_id: str) -> str:
    return f"{request_prefix()}{check_id(request_id, 'request_id')}.json"


def reply_key(request_id: str) -> str:
    return f"{FOLDER}/replies/{check_id(request_id, 'request_id')}.json"


def manifest_prefix() -> str:
    return f"{FOLDER}/manifests/"


def manifest_key(step: int, attempt: str) -> str:
    if isinstance(step, bool) or not 0 <= step <= MAX_STEP:
        raise MailboxError("step", f"must be 0 to {MAX_STEP}")
    return f"{manifest_prefix()}step-{step:012d}-{check_id(attempt, 'attempt')}.json"


def beat_key(attempt: str) -> str:
    return f"{FOLDER}/beats/{check_id(attempt, 'attempt')}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A parsed key. `prefix` is what stands before `rekindle/`, without the slash; `name` the request id or attempt."""

    kind: KeyKind
    prefix: str
    name: str = ""
    step: int | None = None


def parse_key(key: str) -> Key | None:
    """What a key in a mailbox stands for, or None for a key that is not the mailbox's."""
    match = _KEY.match(key)
    if match is None:
        return None
    prefix = match["prefix"] or ""
    if match["fence"]:
        return Key(kind=KeyKind.FENCE, prefix=prefix)
    for kind in (KeyKind.REQUEST, KeyKind.REPLY, KeyKind.MANIFEST, KeyKind.BEAT):
        name = match[kind.value]
        if name is not None and _ID.match(name):
            step = int(match["step"]) if kind is KeyKind.MANIFEST else None
            return Key(kind=kind, prefix=prefix, name=name, step=step)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something lies: `s3://bucket/path`, or a directory (`bucket` is None and `path` absolute)."""

    bucket: str | None
    path: str

    @classmethod
    def parse(cls, uri: str, field: str = "uri") -> Place:
        """Raises: MailboxError for anything but `s3://bucket[/path]`, `file:///path` or an absolute path."""
        if "\0" in uri or len(uri) > 2 * MAX_PATH_CHARS:
            raise MailboxError(field, "is too long or holds a NUL")
        if uri.startswith("s3://"):
            bucket, _, path = uri[len("s3://") :].partition("/")
            if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
                raise MailboxError(field, "names no valid bucket")
            place = cls(bucket=bucket, path=path.strip("/"))
        elif uri.startswith("file://"):
            parts = urlsplit(uri)
            if parts.netloc not in ("", "localhost"):
                raise MailboxError(field, "a file URI must not name a host")
            place = cls(bucket=None, path=unquote(parts.path).rstrip("/"))
        else:
            place = cls(bucket=None, path=uri.rstrip("/"))
        if place.bucket is None and not place.path.startswith("/"):
            raise MailboxError(field, "must be s3://bucket/prefix, file:///path or an absolute path")
        if ".." in place.path.split("/"):
            raise MailboxError(field, "must not hold '..'")
        return place

    def join(self, key: str) -> Place:
        """The place of `key` below this one."""
        return Place(bucket=self.bucket, path=f"{self.path}/{key}" if self.path or self.bucket is None else key)

    @property
    def uri(self) -> str:
        return self.path if self.bucket is None else f"s3://{self.bucket}/{self.path}".rstrip("/")


# ---- reading and writing -------------------------------------------------------------------------------------------


_W = TypeVar("_W", bound=StrEnum)


def _parse_json(raw: bytes | str, limit: int, field: str = "$") -> Any:
    if len(raw) > limit:
        raise MailboxError(field, f"is larger than {limit} bytes")

    def no_constant(name: str) -> float:
        raise MailboxError(field, f"holds {name}, which is not JSON")

    try:
        return json.loads(raw, parse_constant=no_constant)
    except MailboxError:
        raise
    except (ValueError, RecursionError) as err:
        raise MailboxError(field, "is not a JSON text") from err


def _parse_object(raw: bytes | str, limit: int) -> dict[str, Any]:
    value = _parse_json(raw, limit)
    if not isinstance(value, dict):
        raise MailboxError("$", "must be a JSON object")
    return value


class _Reader:
    """Typed access to one JSON object; every complaint names the field."""

    def __init__(self, wire: Mapping[str, Any], at: str = "") -> None:
        self._wire = wire
        self._at = at

    def _get(self, name: str) -> Any:
        return self._wire.get(name)

    def fail(self, name: str, problem: str) -> MailboxError:
        return MailboxError(f"{self._at}{name}", problem)

    def text(self, name: str, limit: int = MAX_TEXT_CHARS, default: str | None = None) -> str:
        value = self._get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or len(value) > limit:
            raise self.fail(name, f"must be a string of at most {limit} characters")
        return value

    def optional_text(self, name: str, limit: int = MAX_TEXT_CHARS) -> str | None:
        return None if self._get(name) is None else self.text(name, limit)

    def identity(self, name: str) -> str:
        return check_id(self._get(name), f"{self._at}{name}")

    def optional_identity(self, name: str) -> str | None:
        return None if self._get(name) is None else self.identity(name)

    def whole(self, name: str, low: int = 0, high: int = MAX_STEP) -> int:
        value = self._get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(name, f"must be a whole number from {low} to {high}")
        return value

    def optional_whole(self, name: str, low: int = 0, high: int = MAX_STEP) -> int | None:
        return None if self._get(name) is None else self.whole(name, low, high)

    def optional_number(self, name: str) -> float | None:
        value = self._get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(name, "must be a number")
        try:
            number = float(value)
        except OverflowError as err:
            raise self.fail(name, "is too large") from err
        if not math.isfinite(number):
            raise self.fail(name, "must be finite")
        return number

    def moment(self, name: str) -> datetime:
        value = self._get(name)
        if not isinstance(value, str) or len(value) > 64:
            raise self.fail(name, "must be an ISO-8601 time")
        try:
            parsed = datetime.fromisoformat(value)
            if parsed.tzinfo is None:
                raise self.fail(name, "must carry a UTC offset")
            return parsed.astimezone(UTC)
        except MailboxError:
            raise
        except (ValueError, OverflowError) as err:
            raise self.fail(name, "must be an ISO-8601 time") from err

    def word(self, name: str, vocabulary: Callable[[str], _W], default: _W | None = None) -> _W:
        value = self._get(name)
        if value is None and default is not None:
            return default
        try:
            return vocabulary(value)
        except ValueError as err:
            raise self.fail(name, "is not one of the known words") from err

    def items(self, name: str, limit: int) -> Sequence[Any]:
        value = self._get(name)
        if not isinstance(value, list) or len(value) > limit:
            raise self.fail(name, f"must be a list of at most {limit}")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.fail(name, "must be an object")
        return value


class _Message:
    """Shared by the five messages: to and from JSON bytes, with a size limit and the version check."""

    __slots__ = ()
    LIMIT_BYTES: ClassVar[int] = MAX_MESSAGE_BYTES

    def to_wire(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def from_reader(cls, reader: _Reader) -> Self:
        raise NotImplementedError

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Raises: MailboxError naming the first wrong field. Unknown fields are ignored, an unknown `v` is not."""
        reader = _Reader(wire)
        if reader.whole("v", 0) != WIRE_VERSION:
            raise MailboxError("v", f"is not {WIRE_VERSION}, the only version known here")
        return cls.from_reader(reader)

    @classmethod
    def from_json(cls, raw: bytes | str) -> Self:
        """Raises: MailboxError, and nothing else, for whatever bytes are given."""
        return cls.from_wire(_parse_object(raw, cls.LIMIT_BYTES))

    def to_json(self) -> bytes:
        """Bytes that `from_json` accepts. Raises: MailboxError where the message would not be readable again."""
        wire = {"v": WIRE_VERSION, **self.to_wire()}
        try:
            raw = json.dumps(wire, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as err:
            raise MailboxError("$", f"cannot be written as JSON: {err}") from err
        if len(raw) > self.LIMIT_BYTES:
            raise MailboxError("$", f"is larger than {self.LIMIT_BYTES} bytes")
        self.from_wire(wire)
        return raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(_Message):
    """The only attempt that may write checkpoints for this Job. A zombie of an older attempt reads it and stops."""

    job_id: str
    attempt: str
    attempt_number: int
    superseded: tuple[str, ...] = ()
    written_at: datetime

    def admits(self, attempt: str, attempt_number: int) -> bool:
        """Whether that attempt may write.

        The named attempt may, and so may a newer one than the fence knows (its launch and the writing of the fence
        can cross). A listed or an equally old, differently named one may not.
        """
        if attempt == self.attempt:
            return True
        return attempt not in self.superseded and attempt_number > self.attempt_number

    def to_wire(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "attempt": self.attempt,
            "attempt_number": self.attempt_number,
            "superseded": list(self.superseded),
            "written_at": self.written_at.isoformat(),
        }

    @classmethod
    def from_reader(cls, reader: _Reader) -> Self:
        return cls(
            job_id=reader.identity("job_id"),
            attempt=reader.identity("attempt"),
            attempt_number=reader.whole("attempt_number"),
            superseded=tuple(check_id(n, f"superseded.{i}") for i, n in enumerate(reader.items("superseded", 1000))),
            written_at=reader.moment("written_at"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest(_Message):
    """Save now. An answer after `deadline_at` is of no use to the service, though the manifest still is."""

    request_id: str
    job_id: str
    attempt: str
    deadline_at: datetime
    reason: str
    incident_id: str | None = None
    kind: str = "checkpoint"

    def to_wire(self) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "job_id": self.job_id,
            "attempt": self.attempt,
            "kind": self.kind,
            "deadline_at": self.deadline_at.isoformat(),
            "reason": self.reason,
            "incident_id": self.incident_id,
        }

    @classmethod
    def from_reader(cls, reader: _Reader) -> Self:
        kind = reader.text("kind", 32)
        if kind != "checkpoint":
            raise reader.fail("kind", "is not 'checkpoint', the only kind known here")
        return cls(
            request_id=reader.identity("request_id"),
            job_id=reader.identity("job_id"),
            attempt=reader.identity("attempt"),
            kind=kind,
            deadline_at=reader.moment("deadline_at"),
            reason=reader.text("reason", default=""),
            incident_id=reader.optional_identity("incident_id"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReply(_Message):
    """The one answer to a request; the first that is written stands. `manifest` is the manifest's key."""

    request_id: str
    job_id: str
    attempt: str
    outcome: ReplyOutcome
    why: str
    replied_at: datetime
    step: int | None = None
    manifest: str | None = None
    bytes: int | None = None
    took_s: float | None = None
    stacks: str | None = None

    def to_wire(self) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "job_id": self.job_id,
            "attempt": self.attempt,
            "outcome": self.outcome.value,
            "step": self.step,
            "manifest": self.manifest,
            "bytes": self.bytes,
            "took_s": self.took_s,
            "why": self.why,
            "stacks": self.stacks,
            "replied_at": self.replied_at.isoformat(),
        }

    @classmethod
    def from_reader(cls, reader: _Reader) -> Self:
        outcome = reader.word("outcome", ReplyOutcome)
        manifest = reader.optional_text("manifest", MAX_PATH_CHARS)
        parsed = parse_key(manifest) if manifest is not None else None
        if manifest is not None and (parsed is None or parsed.kind is not KeyKind.MANIFEST):
            raise reader.fail("manifest", "is not the key of a manifest")
        reply = cls(
            request_id=reader.identity("request_id"),
            job_id=reader.identity("job_id"),
            attempt=reader.identity("attempt"),
            outcome=outcome,
            step=reader.optional_whole("step"),
            manifest=manifest,
            bytes=reader.optional_whole("bytes", 0, 2**63 - 1),
            took_s=reader.optional_number("took_s"),
            why=reader.text("why", default=""),
            stacks=reader.optional_text("stacks", MAX_STACKS_CHARS),
            replied_at=reader.moment("replied_at"),
        )
        if outcome is ReplyOutcome.SAVED and (reply.step is None or reply.manifest is None):
            raise reader.fail("manifest", "and step are needed where the outcome is 'saved'")
        return reply


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFile:
    """One file. `sha256` is lower-case hex, or None where it was not measured (objects that the trainer put in S3)."""

    path: str
    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(_Message):
    """Says that a checkpoint is whole: written after every one of its files was written and measured.

    `root` is the checkpoint's folder; or, where `files` is one entry with the path `.`, the file itself.
    `data` is the trainer's own small JSON (position of the sampler and the like), opaque to the service.
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

    @property
    def key(self) -> str:
        return manifest_key(self.step, self.attempt)

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
            "files": [{"path": item.path, "bytes": item.bytes, "sha256": item.sha256} for item in self.files],
            "world_size": self.world_size,
            "data": dict(self.data),
            "loss": self.loss,
            "saved_at": self.saved_at.isoformat(),
        }

    @classmethod
    def from_reader(cls, reader: _Reader) -> Self:
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
            world_size=reader.whole("world_size", 1, 10**7),
            data=reader.mapping("data"),
            loss=reader.optional_number("loss"),
            saved_at=reader.moment("saved_at"),
        )


def _read_files(items: Sequence[Any]) -> tuple[ManifestFile, ...]:
    files: list[ManifestFile] = []
    seen: set[str] = set()
    for index, item in enumerate(items):
        at = f"files.{index}."
        if not isinstance(item, dict):
            raise MailboxError(f"files.{index}", "must be an object")
        reader = _Reader(item, at)
        path = check_path(item.get("path"), f"{at}path")
        digest = reader.optional_text("sha256", 64)
        if digest is not None and not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise reader.fail("sha256", "must be 64 lower-case hex digits")
        if path in seen:
            raise reader.fail("path", "is named twice")
        seen.add(path)
        files.append(ManifestFile(path=path, bytes=reader.whole("bytes", 0, 2**63 - 1), sha256=digest))
    if not files:
        raise MailboxError("files", "must name at least one file")
    if ITSELF in seen and len(files) > 1:
        raise MailboxError("files", "'.' must be the only file where the root is a file")
    return tuple(files)


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
    Files beyond the manifest's are no problem. An empty file is one: it is what a full disk leaves behind.
    """
    problems: list[str] = []
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat(_Message):
    """Where the run is. `loss` is None where it is not finite or not known; `loss_state` says which."""

    job_id: str
    attempt: str
    attempt_number: int
    step: int | None
    first_step: int | None
    loss: float | None
    loss_state: LossState
    phase: RunPhase
    step_s_median: float | None
    rank: int
    world_size: int
    at: datetime

    def to_wire(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "attempt": self.attempt,
            "attempt_number": self.attempt_number,
            "step": self.step,
            "first_step": self.first_step,
            "loss": self.loss,
            "loss_state": self.loss_state.value,
            "phase": self.phase.value,
            "step_s_median": self.step_s_median,
            "rank": self.rank,
            "world_size": self.world_size,
            "at": self.at.isoformat(),
        }

    @classmethod
    def from_reader(cls, reader: _Reader) -> Self:
        return cls(
            job_id=reader.identity("job_id"),
            attempt=reader.identity("attempt"),
            attempt_number=reader.whole("attempt_number"),
            step=reader.optional_whole("step"),
            first_step=reader.optional_whole("first_step"),
            loss=reader.optional_number("loss"),
            loss_state=reader.word("loss_state", LossState),
            phase=reader.word("phase", RunPhase),
            step_s_median=reader.optional_number("step_s_median"),
            rank=reader.whole("rank", 0, 10**7),
            world_size=reader.whole("world_size", 1, 10**7),
            at=reader.moment("at"),
        )


# ---- what a new attempt is told ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SkipWindow:
    """Batches `from_step` (in) to `to_step` (out), numbered by the step that would have used them."""

    from_step: int
    to_step: int

    def __contains__(self, step: int) -> bool:
        return self.from_step <= step < self.to_step


def merge_windows(windows: Sequence[SkipWindow]) -> tuple[SkipWindow, ...]:
    """The same steps in the fewest windows, in order."""
    merged: list[SkipWindow] = []
    for window in sorted(windows):
        if merged and window.from_step <= merged[-1].to_step:
            last = merged.pop()
            window = SkipWindow(from_step=last.from_step, to_step=max(last.to_step, window.to_step))
        merged.append(window)
    return tuple(merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan:
    """Where a new attempt goes on: after `step`, from the checkpoint at `uri`, leaving out the `skip` windows.

    `step` and `uri` are None for an attempt that starts from nothing.
    """

    step: int | None = None
    uri: str | None = None
    manifest_uri: str | None = None
    skip: tuple[SkipWindow, ...] = ()

    def should_skip(self, step: int) -> bool:
        return any(step in window for window in self.skip)

    def to_env(self) -> dict[str, str]:
        """Raises: MailboxError where a value is longer than a training container's environment may hold."""
        env = {
            ENV_SKIP: json.dumps([[w.from_step, w.to_step] for w in merge_windows(self.skip)], separators=(",", ":"))
        }
        if self.step is not None:
            env[ENV_RESUME_STEP] = str(self.step)
        if self.uri is not None:
            env[ENV_RESUME_URI] = self.uri
        if self.manifest_uri is not None:
            env[ENV_RESUME_MANIFEST] = self.manifest_uri
        return _fitting(env)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> ResumePlan:
        """Raises: MailboxError naming the variable. A wrong plan is never read as "start from nothing"."""
        uri, manifest_uri = env.get(ENV_RESUME_URI) or None, env.get(ENV_RESUME_MANIFEST) or None
        for name, value in ((ENV_RESUME_URI, uri), (ENV_RESUME_MANIFEST, manifest_uri)):
            if value is not None:
                Place.parse(value, name)
        return cls(
            step=_env_whole(env, ENV_RESUME_STEP),
            uri=uri,
            manifest_uri=manifest_uri,
            skip=_env_skip(env.get(ENV_SKIP) or "[]"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrder:
    """All that the service tells a new attempt through its environment."""

    job_id: str
    attempt_number: int
    mailbox: str | None = None
    bus: str | None = None
    incident_id: str | None = None
    resume: ResumePlan = field(default_factory=ResumePlan)

    def to_env(self) -> dict[str, str]:
        """Raises: MailboxError for a bad id, or a value that does not fit."""
        optional = {ENV_MAILBOX: self.mailbox, ENV_BUS: self.bus, ENV_INCIDENT: self.incident_id}
        env = {name: value for name, value in optional.items() if value is not None}
        env |= {ENV_JOB_ID: check_id(self.job_id, ENV_JOB_ID), ENV_ATTEMPT: str(self.attempt_number)}
        return _fitting(env) | self.resume.to_env()

    def apply(self, env: Mapping[str, str]) -> dict[str, str]:
        """`env` with this order in it and nothing left of the order before it."""
        return {name: value for name, value in env.items() if name not in ENV_NAMES} | self.to_env()

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AttemptOrder:
        """Raises: MailboxError naming the variable."""
        incident = env.get(ENV_INCIDENT) or None
        mailbox = env.get(ENV_MAILBOX) or None
        if mailbox is not None:
            Place.parse(mailbox, ENV_MAILBOX)
        return cls(
            job_id=check_id(env.get(ENV_JOB_ID), ENV_JOB_ID),
            attempt_number=_env_whole(env, ENV_ATTEMPT) or 1,
            mailbox=mailbox,
            bus=env.get(ENV_BUS) or None,
            incident_id=check_id(incident, ENV_INCIDENT) if incident is not None else None,
            resume=ResumePlan.from_env(env),
        )


def _fitting(env: dict[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if len(value) > MAX_ENV_CHARS:
            raise MailboxError(name, f"is longer than {MAX_ENV_CHARS} characters")
    return env


def _env_whole(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name) or None
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,12}", text, re.ASCII):
        raise MailboxError(name, f"must be a whole number from 0 to {MAX_STEP}")
    return int(text)


def _env_skip(text: str) -> tuple[SkipWindow, ...]:
    parsed = _Reader({ENV_SKIP: _parse_json(text, 64 * 1024, ENV_SKIP)})
    windows: list[SkipWindow] = []
    for index, pair in enumerate(parsed.items(ENV_SKIP, 1000)):
        whole = isinstance(pair, list) and len(pair) == 2 and all(type(n) is int and 0 <= n <= MAX_STEP for n in pair)
        if not whole or pair[0] >= pair[1]:
            raise MailboxError(f"{ENV_SKIP}.{index}", "must be [from_step, to_step] with from_step < to_step")
        windows.append(SkipWindow(from_step=pair[0], to_step=pair[1]))
    return merge_windows(windows)
