"""What a Signal is about: which attempt, which step, and whether its kind is an order or a state."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.signal import ANY_START, Signal, SignalKind
from rekindle.protocol.cluster.names import parse_attempt
from rekindle.protocol.wire import MailboxError

ORDER_KINDS = frozenset(
    {
        SignalKind.ORDER_CHECKPOINT,
        SignalKind.ORDER_RESUBMIT,
        SignalKind.ORDER_STOP,
        SignalKind.ORDER_CANCEL,
        SignalKind.ORDER_NODE,
        SignalKind.ORDER_APPROVAL,
    }
)
# What these say is re-read from the platform at each look, so the state itself speaks and not the message about it.
STATE_KINDS = frozenset({SignalKind.ATTEMPT_STATE, SignalKind.STATE_REREAD, SignalKind.JOB_MISSING})


def concerns(signal: Signal, incident: Incident) -> bool:
    """About the attempt under care, or about no attempt in particular and not older than it."""
    if signal.attempt is not None:
        return signal.attempt == incident.attempt
    return not incident.resubmission.tries or signal.occurred_at >= incident.resubmission.tries[-1].at


def is_current(signal: Signal, incident: Incident) -> bool:
    """About the attempt under care, and not from before the platform restarted it."""
    is_past = incident.tracking.repaired_at is not None and signal.occurred_at < incident.tracking.repaired_at
    return concerns(signal, incident) and not is_past


def signal_step(signal: Signal) -> Maybe[int]:
    """The training step a Signal speaks of."""
    step = signal.evidence.get("step")
    if isinstance(step, int) and not isinstance(step, bool):
        return Known(step)
    return Unknown(f"{signal.kind} names no step")


def is_stale(signal: Signal, *, current_attempt: str | None, attempt_started_at: datetime | None) -> bool:
    """True for a Signal about an attempt that has been succeeded: evidence, never a trigger."""
    if signal.attempt is not None:
        return current_attempt is not None and signal.attempt != current_attempt
    return attempt_started_at is not None and signal.occurred_at < attempt_started_at


def of_newest_start(signal: Signal, job: Job) -> Signal:
    """Who names a job by its number means the start of it that runs: the newest, where it came after that began."""
    if signal.evidence.get(ANY_START) is None or signal.attempt is None:
        return signal
    try:
        named, newest = parse_attempt(signal.attempt), parse_attempt(job.current_attempt)
    except MailboxError:  # the Job's newest has no number
        return signal
    if named.restarted(newest.restart) != newest or signal.occurred_at < job.attempt_started_at:
        return signal
    return replace(signal, attempt=job.current_attempt)
