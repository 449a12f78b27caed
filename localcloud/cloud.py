"""The embedded cloud, put together: one object that has the clock, AWS, the functions, the events and the jobs.

with Cloud() as cloud:                      # virtual time, everything in this process: for tests
    cloud.deploy({"recover": recover}, durable={"recover": "live"})
    cloud.clock.run_until(lambda: ..., limit=timedelta(hours=1))

with Cloud(http=True, clock=RealClock()):   # real time, real HTTP: for the demo and for real processes
"""

from __future__ import annotations

import base64
import gzip
import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from moto import mock_aws
from moto.moto_api._internal.models import moto_api_backend
from moto.sqs.models import sqs_backends

from infra.cloudformation.intrinsics import Stack
from infra.merge import ENVIRONMENT
from localcloud.aws import roles, template
from localcloud.aws import wire as aws_wire
from localcloud.aws.authorization import Account
from localcloud.aws.clock import Clock, RealClock, SimClock
from localcloud.aws.cloudwatch import Alarms
from localcloud.aws.events import DEFAULT_BUS, Chaos, EventBridge, Rule, Schedule, put_events_answer
from localcloud.aws.packaged import packaged_template
from localcloud.aws.queues import QueueSource, QueueSources, visible_at
from localcloud.aws.roles import Roles
from localcloud.aws.s3_keys import key_of_bucket, key_of_object
from localcloud.aws.sagemaker import TrainingJobs
from localcloud.aws.wire import PLATFORM, Wire
from localcloud.clients import client_of, environment
from localcloud.cloud_app import ApiServer, deployment_of, own_name
from localcloud.engine.deployed import Functions
from localcloud.engine.durable import Handler
from localcloud.engine.engine import DurableEngine
from localcloud.engine.functions import Settings, functions_of
from localcloud.engine.lambdas import LambdaApi
from localcloud.moto_server import HttpServer, extended_moto, operations_of
from localcloud.platforms.hyperpod import OPERATIONS as CLUSTER_OPERATIONS
from localcloud.platforms.hyperpod import Clusters
from localcloud.platforms.processes import Processes
from localcloud.platforms.sagemaker_simulated import Simulated
from localcloud.snapshot import Snapshot

REGION = "us-west-2"
ACCOUNT_ID = "123456789012"
STACK = "rekindle"
_SAVE_EVERY = timedelta(seconds=5)  # what a killed cloud may lose of the story; the durable store loses nothing
RECOVER_FUNCTION = "rekindle-recover"
ALIAS = "live"
TRAINING_ROLES = f"arn:aws:iam::{ACCOUNT_ID}:role/*"  # whose training jobs may be submitted again

TRAINING_OPERATIONS = (
    "CreateTrainingJob",
    "DescribeTrainingJob",
    "StopTrainingJob",
    "ListTrainingJobs",
)


# Worked out once for each choice of the stack's parameters: most clouds of a process have the same.
_FUNCTIONS: dict[tuple[object, ...], tuple[Settings, ...]] = {}


