"""What each route of the REST API does. Pure of AWS and of Chalice: a request in, an Answer out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from chalicelib.api.problems import Answer, from_error
from chalicelib.domain.errors import InvalidRequest, RecoveryError
from chalicelib.domain.incidents import Incident, SkipWindow
from chalicelib.domain.jobs import (
    MAX_HANG_MINUTES,
    MAX_METRIC_NAME,
    MIN_HANG_MINUTES,
    AlarmMode,
    Attempt,
    Job,
    is_metric_name,
)
from chalicelib.domain.known import maybe_to_wire
from chalicelib.ports import Clock, IncidentStore, JobRegistry, Quarantine
from chalicelib.services.clusters import Clusters
from chalicelib.services.orders import Orders
from chalicelib.services.outcome import Outcome
from rekindle.headnode.orders import MAX_SLURM_JOB

MAX_BODY_BYTES = 64 * 1024
MAX_TEXT = 256
DEFAULT_LIMIT = 50
MAX_LIMIT = 100


class Redriver(Protocol):
    """Feeds quarantined events in again (ingress.py, which lies above this floor)."""

    def redrive(self, *, limit: int) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: path names, query, headers in lower case, the JSON body and who signed it."""

    names: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    who: str
    request_id: str

    @property
    def key(self) -> str:
        """What makes an order idempotent: the caller's Idempotency-Key, else the request itself."""
        return (self.headers.get("idempotency-key") or self.request_id)[:MAX_TEXT]

    def limit(self) -> int:
        """Query parameter `limit`."""
        text = self.query.get("limit", str(DEFAULT_LIMIT))
        digits = len(str(MAX_LIMIT))  # Python refuses to read a number of thousands of digits
        if not text.isascii() or not text.isdigit() or len(text) > digits or not 1 <= int(text) <= MAX_LIMIT:
            raise InvalidRequest("limit", f"must be a whole number from 1 to {MAX_LIMIT}")
        return int(text)

    def text(self, name: str, *, needed: bool) -> str | None:
        """A short text of the body."""
        value = self.body.get(name)
        if value is None and not needed:
            return None
        if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT:
            raise InvalidRequest(name, f"must be a text of 1 to {MAX_TEXT} characters")
        return value

    def only(self, *names: str) -> None:
        """Refuse a body with other members: a misspelt one must not be silently ignored."""
        unknown = sorted(set(self.body) - set(names))
        if unknown:
            raise InvalidRequest(unknown[0], "is not a member of this request")


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """The routes."""

    store: IncidentStore
    registry: JobRegistry
    orders: Orders
    ingress: Redriver
    quarantine: Quarantine
    clusters: Clusters
    clock: Clock
    report: Callable[[Outcome], None]
    stage: str = "dev"

    def answer(self, operation: str, names: Mapping[str, str], event: Mapping[str, Any], raw_body: bytes) -> Answer:
        """Run one operation; every domain error becomes its problem document."""
        try:
            return _OPERATIONS[operation](self, read_request(names, event, raw_body))
        except RecoveryError as err:
            return from_error(err)

    def health(self, _: Request) -> Answer:
        """Alive. Touches nothing."""
        return _ok({"status": "ok", "stage": self.stage, "at": self.clock.now().isoformat()})

    def status(self, _: Request) -> Answer:
        """Counts of what is going on now."""
        open_now = [incident for incident, _look_by in self.store.list_open()]
        return _ok(
            {
                "paused": self.registry.is_paused(),
                "jobs_active": sum(1 for _ in self.registry.active()),
                "incidents_open": len(open_now),
                "incidents": [incident_brief(incident) for incident in open_now[:DEFAULT_LIMIT]],
                "at": self.clock.now().isoformat(),
            }
        )

    def list_jobs(self, request: Request) -> Answer:
        """Jobs, a page at a time."""
        jobs, cursor = self.registry.list_jobs(limit=request.limit(), cursor=request.query.get("cursor"))
        return _ok({"jobs": [job_wire(job) for job in jobs], "cursor": cursor})

    def register_job(self, request: Request) -> Answer:
        """Protect a training job, or a Slurm job. Idempotent."""
        if "slurm_job" in request.body:
            return self._register_slurm(request)
        request.only("training_job", "policy", "mailbox", "metrics", "alarms", "hang_minutes")
        training_job = request.text("training_job", needed=True) or ""
        mailbox = request.text("mailbox", needed=False)
        if mailbox is not None and not mailbox.startswith("s3://"):
            raise InvalidRequest("mailbox", "must be an s3:// prefix")
        policy = request.text("policy", needed=False)
        watch = read_watch(request.body)
        job = self.orders.register(training_job=training_job, policy=policy, mailbox=mailbox, watch=watch)
        return Answer(status=201, body=job_wire(job))

    def _register_slurm(self, request: Request) -> Answer:
        """`{"slurm_job": {"cluster": "ml", "job": 4211}}`; what else a Slurm job needs stands in its comment."""
        request.only("slurm_job", "policy", "mailbox")
        wanted = request.body["slurm_job"]
        if not isinstance(wanted, dict) or set(wanted) != {"cluster", "job"}:
            raise InvalidRequest("slurm_job", "must be an object with cluster and job, and nothing else")
        cluster, number = wanted["cluster"], wanted["job"]
        if not isinstance(cluster, str):
            raise InvalidRequest("slurm_job.cluster", "must be a text")
        if type(number) is not int or not 1 <= number <= MAX_SLURM_JOB:
            raise InvalidRequest("slurm_job.job", f"must be a whole number from 1 to {MAX_SLURM_JOB}")
        mailbox = request.text("mailbox", needed=False)
        if mailbox is not None and not mailbox.startswith("s3://"):
            raise InvalidRequest("mailbox", "must be an s3:// prefix")
        policy = request.text("policy", needed=False)
        job = self.orders.register_slurm(cluster=cluster, slurm_job=number, policy=policy, mailbox=mailbox)
        return Answer(status=201, body=job_wire(job))

    def list_clusters(self, _: Request) -> Answer:
        """Slurm clusters whose agents have reported."""
        return _ok({"clusters": self.clusters.listing()})

    def get_cluster(self, request: Request) -> Answer:
        """One Slurm cluster: agent, nodes, runs."""
        return _ok(self.clusters.one(request.names["cluster"]))

    def get_job(self, request: Request) -> Answer:
        """One Job, its Attempts and its newest Incidents."""
        job = self.registry.get(request.names["job_id"])
        attempts = self.registry.attempts(job.job_id)
        incidents = self.store.list_for_job(job.job_id, limit=20)
        return _ok(
            {
                **job_wire(job),
                "attempts": [attempt_wire(attempt) for attempt in attempts],
                "incidents": [incident_brief(incident) for incident in incidents],
            }
        )

    def checkpoint_job(self, request: Request) -> Answer:
        """Order a checkpoint."""
        request.only()
        return self._taken(self.orders.checkpoint(request.names["job_id"], who=request.who, key=request.key))

    def resubmit_job(self, request: Request) -> Answer:
        """Order a resubmission."""
        request.only("from_step", "skip")
        from_step = request.body.get("from_step")
        if from_step is not None and (isinstance(from_step, bool) or not isinstance(from_step, int)):
            raise InvalidRequest("from_step", "must be a whole number")
        outcome = self.orders.resubmit(
            request.names["job_id"],
            who=request.who,
            key=request.key,
            from_step=from_step,
            skip=_windows(request.body.get("skip", [])),
        )
        return self._taken(outcome)

    def list_incidents(self, request: Request) -> Answer:
        """`state=open` (all of them) or `state=closed` (a page)."""
        state, limit = request.query.get("state", "open"), request.limit()
        if state == "open":
            found = [incident_brief(incident) for incident, _ in self.store.list_open()]
            return _ok({"incidents": found, "cursor": None})
        if state != "closed":
            raise InvalidRequest("state", "must be open or closed")
        page = self.store.list_closed(limit=limit, cursor=request.query.get("cursor"))
        return _ok({"incidents": [incident_brief(incident) for incident in page.incidents], "cursor": page.cursor})

    def get_incident(self, request: Request) -> Answer:
        """One Incident with its whole timeline."""
        incident_id = request.names["incident_id"]
        looked = self.store.load(incident_id)
        timeline = [entry.to_wire() for entry in self.store.timeline(incident_id)]
        waiting = [signal.to_wire() for signal in looked.inbox]
        return _ok({**looked.incident.to_wire(), "timeline": timeline, "inbox": waiting})

    def cancel_incident(self, request: Request) -> Answer:
        """Order the end of an Incident."""
        request.only()
        return self._taken(self.orders.cancel(request.names["incident_id"], who=request.who, key=request.key))

    def list_quarantine(self, request: Request) -> Answer:
        """Events that could not be read, left where they are."""
        return _ok({"events": list(self.quarantine.peek(limit=min(request.limit(), 10)))})

    def redrive_quarantine(self, request: Request) -> Answer:
        """Feed quarantined events in again."""
        request.only()
        return _ok(self.ingress.redrive(limit=MAX_LIMIT))

    def set_pause(self, request: Request) -> Answer:
        """Set or lift the global pause."""
        request.only("paused")
        paused = request.body.get("paused")
        if not isinstance(paused, bool):
            raise InvalidRequest("paused", "must be true or false")
        self.registry.set_paused(paused, who=request.who, now=self.clock.now())
        return _ok({"paused": paused})

    def _taken(self, outcome: Outcome) -> Answer:
        self.report(outcome)
        return Answer(
            status=202,
            body={"what": outcome.what.value, "reason": outcome.reason, "incident_id": outcome.incident_id},
        )


