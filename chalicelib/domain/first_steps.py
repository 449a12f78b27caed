"""How a playbook's response begins: ask for a checkpoint, stop the attempt, or only say what would be done."""

from __future__ import annotations

from chalicelib.domain.actions import RequestCheckpoint, Severity, StopJob
from chalicelib.domain.incidents import CheckpointAsk, Phase
from chalicelib.domain.observations import AttemptView
from chalicelib.domain.verdict import Decision, Look, story


def shadow(look: Look, would: str) -> Decision:
    """Shadow mode: decide and tell, do nothing."""
    return look.hand_over("guard.shadow", f"shadow mode: would {would}. {story(look)}", severity=Severity.WARNING)


def begin_checkpoint(look: Look, attempt: AttemptView) -> Decision:
    """Ask the living attempt to save by the playbook's deadline."""
    row = look.policy.playbook(look.incident.fault)
    request_id = f"{look.incident.incident_id}-c{look.incident.asks + 1}"
    deadline_at = look.now + look.policy.deadline(row)
    ask = CheckpointAsk(request_id=request_id, attempt=attempt.name, asked_at=look.now, deadline_at=deadline_at)
    action = RequestCheckpoint(
        request_id=request_id, attempt=attempt.name, deadline_at=deadline_at, why=f"{look.incident.fault}"
    )
    return look.move(
        "playbook.checkpoint",
        f"{story(look)} Asking {attempt.name} to save by {deadline_at:%H:%M:%S}.",
        Phase.CHECKPOINTING,
        action,
        ask=ask,
        asks=look.incident.asks + 1,
    )


def begin_stop(look: Look, rule: str, reason: str) -> Decision:
    """Stop the attempt under care; it is replaced once the platform says that it has ended."""
    if look.policy.shadow:  # the last gate before the first thing that cannot be undone
        return shadow(look, f"stop {look.incident.attempt}")
    attempt = look.attempt
    name = attempt.name if attempt else look.incident.attempt or ""
    return look.move(
        rule,
        f"{reason} Stopping {name}.",
        Phase.STOPPING,
        StopJob(attempt=name, why=f"{look.incident.fault}: {rule}"),
        stop_asked_at=look.now,
        stopped_attempts=(*(one for one in look.incident.stopped_attempts if one != name), name),
    )
