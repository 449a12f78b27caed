"""Routes about Jobs: listed, protected, read, and what is ordered for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chalicelib.api.operation import EMPTY, PAGED, Operation
from chalicelib.api.parts import Parts
from chalicelib.api.problems import Answer, ok
from chalicelib.api.request import Request
from chalicelib.api.schema import MAX_STEP, Schema, flag, listing, record, ref, text, whole, word
from chalicelib.api.wires import ROLES, attempt_wire, incident_brief, job_wire
from chalicelib.domain.model.errors import InvalidRequest
from chalicelib.domain.model.job import MAX_HANG_MINUTES, MAX_METRIC_NAME, MIN_HANG_MINUTES, AlarmMode
from chalicelib.services.operator.orders import MAX_EXCLUDED
from chalicelib.services.reporting.outcome import Outcome
from rekindle.protocol.cluster.orders import MAX_SLURM_JOB

MAX_WINDOWS: Final = 64
INCIDENTS_SHOWN: Final = 20
_S3: Final = text("s3:// prefix where monitor and service meet", pattern=r"^s3://[^\x00-\x1f\x7f]+$")
_POLICY: Final = text("the policy's name", high=64, pattern=r"^[A-Za-z0-9._-]+$")
# What CloudWatch takes for a name: printable ASCII that is not blank (domain/model/job.py, is_metric_name).
_METRIC: Final = text("the training job's own metric", high=MAX_METRIC_NAME, pattern=r"^[ -~]*[!-~][ -~]*$")
WINDOW: Final[Schema] = {
    "type": "array",
    "items": whole("a step"),
    "minItems": 2,
    "maxItems": 2,
    "description": "[from_step, to_step)",
}
TRAINING_JOB: Final = record(
    {
        "training_job": text("its TrainingJobName", high=63, pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9])*$"),
        "policy": _POLICY,
        "mailbox": _S3,
        "metrics": record({role: _METRIC for role in ROLES}, "of a script that has no monitor", may=ROLES),
        "alarms": word("which CloudWatch alarms are kept for it", AlarmMode),
        "hang_minutes": whole("how long its metric may be silent", low=MIN_HANG_MINUTES, high=MAX_HANG_MINUTES),
    },
    "a SageMaker training job",
    may=("policy", "mailbox", "metrics", "alarms", "hang_minutes"),
)
SLURM_JOB: Final = record(
    {
        "slurm_job": record(
            {
                "cluster": text("the cluster's name", high=63, pattern=r"^[A-Za-z0-9_-]+$"),
                "job": whole("the job's number", low=1, high=MAX_SLURM_JOB),
            }
        ),
        "policy": _POLICY,
        "mailbox": _S3,
    },
    "a job of a Slurm cluster; what else it needs stands in its comment",
    may=("policy", "mailbox"),
)
RESUBMIT: Final = record(
    {
        "from_step": whole("resume from the newest verified checkpoint at or before this step"),
        "skip": listing(WINDOW, "windows of steps whose data are left out", high=MAX_WINDOWS),
        "exclude": listing(
            text("a node's name in Slurm", high=64, pattern=r"^[A-Za-z0-9._-]+$"),
            "nodes that no attempt of this recovery shall get; on Slurm only",
            high=MAX_EXCLUDED,
        ),
    },
    may=("from_step", "skip", "exclude"),
)
STOP: Final = record(
    {"checkpoint": {**flag("ask for a checkpoint first"), "default": True}},
    may=("checkpoint",),
)


def list_jobs(parts: Parts, request: Request) -> Answer:
    """Jobs, a page at a time."""
    jobs, cursor = parts.listings.jobs(active=request.query.get("active"), limit=request.limit, cursor=request.cursor)
    return ok({"jobs": [job_wire(job) for job in jobs], "cursor": cursor})


def register_job(parts: Parts, request: Request) -> Answer:
    """Protect a training job, or a Slurm job. Idempotent."""
    body = request.body
    policy, mailbox = body.get("policy"), body.get("mailbox")
    if "slurm_job" in body:
        wanted = body["slurm_job"]
        job = parts.orders.register_slurm(
            cluster=wanted["cluster"], slurm_job=wanted["job"], policy=policy, mailbox=mailbox
        )
    else:
        job = parts.orders.register(
            training_job=body["training_job"], policy=policy, mailbox=mailbox, watch=read_watch(body)
        )
    return ok(job_wire(job), status=201)


def read_watch(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of WatchPlan that a registration sets.

    Raises:
        InvalidRequest: alarms that cannot be kept with these metrics.
    """
    watch: dict[str, Any] = dict(body.get("metrics", {}))
    if body.get("alarms") == AlarmMode.SHARED and watch:
        raise InvalidRequest("alarms", "shared is for Jobs with a monitor: a training job's own metrics hold no NaN")
    if "alarms" in body:
        watch["alarms"] = AlarmMode(body["alarms"])
    if "hang_minutes" in body:
        watch["hang_minutes"] = body["hang_minutes"]
    return watch


