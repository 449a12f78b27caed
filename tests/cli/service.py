"""A whole service behind a loopback port: the real routes over the fakes, and a hand that plays the workflow."""

from __future__ import annotations

import io
import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from app import app
from chalicelib.api.operation import PREFIX
from chalicelib.api.operations.routes import Api
from chalicelib.config import PRODUCTION_LOG_LEVEL
from chalicelib.domain.decide import decide
from chalicelib.domain.model.action import ActionResult
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, CheckpointView, ReplyView
from chalicelib.ingress import Ingress
from chalicelib.observability import Observability
from chalicelib.services.intake.intake import Intake
from chalicelib.services.observe.observer import Observer
from chalicelib.services.observe.timeline import needs_record
from chalicelib.services.operator.approvals import Approvals
from chalicelib.services.operator.clusters import Clusters
from chalicelib.services.operator.holds import Holds
from chalicelib.services.operator.orders import Orders
from chalicelib.services.operator.policy_documents import PolicyDocuments
from chalicelib.services.operator.switches import Switches
from chalicelib.services.perform.perform import ActionExecutor
from chalicelib.services.reporting.alarms import Alarms
from chalicelib.services.reporting.outcome import Outcome
from localcloud.memory_tables import MemoryIncidents, MemoryJobs
from tests.fakes.executions import RememberedExecutions
from tests.fakes.headnodes import FakeHeadNodes
from tests.fakes.paging import FakeAnswers, FakeListings, FakePolicyShelf
from tests.fakes.watching import FakeAlarmStore
from tests.fakes.world import (
    FakeAnnouncer,
    FakeClock,
    FakeClusterReader,
    FakeMailbox,
    FakePolicies,
    FakeQuarantine,
    FakeScheduler,
)

