"""The real service on the embedded cloud, its API on loopback, and a console in front of it; filled as a test wants."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from app import app
from chalicelib import bootstrap
from chalicelib.aws.dynamodb.incidents import DynamoIncidentStore
from chalicelib.aws.dynamodb.items import INCIDENTS_CLOSED, flag, text
from chalicelib.aws.dynamodb.jobs import job_item
from chalicelib.domain.model.incident import CheckpointAsk, Incident, Phase, SkipWindow, Try
from chalicelib.domain.model.incident_parts import BadLoss, Halt, Resubmissions
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from localcloud.aws.clock import RealClock
from localcloud.cloud import STACK, Cloud
from localcloud.stack import deploy_rekindle
from rekindle.client.api import Client
from rekindle.console.server import Console, running
from rekindle.protocol.signals import FaultClass
from tests.fakes.fleet import plain_job

PER_BATCH = 25  # Source: BatchWriteItem, 25 items per call


@dataclass(frozen=True)
class World:
    """Everything at hand."""

    cloud: Cloud
    service: bootstrap.Service
    console: Console
    api_url: str

    def put(self, *items: Mapping[str, Any]) -> None:
        """Items into the table."""
        for start in range(0, len(items), PER_BATCH):
            requests = [{"PutRequest": {"Item": dict(item)}} for item in items[start : start + PER_BATCH]]
            self.cloud.client("dynamodb").batch_write_item(RequestItems={STACK: requests})

    def fill(self, *, jobs: int, incidents: int, opened: int = 0) -> None:
        """So many Jobs and Incidents, the newest `opened` of them open."""
        self.put(*(job_item(a_job(f"llama-{number:05d}", active=number % 4 != 3)) for number in range(jobs)))
        self.put(*(an_item(an_incident(number, is_open=number < opened)) for number in range(incidents)))


@contextmanager
def raised(*, can_order: bool = True, policies: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[World]:
    """A world, in real time; nothing trains in it but what a test starts."""
    with Cloud(clock=RealClock()) as cloud:
        try:
            service = deploy_rekindle(cloud, policies=policies, log_level="ERROR")
            cloud.events.stop_schedules()  # a sweep would take care of Incidents that are only pictures here
            url = cloud.serve_api(app)
            with running(Client(url=url), can_order=can_order) as console:
                yield World(cloud=cloud, service=service, console=console, api_url=url)
        finally:
            bootstrap.install(None)


NOW = datetime.now(UTC).replace(microsecond=0)


def a_job(name: str, *, active: bool = True, **changes: Any) -> Job:
    return replace(plain_job(name, NOW - timedelta(days=2)), active=active, **changes)


def a_signal(name: str, at: datetime, summary: str, **changes: Any) -> Signal:
    plain = Signal(
        kind=SignalKind.ATTEMPT_STATE,
        source=SignalSource.SAGEMAKER,
        occurred_at=at,
        dedupe_key=f"k-{name}",
        summary=summary,
        job_id=name,
        attempt=name,
        fault=FaultClass.SOFTWARE_CRASH,
    )
    return replace(plain, **changes)


_ENDS = (
    (Phase.RECOVERED, "verify.passed", FaultClass.LOSS_SPIKE),
    (Phase.RECOVERED, "verify.passed", FaultClass.HANG),
    (Phase.HANDED_OVER, "no_progress", FaultClass.NON_FINITE),
    (Phase.STOPPED, "cancelled", FaultClass.SOFTWARE_CRASH),
)


def an_incident(number: int, *, is_open: bool) -> Incident:
    """One of many, each a few minutes older than the one before."""
    job = f"llama-{number % 1000:05d}"
    at = NOW - timedelta(minutes=3 * number + 1)
    phase, outcome, fault = _ENDS[number % len(_ENDS)]
    back = Try(
        number=2, name=f"{job}-r2", clone_of=job, at=at + timedelta(minutes=1), resume_step=Known(12_000 + number)
    )
    return Incident(
        incident_id=f"inc-{job}-{number:012x}",
        job_id=job,
        cluster=None,
        opened_at=at,
        phase=Phase.VERIFYING if is_open else phase,
        phase_entered_at=at,
        version=3,
        generation=1,
        policy_name="default",
        policy_version="",
        policy_document=None,
        fault=fault,
        fault_rule="heartbeat.spiking",
        signals=(a_signal(job, at, f"{job}: the loss spikes since step {12_400 + number}"),),
        signals_seen=1,
        attempt=job,
        attempt_number=1,
        target_step=Known(12_500 + number),
        loss=BadLoss(
            onset_step=Known(12_400 + number),
            onset_attempt=job,
            skips=(SkipWindow(from_step=12_400 + number, to_step=12_450 + number),),
        ),
        halt=Halt(
            ask=CheckpointAsk(
                request_id="r", attempt=job, asked_at=at, deadline_at=at, outcome="saved", step=12_480 + number, why=""
            )
        ),
        resubmission=Resubmissions(tries=(back,)),
        closed_at=None if is_open else at + timedelta(minutes=2),
        outcome="" if is_open else outcome,
    )


def an_item(incident: Incident) -> dict[str, Any]:
    """As the store lays it down; an Incident that is not open stands in the other half of the index."""
    store = DynamoIncidentStore(None, table=STACK)
    item: dict[str, Any] = store._put_incident(incident, incident.signals[0])["Put"]["Item"]
    if not incident.is_open:
        item |= {"gsi1pk": text(INCIDENTS_CLOSED), "is_open": flag(False), "inbox": {"L": []}}
    return item


@dataclass(frozen=True)
class Got:
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: str


class Visitor:
    """A program that speaks HTTP to a console, with the cookie, unless it is told otherwise."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.port = console.gate.port
        self.cookie = f"{console.gate.cookie}={console.gate.session}"

    def ask(
        self,
        method: str,
        path: str,
        *,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Got:
        """One request; a header that is None is left out."""
        given: dict[str, str | None] = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie}
        body = None
        if form is not None:
            body = urlencode(form)
            given["Content-Type"] = "application/x-www-form-urlencoded"
        given |= dict(headers or {})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                if value is not None:
                    connection.putheader(name, value)
            if body is not None and "Content-Length" not in given:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body.encode() if body is not None else None)
            answer = connection.getresponse()
            return Got(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode())
        finally:
            connection.close()

    def get(self, path: str, **headers: str | None) -> Got:
        return self.ask("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def order(self, path: str, **form: str) -> Got:
        """A form of ours, as a browser sends it."""
        key = form.pop("key", "0123456789abcdef" * 2)
        return self.ask("POST", path, form={"csrf": self.console.gate.csrf, "key": key, **form})