_OPERATIONS: Mapping[str, Callable[[Api, Request], Answer]] = {
    "health": Api.health,
    "status": Api.status,
    "list_jobs": Api.list_jobs,
    "register_job": Api.register_job,
    "get_job": Api.get_job,
    "checkpoint_job": Api.checkpoint_job,
    "resubmit_job": Api.resubmit_job,
    "list_incidents": Api.list_incidents,
    "get_incident": Api.get_incident,
    "cancel_incident": Api.cancel_incident,
    "list_quarantine": Api.list_quarantine,
    "redrive_quarantine": Api.redrive_quarantine,
    "set_pause": Api.set_pause,
    "list_clusters": Api.list_clusters,
    "get_cluster": Api.get_cluster,
}


def _query(event: Mapping[str, Any]) -> dict[str, str]:
    """The query, the last value of each name. API Gateway gives both members, Chalice's local one only lists."""
    single = event.get("queryStringParameters")
    if single is not None:
        return {str(name): str(value) for name, value in single.items()}
    lists = event.get("multiValueQueryStringParameters") or {}
    return {str(name): str(values[-1]) for name, values in lists.items() if values}


def read_request(names: Mapping[str, str], event: Mapping[str, Any], raw_body: bytes) -> Request:
    """The request out of API Gateway's proxy event (payload format 1.0, as Chalice's REST API uses it).

    Raises:
        InvalidRequest: names what is wrong.
    """
    if len(raw_body) > MAX_BODY_BYTES:
        raise InvalidRequest("body", f"larger than {MAX_BODY_BYTES} bytes")
    body: Any = {}
    if raw_body.strip():
        try:
            body = json.loads(raw_body)
        except (ValueError, RecursionError):
            raise InvalidRequest("body", "is not JSON") from None
    if not isinstance(body, dict):
        raise InvalidRequest("body", "must be a JSON object")
    context = event.get("requestContext") or {}
    identity = context.get("identity") or {}
    return Request(
        names={name: value[:MAX_TEXT] for name, value in names.items()},
        query=_query(event),
        headers={str(name).lower(): str(value) for name, value in (event.get("headers") or {}).items()},
        body=body,
        who=str(identity.get("userArn") or identity.get("caller") or "an operator"),
        request_id=str(context.get("requestId") or ""),
    )


