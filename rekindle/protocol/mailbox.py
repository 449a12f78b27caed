"""The emergency-checkpoint wire format: one definition for the service and for the monitor.

A mailbox is a folder, `<prefix>/rekindle/`, under the Job's own S3 prefix or shared directory:

    fence.json                                  service → monitor   the one attempt that may write
    plans/<attempt>.json                        service → monitor   the resume plan of an attempt to come (Slurm)
    requests/<request_id>.json                  service → monitor   save now, answer before the deadline
    doorbell.json                               service → monitor   changes after each new request and fence
    replies/<request_id>.json                   monitor → service   saved | cannot | refused
    manifests/step-<step, 12 digits>-<attempt>.json   monitor → service   written last: the checkpoint is whole
    hashes/step-<step, 12 digits>-<attempt>.json      monitor → service   later: SHA-256 of the files of that manifest
    lives/<attempt>/<rank>/<life>.json          monitor → service   who holds a rank of a start, see protocol/lives.py
    `heartbeats/<attempt>.json`                 monitor → service   overwritten at every heartbeat
    reports/<attempt>/<kind>-<rank>.json        monitor → service   one rank's own report, see protocol/reports.py

Names of manifests, hashes and reports of a later life of an attempt end with its number (`lives.named`). Keys made and
parsed here are relative to `<prefix>`. Everything read from a mailbox is untrusted: each reader either returns a whole
message or raises `MailboxError`, which names the field. Standard library only.

"Step" is always the number of the last step whose update is contained. Training resumes at `step + 1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final, Literal

from rekindle.compat import StrEnum
from rekindle.protocol.bounds import (
    Bytes,
    Count,
    Finite,
    Identity,
    Items,
    Number,
    Rank,
    Required,
    Text,
    Words,
    WorldSize,
)
from rekindle.protocol.keys import (
    KeyKind,
    parse_key,
)
from rekindle.protocol.lives import OfLife
from rekindle.protocol.message import Message
from rekindle.protocol.wire import (
    MAX_PATH_CHARS,
    MAX_STACKS_CHARS,
    MailboxError,
)

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

    job_id: Identity
    attempt: Identity
    attempt_number: Count
    superseded: Annotated[tuple[Identity, ...], Items(1000), Required()] = ()
    written_at: datetime

    def admits(self, attempt: str, attempt_number: int) -> bool:
        """Whether that attempt may write.

        The named attempt may, and so may a newer one than the fence knows (its launch and the writing of the fence
        can cross). A listed or an equally old, differently named one may not.
        """
        if attempt == self.attempt:
            return True
        return attempt not in self.superseded and attempt_number > self.attempt_number


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest(Message):
    """Save now, and answer within `deadline_s` seconds: a later answer is of no use, though its manifest still is.

    A duration, because the clocks of two hosts may be minutes apart. It runs from when the request was written; who
    reads it counts from when it first saw the request, less the request's age where the store tells that.
    """

    request_id: Identity
    job_id: Identity
    attempt: Identity
    kind: Annotated[Literal["checkpoint"], Required()] = "checkpoint"  # the only one there is
    deadline_s: Annotated[float, Number(0.0, MAX_DEADLINE_S)]
    reason: Words = ""
    incident_id: Identity | None = None


def _check_manifest_key(key: str, field: str) -> None:
    parsed = parse_key(key)
    if parsed is None or parsed.kind is not KeyKind.MANIFEST:
        raise MailboxError(field, "is not the key of a manifest")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReply(Message):
    """The one answer to a request; the first that is written stands. `manifest` is the manifest's key."""

    request_id: Identity
    job_id: Identity
    attempt: Identity
    outcome: ReplyOutcome
    step: Count | None = None
    manifest: Annotated[str, Text(MAX_PATH_CHARS, check=_check_manifest_key)] | None = None
    bytes: Bytes | None = None
    took_s: Finite | None = None
    why: Words = ""
    stacks: Annotated[str, Text(MAX_STACKS_CHARS)] | None = None
    replied_at: datetime

    def check_fields(self) -> None:
        """Raises: MailboxError where it says that a checkpoint was saved, and not which."""
        if self.outcome is ReplyOutcome.SAVED and (self.step is None or self.manifest is None):
            raise MailboxError("manifest", "and step are needed where the outcome is 'saved'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(OfLife, Message):
    """Where the run is. `loss` is None where it is not finite or not known; `loss_state` says which. While a collapsed
    gradient scale leaves all updates out, it is `inf` and `onset_step` the first of them, whatever the loss is.

    `loss_health` is a word of `rekindle.detectors.Health` ("unknown" where no detector has judged yet, or the heartbeat
    is older than the field), `onset_step` the first bad step of the trouble that lasts or of the newest one,
    `healed_step` the step at which the newest trouble was seen to be over, `loss_baseline` what the loss was before,
    `judged_step` the newest step whose loss the detectors were given. `is_last`: the run ends, and makes
    no step after this one. `life` tells which start of all processes of the attempt wrote it. `died_of` is the error
    that ended its script; empty where none did.
    """

    job_id: Identity
    attempt: Identity
    attempt_number: Count
    step: Count | None
    first_step: Count | None
    loss: Finite | None
    loss_state: LossState
    phase: RunPhase
    step_s_median: Finite | None
    rank: Rank
    world_size: WorldSize
    at: datetime
    loss_health: Annotated[str, Text(32)] = UNKNOWN_HEALTH
    onset_step: Count | None = None
    healed_step: Count | None = None
    loss_baseline: Finite | None = None
    judged_step: Count | None = None
    is_last: bool = False
    life: Count = 0
    died_of: Annotated[str, Text(128)] = ""
