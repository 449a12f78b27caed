"""The emergency-checkpoint wire format: one definition for the service and for the monitor.

A mailbox is a folder, `<prefix>/rekindle/`, under the Job's own S3 prefix or shared directory:

    fence.json                                  service → monitor   the one attempt that may write
    plans/<attempt>.json                        service → monitor   where an attempt to come goes on (Slurm)
    requests/<request_id>.json                  service → monitor   save now, answer before the deadline
    doorbell.json                               service → monitor   changes after each new request and fence
    replies/<request_id>.json                   monitor → service   saved | cannot | refused
    manifests/step-<step, 12 digits>-<attempt>.json   monitor → service   written last: the checkpoint is whole
    beats/<attempt>.json                        monitor → service   overwritten at every beat
    reports/<attempt>/<kind>-<rank>.json        monitor → service   one rank's own report, see rekindle/reports.py

Keys made and parsed here are relative to `<prefix>`. Everything read from a mailbox is untrusted: each reader either
returns a whole message or raises `MailboxError`, which names the field. Standard library only.

What "step" means everywhere: the number of the last step whose update is contained. Training resumes at `step + 1`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Final, Self

from rekindle.orders import (
    ENV_ATTEMPT,
    ENV_ATTEMPT_NAME,
    ENV_BUS,
    ENV_CHECKPOINT_DIR,
    ENV_CHECKPOINT_URI,
    ENV_INCIDENT,
    ENV_JOB_ID,
    ENV_MAILBOX,
    ENV_NAMES,
    ENV_RESUME_MANIFEST,
    ENV_RESUME_STEP,
    ENV_RESUME_URI,
    ENV_SKIP,
    MAX_ENV_CHARS,
    AttemptOrder,
    Plan,
    ResumePlan,
    SkipWindow,
    merge_windows,
)
from rekindle.wire import (
    FOLDER,
    MAX_MESSAGE_BYTES,
    MAX_PATH_CHARS,
    MAX_RANK,
    MAX_STACKS_CHARS,
    MAX_STEP,
    MAX_TEXT_CHARS,
    WIRE_VERSION,
    MailboxError,
    Message,
    Place,
    Reader,
    check_id,
    is_id,
)

# One face: what stands in orders.py and wire.py is imported from here.
__all__ = [
    "ITSELF",
    "MAX_FILES",
    "UNKNOWN_HEALTH",
    "MAX_MANIFEST_BYTES",
    "Beat",
    "CheckpointReply",
    "CheckpointRequest",
    "Fence",
    "Key",
    "KeyKind",
    "LossState",
    "Manifest",
    "ManifestFile",
    "ReplyOutcome",
    "RunPhase",
    "SaveKind",
    "beat_key",
    "check_path",
    "doorbell_key",
    "fence_key",
    "manifest_key",
    "manifest_prefix",
    "parse_key",
    "relative_path",
    "reply_key",
    "request_key",
    "request_prefix",
    "verify_listing",
    "ENV_ATTEMPT",
    "ENV_ATTEMPT_NAME",
    "ENV_BUS",
    "ENV_CHECKPOINT_DIR",
    "ENV_CHECKPOINT_URI",
    "ENV_INCIDENT",
    "ENV_JOB_ID",
    "ENV_MAILBOX",
    "ENV_NAMES",
    "ENV_RESUME_MANIFEST",
    "ENV_RESUME_STEP",
    "ENV_RESUME_URI",
    "ENV_SKIP",
    "MAX_ENV_CHARS",
    "AttemptOrder",
    "Plan",
    "plan_key",
    "ResumePlan",
    "SkipWindow",
    "merge_windows",
    "FOLDER",
    "MAX_MESSAGE_BYTES",
    "MAX_PATH_CHARS",
    "MAX_RANK",
    "MAX_STACKS_CHARS",
    "MAX_STEP",
    "MAX_TEXT_CHARS",
    "WIRE_VERSION",
    "MailboxError",
    "Message",
    "Place",
    "Reader",
    "check_id",
    "is_id",
]

MAX_MANIFEST_BYTES: Final = 8 * 1024 * 1024  # about 40,000 files, far above a sharded checkpoint of 4,096 ranks
MAX_FILES: Final = 40_000
UNKNOWN_HEALTH: Final = "unknown"  # the word of `rekindle.detectors.Health` for "nothing judged yet"

_KEY: Final = re.compile(
    rf"(?:(?P<prefix>.*)/)?{FOLDER}/(?:"
    r"(?P<fence>fence)\.json"
    r"|requests/(?P<request>[A-Za-z0-9._-]{1,128})\.json"
    r"|replies/(?P<reply>[A-Za-z0-9._-]{1,128})\.json"
    r"|manifests/step-(?P<step>[0-9]{12})-(?P<manifest>[A-Za-z0-9._-]{1,128})\.json"
    r"|beats/(?P<beat>[A-Za-z0-9._-]{1,128})\.json"
    r"|plans/(?P<plan>[A-Za-z0-9._-]{1,128})\.json"
    r")\Z",
    re.DOTALL,
)


class KeyKind(StrEnum):
    FENCE = "fence"
    REQUEST = "request"
    REPLY = "reply"
    MANIFEST = "manifest"
    BEAT = "beat"
    PLAN = "plan"


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


def fence_key() -> str:
    return f"{FOLDER}/fence.json"


def doorbell_key() -> str:
    """An object whose bytes change whenever there is something new to read: one GET, where a LIST costs 12 times that.

    Optional: where it is missing the monitor lists at every turn, and where it stays quiet every `Config.list_s`.
    """
    return f"{FOLDER}/doorbell.json"


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


def plan_key(attempt: str) -> str:
    return f"{FOLDER}/plans/{check_id(attempt, 'attempt')}.json"


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
    for kind in (KeyKind.REQUEST, KeyKind.REPLY, KeyKind.MANIFEST, KeyKind.BEAT, KeyKind.PLAN):
        name = match[kind.value]
        if name is not None and is_id(name):
            step = int(match["step"]) if kind is KeyKind.MANIFEST else None
            return Key(kind=kind, prefix=prefix, name=name, step=step)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(Message):
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
    def from_reader(cls, reader: Reader) -> Self:
        return cls(
            job_id=reader.identity("job_id"),
            attempt=reader.identity("attempt"),
            attempt_number=reader.whole("attempt_number"),
            superseded=tuple(check_id(n, f"superseded.{i}") for i, n in enumerate(reader.items("superseded", 1000))),
            written_at=reader.moment("written_at"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest(Message):
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
    def from_reader(cls, reader: Reader) -> Self:
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
class CheckpointReply(Message):
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
    def from_reader(cls, reader: Reader) -> Self:
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
class Manifest(Message):
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
class Beat(Message):
    """Where the run is. `loss` is None where it is not finite or not known; `loss_state` says which.

    `loss_health` is a word of `rekindle.detectors.Health` ("unknown" where no detector has judged yet, or the beat is
    older than the field), `onset_step` the first bad step of the trouble that goes on or of the newest one,
    `healed_step` the step at which the newest trouble was seen to be over, `loss_baseline` what the loss was before,
    `judged_step` the newest step whose loss the detectors were given. `hears` is the signal at which all ranks write
    their stacks, and which harms nothing else of the run; empty where none is known to be like that.
    """

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
    loss_health: str = UNKNOWN_HEALTH
    onset_step: int | None = None
    healed_step: int | None = None
    loss_baseline: float | None = None
    judged_step: int | None = None
    hears: str = ""

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
            "loss_health": self.loss_health,
            "onset_step": self.onset_step,
            "healed_step": self.healed_step,
            "loss_baseline": self.loss_baseline,
            "judged_step": self.judged_step,
            "hears": self.hears,
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
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
            rank=reader.whole("rank", 0, MAX_RANK),
            world_size=reader.whole("world_size", 1, MAX_RANK),
            at=reader.moment("at"),
            loss_health=reader.text("loss_health", 32, default=UNKNOWN_HEALTH),
            onset_step=reader.optional_whole("onset_step"),
            healed_step=reader.optional_whole("healed_step"),
            loss_baseline=reader.optional_number("loss_baseline"),
            judged_step=reader.optional_whole("judged_step"),
            hears=reader.text("hears", 16, default=""),
        )