def get_job(parts: Parts, request: Request) -> Answer:
    """One Job, its Attempts and its newest Incidents."""
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


def checkpoint_job(parts: Parts, request: Request) -> Answer:
    """Order a checkpoint."""
    return taken(parts, parts.orders.checkpoint(request.names["job_id"], who=request.who, key=request.key))


def stop_job(parts: Parts, request: Request) -> Answer:
    """Order a stop for good."""
    checkpoint = bool(request.body.get("checkpoint", True))
    outcome = parts.orders.stop(request.names["job_id"], who=request.who, key=request.key, checkpoint=checkpoint)
    return taken(parts, outcome)


def resubmit_job(parts: Parts, request: Request) -> Answer:
    """Order a resubmission."""
    outcome = parts.orders.resubmit(
        request.names["job_id"],
        who=request.who,
        key=request.key,
        from_step=request.body.get("from_step"),
        skip=[(pair[0], pair[1]) for pair in request.body.get("skip", [])],
        exclude=request.body.get("exclude", ()),
    )
    return taken(parts, outcome)


def taken(parts: Parts, outcome: Outcome) -> Answer:
    """An order that an Incident carries out."""
    parts.report(outcome)
    body = {"what": outcome.what.value, "reason": outcome.reason, "incident_id": outcome.incident_id}
    return ok(body, status=202)


OPERATIONS = (
    Operation(
        name="list_jobs",
        method="GET",
        path="/jobs",
        tag="jobs",
        summary="Jobs, a page at a time",
        run=list_jobs,
        query={"active": flag("only those that run, or only those that are over"), **PAGED},
        answers={200: ref("Jobs")},
    ),
    Operation(
        name="register_job",
        method="POST",
        path="/jobs",
        tag="jobs",
        summary="Protect a run from now on",
        said="A Job that is protected already stays as it is, but for how it is watched.",
        run=register_job,
        forms={"training_job": TRAINING_JOB, "slurm_job": SLURM_JOB},
        answers={201: ref("Job")},
        is_order=True,
        refuses=(404,),
        example={"training_job": "llm-pretrain-7", "policy": "default"},
    ),
    Operation(
        name="get_job",
        method="GET",
        path="/jobs/{job_id}",
        tag="jobs",
        summary="One Job with its attempts and newest Incidents",
        run=get_job,
        answers={200: ref("JobInFull")},
    ),
    Operation(
        name="checkpoint_job",
        method="POST",
        path="/jobs/{job_id}/checkpoint",
        tag="jobs",
        summary="Ask the run for a checkpoint now; nothing is stopped",
        run=checkpoint_job,
        forms={"": EMPTY},
        answers={202: ref("Taken")},
        is_order=True,
    ),
    Operation(
        name="stop_job",
        method="POST",
        path="/jobs/{job_id}/stop",
        tag="jobs",
        summary="Save, stop, and leave it stopped; a resubmission starts it again",
        run=stop_job,
        forms={"": STOP},
        answers={202: ref("Taken")},
        is_order=True,
        example={"checkpoint": True},
    ),
    Operation(
        name="resubmit_job",
        method="POST",
        path="/jobs/{job_id}/resubmit",
        tag="jobs",
        summary="Save, stop and submit again",
        run=resubmit_job,
        forms={"": RESUBMIT},
        answers={202: ref("Taken")},
        is_order=True,
        example={"from_step": min(12000, MAX_STEP), "skip": [[12000, 12200]]},
    ),
)
