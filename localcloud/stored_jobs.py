"""Training jobs as a store's file has them."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from localcloud.aws.sagemaker import Phase, TrainingJob

_TIMES = ("created_at", "modified_at", "started_at", "ended_at", "stop_requested_at")


def job_to_wire(job: TrainingJob) -> dict[str, Any]:
    """JSON form."""
    wire = {field.name: getattr(job, field.name) for field in fields(job)}
    wire["phase"] = job.phase.value
    wire["transitions"] = [
        {key: value.isoformat() if isinstance(value, datetime) else value for key, value in transition.items()}
        for transition in job.transitions
    ]
    for name in _TIMES:
        wire[name] = wire[name].isoformat() if wire[name] is not None else None
    return wire


def job_from_wire(wire: dict[str, Any]) -> TrainingJob:
    """The job that `job_to_wire` wrote; `wire` is used up."""
    for name in _TIMES:
        wire[name] = datetime.fromisoformat(wire[name]) if wire[name] is not None else None
    wire["phase"] = Phase(wire["phase"])
    wire["transitions"] = [
        {key: datetime.fromisoformat(value) if key.endswith("Time") else value for key, value in transition.items()}
        for transition in wire["transitions"]
    ]
    return TrainingJob(**wire)
