"""Jobs and Incidents as the API shows them. Their schemas are in shapes.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from chalicelib.domain.model.incident import Incident, SkipWindow
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import maybe_to_wire

ROLES: Final = ("loss", "step", "grad_norm")


def job_wire(job: Job) -> dict[str, Any]:
    """A Job as the API shows it."""
    return {
        "job_id": job.job_id,
        "name": job.name,
        "platform": job.platform,
        "policy": job.policy_name,
        "created_at": job.created_at.isoformat(),
        "current_attempt": job.current_attempt,
        "attempt_number": job.attempt_number,
        "mailbox": job.mailbox,
        "active": job.active,
        "open_incident": job.open_incident,
        "metrics": {role: name for role in ROLES if (name := getattr(job.watch, role))},
        "alarms": job.watch.alarms.value,
        "alarms_state": job.watch.alarms_state,
        "hang_minutes": job.watch.hang_minutes,
        "size": job.size.to_wire(),
        "limits": list(job.limits),
    }


def attempt_wire(attempt: Attempt) -> dict[str, Any]:
    """An Attempt as the API shows it."""
    return {
        "number": attempt.number,
        "name": attempt.name,
        "submitted_at": attempt.submitted_at.isoformat(),
        "incident_id": attempt.incident_id,
        "resume_step": maybe_to_wire(attempt.resume_step),
        "skips": _skips(attempt.skips),
        "status": attempt.status,
        "first_step": maybe_to_wire(attempt.first_step),
        "last_step": maybe_to_wire(attempt.last_step),
        "ended_at": attempt.ended_at.isoformat() if attempt.ended_at else None,
    }


def incident_brief(incident: Incident) -> dict[str, Any]:
    """An Incident in one row."""
    return {
        "incident_id": incident.incident_id,
        "job_id": incident.job_id,
        "cluster": incident.cluster,
        "node": incident.node,
        "fault": incident.fault.value,
        "phase": incident.phase.value,
        "outcome": incident.outcome,
        "opened_at": incident.opened_at.isoformat(),
        "closed_at": incident.closed_at.isoformat() if incident.closed_at else None,
        "attempt": incident.attempt,
        "tries": len(incident.repair.steps) if incident.repair else len(incident.tries),
        "target_step": maybe_to_wire(incident.target_step),
        "approvals_pending": sum(1 for asked in incident.approvals if asked.is_pending),
        "held_by": held_by(incident),
    }


def held_by(incident: Incident) -> list[str]:
    """The guards that hold something back now."""
    return sorted({hold.guard.value for hold in incident.holds if hold.until is None})


def _skips(skips: Sequence[SkipWindow]) -> list[list[int]]:
    return [[window.from_step, window.to_step] for window in skips]