class Cloud:
    """An AWS account on one machine.

    http: serve AWS on a loopback port, for other processes too; otherwise clients of this process are answered
    directly, which is much faster. clock: SimClock unless given. store: folder of what must outlive the process.
    set_environ: put `environ()` into this process's environment while the cloud is open. resumes: take up durable
    executions that an earlier cloud on the same store left running, as soon as their function is deployed.
    """

    def __init__(
        self,
        *,
        http: bool = False,
        clock: Clock | None = None,
        store: Path | None = None,
        chaos: Chaos | None = None,
        set_environ: bool = True,
        resumes: bool = True,
        port: int = 0,
        retry_after: timedelta | None = None,
        max_failed_attempts: int = 5,
    ) -> None:
        self.clock: Clock = clock or SimClock()
        self.store = store
        self.functions = Functions()
        self.wire = Wire(in_process=not http)
        self._http = http
        self._port = port
        self._set_environ = set_environ
        self._resumes = resumes
        self._stack = ExitStack()
        # The stack's parameters of these names; `roles.changed()` after a change.
        self.training_buckets: tuple[str, ...] = ()
        self.training_roles: tuple[str, ...] = (TRAINING_ROLES,)
        self.kms_keys: tuple[str, ...] = ()
        self.roles = Roles(self._role_statements, Account(ACCOUNT_ID, REGION, key_of_bucket, key_of_object))
        self._clients: dict[tuple[str, str], Any] = {}
        self._client_lock = threading.Lock()
        self.server: HttpServer | None = None
        virtual = isinstance(self.clock, SimClock)
        default_retry = timedelta(seconds=5) if virtual else timedelta(seconds=1)
        self.engine = DurableEngine(
            clock=self.clock,
            resolve=self.functions.__getitem__,
            store=store / "durable.sqlite" if store is not None else None,
            retry_after=retry_after or default_retry,
            max_failed_attempts=max_failed_attempts,
            settings_of=self.functions.settings_of,
            dead=lambda function, payload: self.lambdas.bury(function, payload),
        )
        self.lambdas = LambdaApi(
            functions=self.functions, engine=self.engine, clock=self.clock, send=self._send_to_queue
        )
        self.events = EventBridge(
            clock=self.clock,
            invoke=self.invoke,
            chaos=chaos,
            retry_after=timedelta(seconds=30) if virtual else timedelta(seconds=1),
            attempts_of=self.lambdas.attempts_of,
            kept=lambda failed: self.lambdas.keep(failed.function, failed.event, failed.error or "", failed.attempt),
        )
        self.queues = QueueSources(
            clock=self.clock,
            invoke=self.invoke,
            sqs=lambda: self.client("sqs"),
            next_visible=self._next_visible,
        )
        self.training = TrainingJobs(clock=self.clock, publish=self.events.publish)
        self.clusters = Clusters(clock=self.clock, publish=self.events.publish)
        self.alarms = Alarms(clock=self.clock, publish=self.events.publish)
        self.simulated = Simulated(
            clock=self.clock,
            jobs=self.training,
            s3=lambda: self.client("s3"),
            events=lambda: self.client("events"),
        )
        self.training.backend = self.simulated

    # ---- life ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self.store is not None:
            self.store.mkdir(parents=True, exist_ok=True)
        with self._stack:
            self._open()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that runs; what is in the store stays."""
        self._stack.close()

    def _open(self) -> None:
        stack = self._stack
        stack.enter_context(aws_wire.installed(self.wire))
        stack.enter_context(roles.in_force(self.roles))
        stack.enter_context(
            extended_moto(
                clock=self.clock,
                sagemaker=operations_of(self.training, TRAINING_OPERATIONS)
                | operations_of(self.clusters, CLUSTER_OPERATIONS),
                tags_of=self._tags_of,
                put_events=self._put_events,
                on_object_created=self.simulated.on_object_created,
                on_message=self.queues.sent,
            )
        )
        if self._http:
            self.server = HttpServer(wire=self.wire, lambdas=self.lambdas, port=self._port)
            moto_api_backend.reset()  # its state is the process's, not the server's
            self.server.start()
            stack.callback(self.server.close)
        else:
            self.wire.lambda_handler = self._answer_lambda
            stack.enter_context(mock_aws(config={"core": {"reset_boto3_session": False}}))
        if self._set_environ:
            stack.enter_context(environment(self.environ()))
        self.create_resources()
        self.engine.open()
        stack.callback(self.clock.close)
        if self.store is not None:
            Snapshot(self.store / "cloud.sqlite").load(self)
            stack.callback(self.save)
            if isinstance(self.clock, RealClock):  # virtual seconds pass by the thousand; its tests save at the end
                self._save_again()
        stack.callback(self.engine.close)
        stack.callback(self.events.stop_schedules)
        stack.callback(self.alarms.stop)

    def environ(self) -> dict[str, str]:
        """All that a process needs to use this cloud: endpoint, credentials, region, and the app's own settings."""
        account = {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",  # moto takes any
            "AWS_SESSION_TOKEN": "testing",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            # boto3 would wait real seconds between its own retries; the durable engine's retries are what is tested.
            "AWS_MAX_ATTEMPTS": "1",
            **self._references().resolve(ENVIRONMENT),
        }
        if self.server is not None:
            account["AWS_ENDPOINT_URL"] = self.server.url
        return account

    def client(self, service: str, *, caller: str = PLATFORM) -> Any:
        """A real boto3 client of this account, made once for each caller, by which its calls are counted."""
        with self._client_lock:
            if (service, caller) not in self._clients:
                url = self.server.url if self.server is not None else None
                self._clients[service, caller] = client_of(service, url, caller=caller, region=REGION)
            return self._clients[service, caller]

    def create_resources(self) -> None:
        """Table, queues, bucket, bus and topic, made from the template that is deployed."""
        template.create_table(self.client("dynamodb"), STACK)
        template.create_queues(self.client("sqs"), STACK)
        self.create_bucket(f"{STACK}-mailbox")
        self.client("events").create_event_bus(Name=STACK)
        self.client("sns").create_topic(Name=f"{STACK}-notices")

    def create_bucket(self, name: str) -> None:
        """A bucket that the stack knows as one of Jobs."""
        self.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        self.training_buckets = (*self.training_buckets, name)
        self.roles.changed()

    def _references(self) -> Stack:
        """What the stack's parameters and resources are called here."""
        return template.references(
            STACK,
            account_id=ACCOUNT_ID,
            region=REGION,
            bucket=f"{STACK}-mailbox",
            parameters={name: list(values) for name, values in self._parameters().items()},
            queue_url=self._queue_url,
        )

    def _parameters(self) -> dict[str, tuple[str, ...]]:
        return {
            "TrainingBuckets": self.training_buckets[1:],
            "TrainingRoleArns": self.training_roles,
            "KmsKeyArns": self.kms_keys,
        }

    def save(self) -> None:
        """Write everything that must outlive this process to the store. Also runs every few seconds and at the end."""
        if self.store is not None:
            Snapshot(self.store / "cloud.sqlite").save(self)

    def _save_again(self) -> None:
        def again() -> None:
            self.save()
            self._save_again()

        self.clock.after(_SAVE_EVERY, again, label="save the cloud")

    # ---- functions and events --------------------------------------------------------------------------------------

    def deploy(
        self,
        handlers: Mapping[str, Handler],
        *,
        rules: Iterable[Rule] = (),
        schedules: Iterable[Schedule] = (),
        durable: Mapping[str, str] | None = None,
        queues: Iterable[QueueSource] = (),
        settings: Mapping[str, Settings] | None = None,
    ) -> None:
        """Have these functions in the account. durable: function name to the alias it is invoked by. settings: where
        they are not Lambda's defaults."""
        self.functions.deploy(handlers, durable or {}, settings)
        self.events.rules.extend(rules)
        for function in (durable or {}) if self._resumes else ():
            self.engine.resume(function)
        for queue in queues:
            self.queues.add(queue)
        for schedule in schedules:
            self.events.start_schedule(schedule)

    def deploy_app(self, app: Any, *, schedules: bool = True) -> None:
        """Have a whole Chalice app in the account, with its rules; and its schedules, unless the test runs them."""
        deployment = deployment_of(app, self.stack_functions(), stack=STACK)
        self.deploy(
            deployment.handlers,
            rules=deployment.rules,
            schedules=deployment.schedules if schedules else (),
            durable=deployment.durable,
            queues=deployment.queues,
            settings=deployment.settings,
        )

    def stack_functions(self) -> tuple[Settings, ...]:
        """The stack's functions, made from the packaged template with the stack's present parameters."""
        key = (*self._parameters().items(), ("urls", self._queue_url("")))
        if key not in _FUNCTIONS:
            _FUNCTIONS[key] = functions_of(packaged_template(), self._references())
        return _FUNCTIONS[key]

    def _role_statements(self) -> Mapping[str, Any]:
        return {own_name(function, STACK): function.role for function in self.stack_functions()}

    def _send_to_queue(self, name: str, text: str) -> None:
        self.client("sqs").send_message(QueueUrl=self._queue_url(name), MessageBody=text)

    def serve_api(self, app: Any, *, port: int = 0) -> str:
        """Serve the app's REST API over HTTP; where."""
        server = ApiServer(app, port=port)
        server.start()
        self._stack.callback(server.close)
        return server.url

    def run_processes(self, folder: Path, **options: Any) -> Processes:
        """Back training jobs by real processes from now on (options: see `Processes`). Needs HTTP."""
        processes = Processes(clock=self.clock, jobs=self.training, folder=folder, environ=self.environ(), **options)
        self.training.backend = processes
        self._stack.callback(processes.close)
        return processes

    def monotonic_s(self) -> float:
        """Seconds of the cloud's own clock, by which its functions run out of time."""
        return self.clock.now().timestamp()

    def invoke(self, function: str, event: Any) -> Any:
        """Run one function, as Lambda would, and wait for it."""
        return self.lambdas.run(function, event)

    def log_batch_event(self, *, group: str, stream: str, messages: Iterable[str]) -> dict[str, Any]:
        """What a CloudWatch Logs subscription sends for these lines. Source: SubscriptionFilters, AWS docs."""
        at_ms = int(self.clock.now().timestamp() * 1000)
        batch = {
            "messageType": "DATA_MESSAGE",
            "owner": ACCOUNT_ID,
            "logGroup": group,
            "logStream": stream,
            "subscriptionFilters": [STACK],
            "logEvents": [{"id": str(n), "timestamp": at_ms, "message": text} for n, text in enumerate(messages)],
        }
        return {"awslogs": {"data": base64.b64encode(gzip.compress(json.dumps(batch).encode(), mtime=0)).decode()}}

    # ---- what moto calls -------------------------------------------------------------------------------------------

    def _put_events(self, request: dict[str, Any]) -> dict[str, Any]:
        buses = frozenset(rule.bus for rule in self.events.rules) | {DEFAULT_BUS, STACK}
        return put_events_answer(self.events, request, buses)

    def _next_visible(self, queue: str) -> datetime | None:
        """When the next hidden message of a queue appears: moto knows, and no client could ask without hiding more."""
        backend: Any = sqs_backends[ACCOUNT_ID][REGION]
        return visible_at(list(backend.get_queue(queue)._messages), self.clock.now())

    def _tags_of(self, arn: str) -> dict[str, str] | None:
        tags = self.training.tags_of(arn)
        return tags if tags is not None else self.clusters.tags_of(arn)

    def _answer_lambda(self, request: AWSPreparedRequest) -> AWSResponse | None:
        body = request.body or b""
        answer = self.lambdas.handle(
            request.method,
            request.url,
            {k: v.decode() if isinstance(v, bytes) else v for k, v in request.headers.items()},
            body if isinstance(body, bytes) else str(body).encode(),
        )
        if answer is None:
            return aws_wire.response(request.url, 404, {}, b'{"message": "not implemented here"}')
        status, headers, content = answer
        return aws_wire.response(request.url, status, headers, content)

    def _queue_url(self, name: str) -> str:
        root = self.server.url if self.server is not None else f"https://sqs.{REGION}.amazonaws.com"
        return f"{root}/{ACCOUNT_ID}/{name}"