MAILBOX = "s3://box/runs"
_NUMBERS = itertools.count()  # a logger of each service's own: those of one name share the first one's stream


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class FakeService:
    """The service, and what a test may do to it."""

    clock: FakeClock = field(default_factory=FakeClock)
    requests: list[Seen] = field(default_factory=list)
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)  # given instead of the real ones
    url: str = ""
    log: io.StringIO = field(default_factory=io.StringIO)  # what the service logged and measured

    def __post_init__(self) -> None:
        self.registry = MemoryJobs()
        self.store = MemoryIncidents(self.registry)
        self.scheduler = FakeScheduler(self.clock)
        self.mailbox = FakeMailbox()
        self._restarted: set[str] = set()
        self.quarantine = FakeQuarantine()
        self.policies = FakePolicies()
        self.clusters = FakeClusterReader()
        self.head_nodes = FakeHeadNodes(self.clock)
        clusters, executions = self.clusters, RememberedExecutions()
        self.intake = Intake(
            store=self.store,
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            clusters=clusters,
            executions=executions,
            clock=self.clock,
        )
        alarms = Alarms(
            alarm_store=FakeAlarmStore(),
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            clock=self.clock,
        )
        ingress = Ingress(
            intake=self.intake,
            alarms=alarms,
            clusters=clusters,
            quarantine=self.quarantine,
            clock=self.clock,
            report=self.report,
        )
        self.orders = Orders(
            intake=self.intake,
            registry=self.registry,
            scheduler=self.scheduler,
            policies=self.policies,
            alarms=alarms,
            clock=self.clock,
            mailbox=self.mailbox,
        )
        self.listings = FakeListings(self.store, self.registry)
        self.remembered = FakeAnswers()
        self.policy_documents = PolicyDocuments(documents=FakePolicyShelf(), clock=self.clock)
        self.slurm_clusters = Clusters(head_nodes=self.head_nodes, registry=self.registry, clock=self.clock)
        self.switches = Switches(registry=self.registry, clock=self.clock)
        self.holds = Holds(
            store=self.store,
            registry=self.registry,
            policies=self.policies,
            clusters=self.clusters,
            clock=self.clock,
        )
        self.approvals = Approvals(store=self.store, intake=self.intake, registry=self.registry, clock=self.clock)
        self.stage = "dev"
        self.signer = "arn:aws:iam::1:user/op"  # as API Gateway names who signed
        with redirect_stdout(self.log):  # the logger keeps the stream that it was made with
            self._observability = Observability(service=f"tests-{next(_NUMBERS)}", level=PRODUCTION_LOG_LEVEL)
        self.api = Api(parts=_Parts(self))
        self.ingress = ingress

    def report(self, outcome: Outcome) -> None:
        """Logged and counted as in production, into `log`."""
        with redirect_stdout(self.log):
            self._observability.record(outcome)

    # --- the world ---

    def protect(self, name: str = "lm") -> None:
        """A running training job that asks for protection, and its Job."""
        self.scheduler.put(name, mailbox=f"{MAILBOX}/{name}")
        self.mailbox.roots[name] = f"{MAILBOX}/{name}"
        found = self.scheduler.find(name)
        assert found is not None
        self.intake.register(found)
        self.heartbeat(name, 100)

    def heartbeat(self, name: str, step: int, *, first_step: int = 0) -> None:
        self.mailbox.heartbeats[name] = AttemptView(
            name=name,
            status=AttemptStatus.RUNNING,
            first_step=Known(first_step),
            last_step=Known(step),
            heartbeat_at=self.clock.now(),
            loss_state="finite",
        )

    def fail(self, name: str = "lm", reason: str = "AlgorithmError: exit code 1") -> str:
        """The job fails and its event arrives; returns the Incident's id."""
        self.scheduler.put(name, AttemptStatus.FAILED, failure_reason=reason)
        answered = self.ingress.take("training_job_event", failed_event(name, reason))
        return str(answered[0]["incident_id"])

    def stall(self, name: str = "lm") -> str:
        """The monitor reports a stall; returns the Incident's id."""
        return str(self.ingress.take("monitor_event", stall_event(name))[0]["incident_id"])

    def work(self, incident_id: str, looks: int = 40) -> Incident:
        """Play the workflow: what is asked for is saved, what is stopped stops, what is submitted trains on."""
        results: tuple[ActionResult, ...] = ()
        look = Observer(
            store=self.store,
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            policies=self.policies,
            clock=self.clock,
        )
        perform = ActionExecutor(
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            announcer=FakeAnnouncer(),
            clock=self.clock,
        )
        policy = look.policy_for(incident_id)
        for turn in range(looks):
            before, seen = look.observe(
                incident_id, generation=1, callback_id=f"cb-{turn}", quiet_limit=policy.timing.look_max
            )
            seen = replace(seen, results=results)
            decision = decide(before, seen, now=self.clock.now(), policy=policy)
            if needs_record(before, decision, seen, quiet_limit=policy.timing.look_max):
                look.record(before, decision, seen, token=f"t{turn}")
            results = tuple(
                perform.act(action, incident=decision.incident, policy=policy, token=f"t{turn}.{index}")
                for index, action in enumerate(decision.actions)
            )
            if decision.look_again_in is None:
                break
            self.clock.advance(decision.look_again_in + timedelta(seconds=1))
            self._world_moves()
        return self.store.load(incident_id).incident

    def saved(self, step: int, *, problems: tuple[str, ...] = ()) -> None:
        """A checkpoint lies there, verified unless it has problems."""
        root = f"s3://box/c-{step}"
        self.mailbox.stored.append(
            CheckpointView(
                step=step,
                root=root,
                manifest=f"{root}/manifest.json",
                attempt="lm",
                kind="periodic",
                saved_at=self.clock.now(),
                problems=problems,
            )
        )

    def _world_moves(self) -> None:
        for request_id, request in self.mailbox.requests.items():
            if request_id not in self.mailbox.replies:
                self.mailbox.replies[request_id] = ReplyView(request_id=request_id, outcome="saved", step=100, why="")
                self.mailbox.stored.append(
                    CheckpointView(
                        step=100,
                        root="s3://box/c",
                        manifest="s3://box/m",
                        attempt=request.attempt,
                        kind="emergency",
                        saved_at=self.clock.now(),
                    )
                )
        for name, run in list(self.scheduler.runs.items()):
            if run.view.status is AttemptStatus.STOPPING:
                self.scheduler.put(name, AttemptStatus.STOPPED)
            if run.view.status is AttemptStatus.RUNNING and name in self._restarted:
                self.heartbeat(name, 900, first_step=101)
            if run.view.status is AttemptStatus.STARTING:
                self.scheduler.put(name, AttemptStatus.RUNNING)
                self._restarted.add(name)
                self.heartbeat(name, 900, first_step=101)

    # --- HTTP ---

    def handle(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """One request by the app's own route table."""
        parts = urlsplit(target)
        self.requests.append(Seen(method, target.removeprefix(PREFIX), headers, json.loads(body) if body else None))
        if self.answers:
            return self.answers.pop(0)
        found = _route(method, parts.path)
        if found is None:
            return 403, {}, b'{"message":"Missing Authentication Token"}'  # what API Gateway says to an unknown path
        operation, names = found
        event = {
            "queryStringParameters": dict(parse_qsl(parts.query)) or None,
            "headers": headers,
            "requestContext": {
                "requestId": f"r{len(self.requests)}",
                "identity": {"userArn": self.signer},
            },
        }
        answer = self.api.answer(operation, names, event, body)
        return answer.status, dict(answer.headers), answer.text().encode()


class _Parts:
    """The routes' view of the service: `answers` is their memory here, and the test's own list there."""

    def __init__(self, service: FakeService) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, "remembered" if name == "answers" else name)


