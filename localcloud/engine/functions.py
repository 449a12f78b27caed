"""Lambda functions as the packaged template defines them, and invocations under those settings.

An invocation that lasts longer than its function's time-out fails, as on AWS. It is not interrupted, because all
functions share one process; it fails when it returns.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from infra.cloudformation.intrinsics import Stack
from localcloud.aws.clock import Clock
from localcloud.aws.events import DEFAULT_BUS, Rule, Schedule, Throttled
from localcloud.aws.queues import QueueSource

_UNITS: Final = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_FUNCTION: Final = "AWS::Serverless::Function"
_LOG_GROUP: Final = "AWS::Logs::LogGroup"
_Statements = tuple[Mapping[str, Any], ...]
_EventSource = tuple[str, Mapping[str, Any]]  # the type of an entry of `Events`, and its properties


class TimedOut(Exception):
    """The invocation lasted longer than the function's time-out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One function. The defaults are Lambda's own, for functions that tests define.

    name, entry     the function's name on AWS, and the name of its handler in the application
    role            the statements of its role's policies
    log_days        the retention of its log group; None: for ever
    reserved        its reserved concurrency; None: unreserved
    retries         of an asynchronous invocation that failed
    on_failure      the name of the queue to which failed asynchronous invocations go
    dead_letters    the name of its dead-letter queue
    alias           the alias that points to the newest version
    execution_s     how long a durable execution may last; 0: the function is not durable
    execution_days  how long a durable execution is kept after its end
    """

    name: str
    entry: str
    memory_mb: int = 128
    timeout_s: int = 900
    role: _Statements = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    log_group: str = "/aws/lambda/local"
    log_days: int | None = None
    reserved: int | None = None
    retries: int = 2
    on_failure: str | None = None
    dead_letters: str | None = None
    alias: str | None = None
    execution_s: int = 0
    execution_days: int = 14
    rules: tuple[Rule, ...] = ()
    schedules: tuple[Schedule, ...] = ()
    queues: tuple[QueueSource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LambdaContext:
    """The context object of a handler, with the attributes that Powertools and Chalice read."""

    function_name: str
    function_version: str
    invoked_function_arn: str
    aws_request_id: str
    memory_limit_in_mb: int
    log_group_name: str
    time_left: Callable[[], timedelta]
    log_stream_name: str = "local"
    client_context: Any = None
    identity: Any = None
    tenant_id: str | None = None

    def get_remaining_time_in_millis(self) -> int:
        """By the cloud's clock. Virtual time does not pass during an invocation."""
        return max(0, int(self.time_left() / timedelta(milliseconds=1)))

    def log(self, message: object) -> None:
        """Part of Lambda's interface; the message is dropped."""


class Invocations:
    """Counts running invocations, and applies reserved concurrency and time-outs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._running: Counter[str] = Counter()

    def have_ended(self, limit_s: float) -> bool:
        """Wait until no invocation runs, for at most `limit_s` real seconds. Returns whether none runs."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(self._running.values()), limit_s)

    def context(self, settings: Settings, *, name: str, qualifier: str, arn: str) -> LambdaContext:
        """The context of an invocation that begins now."""
        ends = self._clock.now() + timedelta(seconds=settings.timeout_s)
        return LambdaContext(
            function_name=name,
            function_version=qualifier or "$LATEST",
            invoked_function_arn=arn,
            aws_request_id=str(uuid.uuid4()),
            memory_limit_in_mb=settings.memory_mb,
            log_group_name=settings.log_group,
            time_left=lambda: ends - self._clock.now(),
        )

    @contextmanager
    def running(self, settings: Settings) -> Iterator[None]:
        """A context in which one invocation of the function runs.

        Raises:
            Throttled: on entry, where the reserved concurrency is in use.
            TimedOut: on exit, where it lasted too long.
        """
        with self._changed:
            if settings.reserved is not None and self._running[settings.name] >= settings.reserved:
                raise Throttled(f"Rate Exceeded: {settings.name} has {settings.reserved} reserved")
            self._running[settings.name] += 1
        began = self._clock.now()
        try:
            yield
        finally:
            with self._changed:
                self._running[settings.name] -= 1
                self._changed.notify_all()
        if (self._clock.now() - began).total_seconds() > settings.timeout_s:
            raise TimedOut(f"Task timed out after {settings.timeout_s:.2f} seconds")


def functions_of(template: Mapping[str, Any], stack: Stack) -> tuple[Settings, ...]:
    """Every function of a packaged template. `stack` resolves its references."""
    resources = template["Resources"]
    shared = template.get("Globals", {}).get("Function", {})
    groups = {
        stack.resolve(resource["Properties"]["LogGroupName"]): resource["Properties"]
        for resource in resources.values()
        if resource["Type"] == _LOG_GROUP
    }
    return tuple(
        _function(resource["Properties"], shared, groups, resources, stack)
        for resource in resources.values()
        if resource["Type"] == _FUNCTION
    )