_ROLES: Final = ("loss", "step", "grad_norm")


def read_watch(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of WatchPlan that a registration sets.

    Raises:
        InvalidRequest: names the field.
    """
    watch: dict[str, Any] = {}
    metrics = body.get("metrics", {})
    if not isinstance(metrics, dict):
        raise InvalidRequest("metrics", f"must be an object with any of {', '.join(_ROLES)}")
    for role, name in metrics.items():
        if role not in _ROLES:
            raise InvalidRequest(f"metrics.{role}"[:MAX_TEXT], f"is none of {', '.join(_ROLES)}")
        if not isinstance(name, str) or not is_metric_name(name):
            allowed = f"1 to {MAX_METRIC_NAME} printable ASCII characters"
            raise InvalidRequest(f"metrics.{role}", f"must be a metric's name of {allowed}")
        watch[role] = name
    if "alarms" in body:
        if body["alarms"] not in list(AlarmMode):
            raise InvalidRequest("alarms", f"must be one of {', '.join(AlarmMode)}")
        watch["alarms"] = AlarmMode(body["alarms"])
    if "hang_minutes" in body:
        minutes = body["hang_minutes"]
        if type(minutes) is not int or not MIN_HANG_MINUTES <= minutes <= MAX_HANG_MINUTES:
            raise InvalidRequest(
                "hang_minutes", f"must be a whole number from {MIN_HANG_MINUTES} to {MAX_HANG_MINUTES}"
            )
        watch["hang_minutes"] = minutes
    if watch.get("alarms") is AlarmMode.SHARED and metrics:
        raise InvalidRequest("alarms", "shared is for Jobs with a monitor: a training job's own metrics hold no NaN")
    return watch


def _windows(value: Any) -> list[tuple[int, int]]:
    if not isinstance(value, list) or len(value) > 64:
        raise InvalidRequest("skip", "must be a list of at most 64 [from_step, to_step) pairs")
    windows: list[tuple[int, int]] = []
    for index, pair in enumerate(value):
        whole = isinstance(pair, list) and len(pair) == 2 and all(type(step) is int for step in pair)
        if not whole:
            raise InvalidRequest(f"skip[{index}]", "must be a pair of whole numbers")
        windows.append((pair[0], pair[1]))
    return windows


def _ok(body: Mapping[str, Any]) -> Answer:
    return Answer(status=200, body=body)


def job_wire(job: Job) -> dict[str, Any]:
    """A Job as the API shows it."""
    return {
        "job_id": job.job_id,
        "name": job.name,
        "orchestrator": job.orchestrator.value,
        "policy": job.policy_name,
        "created_at": job.created_at.isoformat(),
        "current_attempt": job.current_attempt,
        "attempt_number": job.attempt_number,
        "mailbox": job.mailbox,
        "active": job.active,
        "open_incident": job.open_incident,
        "metrics": {role: name for role in _ROLES if (name := getattr(job.watch, role))},
        "alarms": job.watch.alarms.value,
        "alarms_state": job.watch.alarms_state,
        "hang_minutes": job.watch.hang_minutes,
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
    }


def _skips(skips: tuple[SkipWindow, ...]) -> list[list[int]]:
    return [[window.from_step, window.to_step] for window in skips]