def _route(method: str, path: str) -> tuple[str, dict[str, str]] | None:
    given = path.strip("/").split("/")
    for pattern, methods in app.routes.items():
        wanted = pattern.strip("/").split("/")
        if len(wanted) != len(given) or method not in methods:
            continue
        if all(want.startswith("{") or want == have for want, have in zip(wanted, given, strict=True)):
            names = {
                want[1:-1]: unquote(have) for want, have in zip(wanted, given, strict=True) if want.startswith("{")
            }
            return methods[method].view_name, names
    return None


@contextmanager
def serve(service: FakeService) -> Iterator[str]:
    """The service on a loopback port."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, out, content = service.handle(self.command, self.path, headers, body)
            self.send_response(status)
            for name, value in out.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = _answer

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _envelope(source: str, detail_type: str, detail: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "0",
        "id": "5f1c0000-0000-4000-8000-000000000001",
        "source": source,
        "detail-type": detail_type,
        "account": "111122223333",
        "time": "2026-11-20T10:00:00Z",
        "region": "us-west-2",
        "resources": [],
        "detail": detail,
    }


def failed_event(name: str, reason: str) -> dict[str, Any]:
    """What EventBridge says of a training job that has failed."""
    detail = {
        "TrainingJobName": name,
        "TrainingJobStatus": "Failed",
        "SecondaryStatus": "Failed",
        "FailureReason": reason,
        "CreationTime": 1795168800000,
    }
    return _envelope("aws.sagemaker", "SageMaker Training Job State Change", detail)


def stall_event(name: str, step: int = 100) -> dict[str, Any]:
    """What the monitor says of a run that hangs."""
    return _envelope("rekindle.monitor", "Rekindle Stall", {**_said(name, step), "phase": "training", "limit_s": 60})


def resumed_event(name: str, step: int) -> dict[str, Any]:
    """What the monitor says when steps move again."""
    return _envelope("rekindle.monitor", "Rekindle Progress Resumed", _said(name, step))


def _said(name: str, step: int) -> dict[str, Any]:
    return {
        "v": 1,
        "job_id": name,
        "attempt": name,
        "attempt_number": 1,
        "rank": 0,
        "world_size": 2,
        "step": step,
        "at": "2026-11-20T10:00:00Z",
        "silent_s": 95,
    }