def _function(
    properties: Mapping[str, Any],
    shared: Mapping[str, Any],
    groups: Mapping[str, Mapping[str, Any]],
    resources: Mapping[str, Any],
    stack: Stack,
) -> Settings:
    own = stack.resolve({key: value for key, value in properties.items() if key not in ("Events", "Role", "Tags")})
    name, entry = own["FunctionName"], own["Handler"].partition(".")[2]
    asynchronous = own.get("EventInvokeConfig", {})
    durable = own.get("DurableConfig", {})
    variables = {
        **stack.resolve(shared.get("Environment", {}).get("Variables", {})),
        **own.get("Environment", {}).get("Variables", {}),
    }
    log_group = f"/aws/lambda/{name}"  # Lambda's own choice, where LoggingConfig names no other
    sources = [(event["Type"], stack.resolve(event["Properties"])) for event in properties.get("Events", {}).values()]
    return Settings(
        name=name,
        entry=entry,
        memory_mb=own["MemorySize"],
        timeout_s=own["Timeout"],
        role=tuple(stack.resolve(_statements(resources, properties["Role"]["Fn::GetAtt"][0], stack))),
        environ=variables,
        log_group=log_group,
        log_days=int(stack.resolve(groups[log_group]["RetentionInDays"])),
        reserved=int(own["ReservedConcurrentExecutions"]) if "ReservedConcurrentExecutions" in own else None,
        retries=asynchronous.get("MaximumRetryAttempts", 2),
        on_failure=_queue(asynchronous.get("DestinationConfig", {}).get("OnFailure", {}).get("Destination")),
        dead_letters=_queue(own.get("DeadLetterQueue", {}).get("TargetArn")),
        alias=own.get("AutoPublishAlias"),
        execution_s=durable.get("ExecutionTimeout", 0),
        execution_days=durable.get("RetentionPeriodInDays", 14),
        rules=_rules(entry, sources),
        schedules=_schedules(entry, sources),
        queues=_queue_sources(entry, sources),
    )


def _rules(entry: str, sources: list[_EventSource]) -> tuple[Rule, ...]:
    return tuple(
        Rule(function=entry, bus=source.get("EventBusName", DEFAULT_BUS), pattern=source["Pattern"])
        for kind, source in sources
        if kind == "EventBridgeRule"
    )


def _schedules(entry: str, sources: list[_EventSource]) -> tuple[Schedule, ...]:
    return tuple(
        Schedule(function=entry, every=_rate(source["Schedule"])) for kind, source in sources if kind == "Schedule"
    )


def _queue_sources(entry: str, sources: list[_EventSource]) -> tuple[QueueSource, ...]:
    return tuple(
        QueueSource(
            function=entry,
            queue=source["Queue"].rpartition(":")[2],
            batch_size=source["BatchSize"],
            reports_failures="ReportBatchItemFailures" in source.get("FunctionResponseTypes", ()),
        )
        for kind, source in sources
        if kind == "SQS"
    )


def _statements(resources: Mapping[str, Any], role: str, stack: Stack) -> list[Any]:
    """The statements of a role's inline policies and of the managed policies that are attached to it."""
    properties = resources[role]["Properties"]
    found = [statement for policy in properties["Policies"] for statement in policy["PolicyDocument"]["Statement"]]
    for managed in stack.resolve(properties.get("ManagedPolicyArns", [])) or ():
        found += resources[managed]["Properties"]["PolicyDocument"]["Statement"]
    return found


def _queue(arn: str | None) -> str | None:
    return arn.rpartition(":")[2] if arn else None


def _rate(expression: str) -> timedelta:
    match = re.fullmatch(r"rate\((\d+) (minute|hour|day)s?\)", expression)
    if match is None:
        raise ValueError(f"the embedded cloud supports rates only, not {expression!r}")
    return int(match[1]) * _UNITS[match[2]]


def failure_record(event: Any, error: str, *, attempts: int, at: datetime, arn: str) -> Any:
    """The record that Lambda sends to an on-failure destination.

    Source: Lambda developer guide, "Capturing records of Lambda asynchronous invocations".
    """
    kind, _, text = error.partition(": ")
    return {
        "version": "1.0",
        "timestamp": at.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "requestContext": {
            "requestId": str(uuid.uuid4()),
            "functionArn": f"{arn}:$LATEST",
            "condition": "RetriesExhausted",
            "approximateInvokeCount": attempts,
        },
        "requestPayload": event,
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
        "responsePayload": {"errorMessage": text, "errorType": kind},
    }
