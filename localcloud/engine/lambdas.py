"""The Lambda API: functions by name, and durable executions, as a boto3 client expects to find them.

Paths, members and places of members are botocore's lambda model; `LambdaApi.handle` takes one HTTP request and answers
it, whether it came over HTTP or was picked up in the process.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from aws_durable_execution_sdk_python_testing.execution import Execution

from localcloud.aws.answers import AwsError
from localcloud.aws.authorization import ACCOUNT_ID, REGION
from localcloud.aws.clock import Clock
from localcloud.aws.events import Throttled
from localcloud.aws.shapes import check_answer, operation_model, request_problems
from localcloud.engine.deployed import Functions, split_name
from localcloud.engine.engine import AlreadyStarted, CallbackClosed, DurableEngine, NoSuchExecution
from localcloud.engine.functions import failure_record

OPERATIONS = (
    "Invoke",
    "GetFunctionConfiguration",
    "SendDurableExecutionCallbackSuccess",
    "ListDurableExecutionsByFunction",
)
_ASYNC_RETRY = timedelta(minutes=1)  # Source: Lambda developer guide, asynchronous error handling

Response = tuple[int, dict[str, str], bytes]


class LambdaApi:
    """The part of the Lambda service that Rekindle meets."""

    def __init__(
        self,
        *,
        functions: Functions,
        engine: DurableEngine,
        clock: Clock,
        send: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        """send: puts a text into a queue by its name."""
        self._send = send
        self._functions = functions
        self._engine = engine
        self._clock = clock
        self.failed_invocations: list[tuple[str, str]] = []
        self._routes = [self._route(name) for name in OPERATIONS]

    def handle(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Response | None:
        """Answer one request; None where it is no request for this API."""
        parts = urlsplit(url)
        for operation, wanted_method, pattern in self._routes:
            match = pattern.fullmatch(parts.path)
            if match is None or wanted_method != method:
                continue
            try:
                request = self._parse(operation, match.groupdict(), parse_qs(parts.query), headers, body)
                return self._answer(operation, request)
            except AwsError as err:
                return _error(err)
        return None

    # ---- what the operations do ------------------------------------------------------------------------------------

    def _answer(self, operation: str, request: dict[str, Any]) -> Response:
        try:
            if operation == "Invoke":
                return self._invoke(request)
            method: Callable[[dict[str, Any]], dict[str, Any]] = getattr(self, f"_{operation}")
            answer = check_answer("lambda", operation, method(request))
        except NoSuchExecution as err:
            raise AwsError("ResourceNotFoundException", f"Not found: {err}", status=404) from err
        except CallbackClosed as err:
            raise AwsError("CallbackTimeoutException", "Callback already completed or expired") from err
        return 200, {"Content-Type": "application/json"}, json.dumps(answer, default=_epoch_s).encode()

    def _invoke(self, request: dict[str, Any]) -> Response:
        name, qualifier = split_name(request["FunctionName"], request.get("Qualifier"))
        kind = request.get("InvocationType") or "RequestResponse"
        payload = request.get("Payload") or b"{}"
        if name not in self._functions.handlers:
            raise AwsError("ResourceNotFoundException", f"Function not found: {name}", status=404)
        if name in self._functions.durable:
            return self._invoke_durable(name, qualifier, kind, payload, request.get("DurableExecutionName"))
        if request.get("DurableExecutionName"):
            raise AwsError("InvalidParameterValueException", "DurableExecutionName requires a durable function.")
        if kind == "Event":
            self._invoke_later(name, json.loads(payload), 1, timedelta(0))
            return 202, {}, b""
        try:
            result = self.run(name, json.loads(payload))
        except Throttled as err:
            raise AwsError("TooManyRequestsException", str(err), status=429) from err
        except Exception as err:  # a handler's failure is an answer of Invoke, not an error of it
            failure = {"errorMessage": str(err), "errorType": type(err).__name__}
            return 200, {"X-Amz-Function-Error": "Unhandled"}, json.dumps(failure).encode()
        return 200, {"X-Amz-Executed-Version": qualifier or "$LATEST"}, json.dumps(result).encode()

    def _invoke_durable(
        self, name: str, qualifier: str | None, kind: str, payload: bytes, execution_name: str | None
    ) -> Response:
        if qualifier is None:
            raise AwsError(
                "InvalidParameterValueException", "You cannot invoke a durable function using an unqualified ARN."
            )
        version = self._functions.version_of(name, qualifier)
        if version is None:
            raise AwsError("ResourceNotFoundException", f"Function not found: {name}:{qualifier}", status=404)
        try:
            started = self._engine.start(function=name, name=execution_name, payload=payload.decode(), version=version)
        except AlreadyStarted as err:
            raise AwsError("DurableExecutionAlreadyStartedException", str(err), status=409) from err
        headers = {"X-Amz-Durable-Execution-Arn": started.arn, "X-Amz-Executed-Version": version}
        if kind == "Event":
            return 202, headers, b""
        self._clock.run_until(lambda: self._engine.status(started.arn) != "RUNNING", limit=timedelta(minutes=15))
        result = self._engine.load(started.arn).result
        if result is None:
            raise AwsError("ServiceException", "The execution did not end within 15 minutes.", status=500)
        if result.error is not None:
            headers["X-Amz-Function-Error"] = "Unhandled"
            return 200, headers, json.dumps(result.error.to_dict()).encode()
        return 200, headers, (result.result or "null").encode()

    def run(self, name: str, event: Any) -> Any:
        """One invocation, waited for, as its settings allow. Raises: what the handler raised; Throttled, TimedOut."""
        with self._engine.invocations.running(self._functions.settings_of(name.partition(":")[0])):
            return self._functions[name](event, self._engine.context_for(name))

    def attempts_of(self, name: str) -> int:
        """How often an asynchronous call is tried."""
        return 1 + self._functions.settings_of(name).retries

    def keep(self, name: str, event: Any, error: str, attempts: int) -> None:
        """Send what an asynchronous call has failed with to the function's on-failure destination."""
        settings = self._functions.settings_of(name)
        if settings.on_failure is not None:
            arn = self._arn(settings.name)
            record = failure_record(event, error, attempts=attempts, at=self._clock.now(), arn=arn)
            self._send(settings.on_failure, json.dumps(record))

    def bury(self, name: str, payload: str) -> None:
        """Send the event of a failed durable execution to the function's dead-letter queue."""
        queue = self._functions.settings_of(name).dead_letters
        if queue is not None:
            self._send(queue, payload)

    def _arn(self, name: str) -> str:
        return f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{name}"

    def _GetFunctionConfiguration(self, request: dict[str, Any]) -> dict[str, Any]:
        name, _ = split_name(request["FunctionName"], request.get("Qualifier"))
        if name not in self._functions.handlers:
            raise AwsError("ResourceNotFoundException", f"Function not found: {name}", status=404)
        settings = self._functions.settings_of(name)
        answer: dict[str, Any] = {
            "FunctionName": settings.name,
            "FunctionArn": self._arn(settings.name),
            "MemorySize": settings.memory_mb,
            "Timeout": settings.timeout_s,
            "Environment": {"Variables": dict(settings.environ)},
            "LoggingConfig": {"LogFormat": "Text", "LogGroup": settings.log_group},
        }
        if settings.dead_letters is not None:
            queue = f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{settings.dead_letters}"
            answer["DeadLetterConfig"] = {"TargetArn": queue}
        if settings.alias is not None:
            answer["DurableConfig"] = {
                "ExecutionTimeout": settings.execution_s,
                "RetentionPeriodInDays": settings.execution_days,
            }
        return answer

    def _invoke_later(self, name: str, event: Any, attempt: int, delay: timedelta) -> None:
        def run() -> None:
            try:
                self.run(name, event)
            except Throttled:
                self._invoke_later(name, event, attempt, _ASYNC_RETRY)
            except Exception as err:  # Lambda retries an asynchronous call whatever it raised
                if attempt < self.attempts_of(name):
                    self._invoke_later(name, event, attempt + 1, _ASYNC_RETRY * attempt)
                else:
                    error = f"{type(err).__name__}: {err}"
                    self.failed_invocations.append((name, error))
                    self.keep(name, event, error, attempt)

        self._clock.after(delay, run, label=f"invoke {name}")

    def _SendDurableExecutionCallbackSuccess(self, request: dict[str, Any]) -> dict[str, Any]:
        self._engine.succeed(request["CallbackId"], request.get("Result") or b"")
        return {}

    def _ListDurableExecutionsByFunction(self, request: dict[str, Any]) -> dict[str, Any]:
        name, _ = split_name(request["FunctionName"], request.get("Qualifier"))
        found = [
            e
            for e in self._engine.executions(function=name, statuses=frozenset(request.get("Statuses") or ()))
            if request.get("DurableExecutionName") in (None, e.start_input.execution_name)
        ]
        start = int(request.get("Marker") or 0)
        end = start + int(request.get("MaxItems") or 100)
        answer: dict[str, Any] = {"DurableExecutions": [self._summary(e) for e in found[start:end]]}
        return answer | ({"NextMarker": str(end)} if end < len(found) else {})

    def _summary(self, execution: Execution) -> dict[str, Any]:
        started = execution.get_operation_execution_started()
        name = execution.start_input.function_name
        answer = {
            "DurableExecutionArn": execution.durable_execution_arn,
            "DurableExecutionName": execution.start_input.execution_name,
            "FunctionArn": f"arn:aws:lambda:{REGION}:{ACCOUNT_ID}:function:{name}:1",
            "Status": execution.current_status().value,
            "StartTimestamp": started.start_timestamp,
        }
        if started.end_timestamp is not None:
            answer["EndTimestamp"] = started.end_timestamp
        return answer

    # ---- the wire --------------------------------------------------------------------------------------------------

    @staticmethod
    def _route(operation: str) -> tuple[str, str, re.Pattern[str]]:
        http = operation_model("lambda", operation).http
        path = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(http["requestUri"].split("?")[0]))
        return operation, str(http["method"]), re.compile(path)

    @staticmethod
    def _parse(
        operation: str,
        path: Mapping[str, str],
        query: Mapping[str, list[str]],
        headers: Mapping[str, str],
        body: bytes,
    ) -> dict[str, Any]:
        shape: Any = operation_model("lambda", operation).input_shape
        given = {key.lower(): value for key, value in headers.items()}
        payload = shape.serialization.get("payload")
        in_body = json.loads(body) if body and payload is None else {}
        request: dict[str, Any] = {}
        for name, member in shape.members.items():
            place, wire_name = member.serialization.get("location"), member.serialization.get("name", name)
            value: Any = None
            if place == "uri":
                value = unquote(path[wire_name])
            elif place == "querystring" and wire_name in query:
                value = _from_text(member.type_name, query[wire_name])
            elif place == "header":
                value = given.get(wire_name.lower())
            elif name == payload:
                value = (body if member.type_name == "blob" else json.loads(body)) if body else None
            elif place is None and name in in_body:
                value = base64.b64decode(in_body[name]) if member.type_name == "blob" else in_body[name]
            if value is not None:
                request[name] = value
        problems = request_problems("lambda", operation, request)
        if problems:
            raise AwsError("InvalidParameterValueException", "; ".join(problems))
        return request


def _from_text(kind: str, values: list[str]) -> Any:
    if kind == "list":
        return values
    if kind == "boolean":
        return values[0] == "true"
    return int(values[0]) if kind == "integer" else values[0]


def _epoch_s(value: object) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    raise TypeError(f"not serialisable: {value!r}")


def _error(err: AwsError) -> Response:
    body = json.dumps({"Type": "User", "message": err.message, "Message": err.message}).encode()
    return err.status, {"Content-Type": "application/json", "x-amzn-ErrorType": err.code}, body
