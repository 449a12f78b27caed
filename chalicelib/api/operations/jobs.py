"""Routes about Jobs: listed, protected, read, and what is ordered for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from chalicelib.api.fields import (
    MAX_TEXT,
    NodeName,
    Nothing,
    Parameter,
    PolicyName,
    Step,
    line,
    name_of,
)
from chalicelib.api.operation import Operation
from chalicelib.api.operations.job_answers import JOB_FIELDS, ROLES, attempt_wire, job_wire
from chalicelib.api.operations.shared import (
    NEXT_PAGE,
    PAGED,
    STEP,
    incident_brief,
    order_accepted,
    time_or_null,
)
from chalicelib.api.parts import Parts
from chalicelib.api.problems import ApiResponse, ok
from chalicelib.api.request import Request
from chalicelib.api.schema import (
    MAX_STEP,
    Schema,
    any_text,
    listing,
    or_null,
    record,
    ref,
    timestamp,
    whole,
)
from chalicelib.domain.model.errors import AlreadyDone, InvalidRequest
from chalicelib.domain.model.job import (
    MAX_HANG_MINUTES,
    MAX_METRIC_NAME,
    MIN_HANG_MINUTES,
    AlarmMode,
)
from chalicelib.services.operator.orders import MAX_EXCLUDED
from rekindle.protocol.bounds import Items, Whole
from rekindle.protocol.cluster.orders import MAX_SLURM_JOB

MAX_WINDOWS: Final = 64
INCIDENTS_SHOWN: Final = 20
Mailbox = Annotated[
    str,
    line(pattern=r"s3://[^\x00-\x1f\x7f]+", problem=f"must be s3://bucket/prefix of at most {MAX_TEXT} characters"),
    "s3:// prefix where monitor and service meet",
]
# What CloudWatch takes for a name: printable ASCII that is not blank (domain/model/job.py, is_metric_name).
Metric = Annotated[str, name_of(MAX_METRIC_NAME, pattern=r"[ -~]*[!-~][ -~]*"), "the training job's own metric"]
Window = Annotated[tuple[Annotated[int, Whole(0, MAX_STEP), "a step"], ...], Items(2, least=2), "[from_step, to_step)"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The metrics of a script that has no monitor, by what they hold."""

    loss: Metric | None = None
    step: Metric | None = None
    grad_norm: Metric | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """a SageMaker training job"""

    training_job: Annotated[str, name_of(63, pattern=r"[a-zA-Z0-9](-*[a-zA-Z0-9])*"), "its TrainingJobName"]
    policy: PolicyName | None = None
    mailbox: Mailbox | None = None
    metrics: Annotated[Metrics, "of a script that has no monitor"] = Metrics()
    alarms: Annotated[AlarmMode | None, "which CloudWatch alarms are kept for it"] = None
    hang_minutes: Annotated[
        Annotated[int, Whole(MIN_HANG_MINUTES, MAX_HANG_MINUTES)] | None, "how long its metric may be silent"
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJobName:
    """Which job of which cluster."""

    cluster: Annotated[str, name_of(63, pattern=r"[A-Za-z0-9_-]+"), "the cluster's name"]
    job: Annotated[int, Whole(1, MAX_SLURM_JOB), "the job's number"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """a job of a Slurm cluster; what else it needs stands in its comment"""

    slurm_job: SlurmJobName
    policy: PolicyName | None = None
    mailbox: Mailbox | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resubmission:
    """how a run is submitted again"""

    from_step: Annotated[Step | None, "resume from the newest verified checkpoint at or before this step"] = None
    skip: Annotated[tuple[Window, ...], Items(MAX_WINDOWS), "windows of steps whose data are left out"] = ()
    exclude: Annotated[
        tuple[NodeName, ...],
        Items(MAX_EXCLUDED),
        "nodes that no attempt of this recovery shall get; on Slurm only",
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """how a run is stopped"""

    checkpoint: Annotated[bool, "ask for a checkpoint first"] = True


def list_jobs(parts: Parts, request: Request) -> ApiResponse:
    """Jobs, a page at a time."""
    jobs, cursor = parts.listings.jobs(active=request.query.get("active"), limit=request.limit, cursor=request.cursor)
    return ok({"jobs": [job_wire(job) for job in jobs], "cursor": cursor})


def register_job(parts: Parts, request: Request) -> ApiResponse:
    """Protect a run from now on."""
    wanted: SlurmJob | TrainingJob = request.form
    if isinstance(wanted, SlurmJob):
        job = parts.orders.register_slurm(
            cluster=wanted.slurm_job.cluster,
            slurm_job=wanted.slurm_job.job,
            policy=wanted.policy,
            mailbox=wanted.mailbox,
        )
    else:
        job = parts.orders.register(
            training_job=wanted.training_job,
            policy=wanted.policy,
            mailbox=wanted.mailbox,
            watch=watch_of(wanted),
        )
    return ok(job_wire(job), status=201)


def watch_of(wanted: TrainingJob) -> dict[str, Any]:
    """The fields of WatchPlan that a registration sets.

    Raises:
        InvalidRequest: alarms that cannot be kept with these metrics.
    """
    watch: dict[str, Any] = {role: name for role in ROLES if (name := getattr(wanted.metrics, role)) is not None}
    if wanted.alarms is AlarmMode.SHARED and watch:
        raise InvalidRequest("alarms", "shared is for Jobs with a monitor: a training job's own metrics hold no NaN")
    if wanted.alarms is not None:
        watch["alarms"] = wanted.alarms
    if wanted.hang_minutes is not None:
        watch["hang_minutes"] = wanted.hang_minutes
    return watch


def get_job(parts: Parts, request: Request) -> ApiResponse:
    """One Job with its attempts and newest Incidents."""
    job = parts.registry.get(request.names["job_id"])
    attempts = parts.registry.attempts(job.job_id)
    incidents = parts.store.list_for_job(job.job_id, limit=INCIDENTS_SHOWN)
    return ok(
        {
            **job_wire(job),
            "attempts": [attempt_wire(attempt) for attempt in attempts],
            "incidents": [incident_brief(incident) for incident in incidents],
        }
    )


def checkpoint_job(parts: Parts, request: Request) -> ApiResponse:
    """Ask the run for a checkpoint now; nothing is stopped."""
    return order_accepted(parts, parts.orders.checkpoint(_running(parts, request), who=request.who, key=request.key))


def stop_job(parts: Parts, request: Request) -> ApiResponse:
    """Save, stop, and leave it stopped; a resubmission starts it again."""
    form: Stop = request.form
    outcome = parts.orders.stop(_running(parts, request), who=request.who, key=request.key, checkpoint=form.checkpoint)
    return order_accepted(parts, outcome)


def _running(parts: Parts, request: Request) -> str:
    """The named Job, where there is something to save or to stop.

    Raises:
        UnknownEntity: no such Job.
        AlreadyDone: it is over, and no Incident may start it again: the order would only open one.
    """
    job = parts.registry.get(request.names["job_id"])
    if not job.active and job.open_incident is None:
        raise AlreadyDone(f"{job.job_id} is over: nothing of it runs")
    return job.job_id


def resubmit_job(parts: Parts, request: Request) -> ApiResponse:
    """Save, stop and submit again."""
    form: Resubmission = request.form
    outcome = parts.orders.resubmit(
        request.names["job_id"],
        who=request.who,
        key=request.key,
        from_step=form.from_step,
        skip=[(begin, end) for begin, end in form.skip],
        exclude=form.exclude,
    )
    return order_accepted(parts, outcome)


ANSWERS: Final[Mapping[str, Schema]] = {
    "Job": record(JOB_FIELDS),
    "JobInFull": record(
        {
            **JOB_FIELDS,
            "attempts": listing(ref("Attempt"), "in order"),
            "incidents": listing(ref("IncidentBrief"), "the newest 20"),
        }
    ),
    "Jobs": record({"jobs": listing(ref("Job")), "cursor": NEXT_PAGE}),
    "Attempt": record(
        {
            "number": whole("1 is the first"),
            "name": any_text("the platform's name"),
            "submitted_at": timestamp("when it was submitted"),
            "incident_id": or_null(any_text("the Incident that submitted it")),
            "resume_step": STEP,
            "skips": listing(listing(whole("step")), "[from_step, to_step) whose data are left out"),
            "status": any_text("as the platform last reported it"),
            "first_step": STEP,
            "last_step": STEP,
            "ended_at": time_or_null("when it ended"),
        }
    ),
}

OPERATIONS = (
    Operation(
        method="GET",
        path="/jobs",
        tag="jobs",
        run=list_jobs,
        query={
            "active": Parameter(Annotated[bool, "only those that run, or only those that are over"]),
            **PAGED,
        },
        answers={200: ref("Jobs")},
    ),
    Operation(
        method="POST",
        path="/jobs",
        tag="jobs",
        details="A Job that is protected already stays as it is, except for how it is watched.",
        run=register_job,
        forms={"training_job": TrainingJob, "slurm_job": SlurmJob},
        answers={201: ref("Job")},
        is_order=True,
        refuses=(404,),
        example={"training_job": "llm-pretrain-7", "policy": "default"},
    ),
    Operation(
        method="GET",
        path="/jobs/{job_id}",
        tag="jobs",
        run=get_job,
        answers={200: ref("JobInFull")},
    ),
    Operation(
        method="POST",
        path="/jobs/{job_id}/checkpoint",
        tag="jobs",
        run=checkpoint_job,
        forms={"": Nothing},
        answers={202: ref("Taken")},
        is_order=True,
    ),
    Operation(
        method="POST",
        path="/jobs/{job_id}/stop",
        tag="jobs",
        run=stop_job,
        forms={"": Stop},
        answers={202: ref("Taken")},
        is_order=True,
        example={"checkpoint": True},
    ),
    Operation(
        method="POST",
        path="/jobs/{job_id}/resubmit",
        tag="jobs",
        run=resubmit_job,
        forms={"": Resubmission},
        answers={202: ref("Taken")},
        is_order=True,
        example={"from_step": min(12000, MAX_STEP), "skip": [[12000, 12200]]},
    ),
)
