"""Jobs and their Attempts, as the registry keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from chalicelib.domain.incidents import SkipWindow
from chalicelib.domain.known import Maybe, Unknown


class Orchestrator(StrEnum):
    """What runs a Job's attempts."""

    TRAINING_JOB = "training_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A protected run, the same `job_id` across every Attempt.

    `mailbox` is the prefix (`s3://bucket/prefix`) under which the run's monitor and the service meet; empty where the
    run has none. `active` is False once the run has completed or was given up: the sweep no longer looks at it.
    `version` fences changes of the current attempt.
    """

    job_id: str
    name: str
    orchestrator: Orchestrator
    policy_name: str
    created_at: datetime
    current_attempt: str
    attempt_number: int
    attempt_started_at: datetime
    mailbox: str = ""
    active: bool = True
    open_incident: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One submission of a Job. `incident_id` names the Incident that submitted it; None for the first.

    `went_back`: it left its elders' line at `resume_step` on purpose (an order, a poisoned run).
    """

    job_id: str
    number: int
    name: str
    submitted_at: datetime
    incident_id: str | None = None
    resume_step: Maybe[int] = Unknown("the first attempt")
    went_back: bool = False
    skips: tuple[SkipWindow, ...] = ()
    status: str = ""
    first_step: Maybe[int] = Unknown("no step seen")
    last_step: Maybe[int] = Unknown("no step seen")
    ended_at: datetime | None = None
    superseded_at: datetime | None = None
