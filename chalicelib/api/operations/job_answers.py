"""A Job and an Attempt as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from chalicelib.api.schema import (
    Schema,
    any_text,
    flag,
    listing,
    maybe,
    or_null,
    record,
    table,
    timestamp,
    whole,
    word,
)
from chalicelib.domain.model.incident import SkipWindow
from chalicelib.domain.model.job import (
    AlarmMode,
    Attempt,
    Job,
)
from chalicelib.domain.model.known import maybe_to_wire
from chalicelib.platforms.registry import PLATFORMS

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
        "size": job.size.to_wire(defaults=True),
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


def _skips(skips: Sequence[SkipWindow]) -> list[list[int]]:
    return [[window.from_step, window.to_step] for window in skips]


JOB_FIELDS: Final[Mapping[str, Schema]] = {
    "job_id": any_text("the same across every attempt"),
    "name": any_text("as the platform shows it"),
    "platform": word("what runs its attempts", [platform.name for platform in PLATFORMS]),
    "policy": any_text("the policy's name"),
    "created_at": timestamp("when the first attempt was created"),
    "current_attempt": any_text("the platform's name of the attempt under protection"),
    "attempt_number": whole("its number"),
    "mailbox": any_text("s3:// prefix where monitor and service meet; empty: none"),
    "active": flag("false once the run is over"),
    "open_incident": or_null(any_text("the Incident that is open now")),
    "metrics": table(any_text(), "role (loss, step, grad_norm) -> the training job's own metric"),
    "alarms": word("which CloudWatch alarms are kept for it", AlarmMode),
    "alarms_state": any_text("what has come of them"),
    "hang_minutes": whole("how long its metric may be silent"),
    "size": record(
        {
            "instances": listing(listing({}), "[type, how many]; empty where the platform names no types"),
            "gpus": maybe(or_null(whole("GPUs in all"))),
        },
        "as it was when it was registered",
    ),
    "limits": listing(any_text(), "what cannot be done for it"),
}
