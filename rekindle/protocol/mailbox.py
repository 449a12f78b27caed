"""The emergency-checkpoint wire format: one definition for the service and for the monitor.

A mailbox is a folder, `<prefix>/rekindle/`, under the Job's own S3 prefix or shared directory:

    fence.json                                  service → monitor   the one attempt that may write
    plans/<attempt>.json                        service → monitor   the resume plan of an attempt to come (Slurm)
    requests/<request_id>.json                  service → monitor   save now, answer before the deadline
    doorbell.json                               service → monitor   changes after each new request and fence
    replies/<request_id>.json                   monitor → service   saved | cannot | refused
    manifests/step-<step, 12 digits>-<attempt>.json   monitor → service   written last: the checkpoint is whole
    hashes/step-<step, 12 digits>-<attempt>.json      monitor → service   later: SHA-256 of the files of that manifest
    `heartbeats/<attempt>.json`                 monitor → service   overwritten at every heartbeat
    reports/<attempt>/<kind>-<rank>.json        monitor → service   one rank's own report, see protocol/reports.py

Keys made and parsed here are relative to `<prefix>`. Everything read from a mailbox is untrusted: each reader either
returns a whole message or raises `MailboxError`, which names the field. Standard library only.

"Step" is always the number of the last step whose update is contained. Training resumes at `step + 1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rekindle.compat import Self, StrEnum
from rekindle.protocol.keys import (
    Key,
    KeyKind,
    doorbell_key,
    fence_key,
    hashes_key,
    heartbeat_key,
    manifest_key,
    manifest_prefix,
    parse_key,
    plan_key,
    reply_key,
    request_key,
    request_prefix,
)
from rekindle.protocol.launch_orders import (
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
from rekindle.protocol.manifests import (
    ITSELF,
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    OUTSIDE,
    Hashes,
    Manifest,
    ManifestFile,
    SaveKind,
    check_path,
    is_below,
    relative_path,
    verify_listing,
)
from rekindle.protocol.run_links import Links, links_of
from rekindle.protocol.wire import (
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

# Imported from here by all: what stands in keys.py, manifests.py, orders.py and wire.py too.
__all__ = [
    "ITSELF",
    "MAX_DEADLINE_S",
    "MAX_FILES",
    "OUTSIDE",
    "is_below",
    "UNKNOWN_HEALTH",
    "MAX_MANIFEST_BYTES",
    "Heartbeat",
    "CheckpointReply",
    "CheckpointRequest",
    "Fence",
    "Hashes",
    "Key",
    "KeyKind",
    "LossState",
    "Manifest",
    "ManifestFile",
    "ReplyOutcome",
    "RunPhase",
    "SaveKind",
    "heartbeat_key",
    "check_path",
    "doorbell_key",
    "fence_key",
    "hashes_key",
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

MAX_DEADLINE_S: Final = 7 * 86_400.0
UNKNOWN_HEALTH: Final = "unknown"  # the word of `rekindle.detectors.Health` for "nothing judged yet"


class ReplyOutcome(StrEnum):
    """`saved`: the manifest is there. `cannot`: tried or stuck, see `why`. `refused`: not mine to do, or too late."""

    SAVED = "saved"
    CANNOT = "cannot"
    REFUSED = "refused"


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
    """Save now, and answer within `deadline_s` seconds: a later answer is of no use, though its manifest still is.

    A duration, because the clocks of two hosts may be minutes apart. It runs from when the request was written; who
    reads it counts from when it first saw the request, less the request's age where the store tells that.
    """

    request_id: str
    job_id: str
    attempt: str
    deadline_s: float
    reason: str
    incident_id: str | None = None
    kind: str = "checkpoint"

    def to_wire(self) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "job_id": self.job_id,
            "attempt": self.attempt,
            "kind": self.kind,
            "deadline_s": self.deadline_s,
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
            deadline_s=reader.number("deadline_s", 0.0, MAX_DEADLINE_S),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Message):
    """Where the run is. `loss` is None where it is not finite or not known; `loss_state` says which. While a collapsed
    gradient scale leaves all updates out, it is `inf` and `onset_step` the first of them, whatever the loss is.

    `loss_health` is a word of `rekindle.detectors.Health` ("unknown" where no detector has judged yet, or the heartbeat
    is older than the field), `onset_step` the first bad step of the trouble that lasts or of the newest one,
    `healed_step` the step at which the newest trouble was seen to be over, `loss_baseline` what the loss was before,
    `judged_step` the newest step whose loss the detectors were given. `hears` is the signal at which all ranks write
    their stacks, and which harms nothing else of the run; empty where none is known to be like that. `links` are the
    run's pages in experiment trackers.
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
    links: Links = ()

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
            "links": dict(self.links),
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
            links=links_of(reader.mapping("links")),
        )
