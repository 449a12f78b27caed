"""moto as the ground of the embedded cloud: extended, tied to the cloud's clock, in the process or behind HTTP.

Everything here changes moto's classes for as long as a cloud runs, and gives them back unchanged.
Source of what is missing in moto 5.2.5: its IMPLEMENTATION_COVERAGE.md.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import moto.cloudwatch.models
import moto.s3.models
import moto.s3.notifications
import moto.sqs.models
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.events.responses import EventsHandler
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.sagemaker.exceptions import SagemakerClientError
from moto.sagemaker.responses import SageMakerResponse
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from localcloud.aws import long_poll
from localcloud.aws.answers import AwsError
from localcloud.aws.clock import Clock
from localcloud.aws.cloudwatch import get_metric_data
from localcloud.aws.shapes import check_answer, request_problems
from localcloud.aws.wire import Wire
from localcloud.engine.lambdas import LambdaApi

Operation = Callable[[dict[str, Any]], dict[str, Any]]
TagsOf = Callable[[str], dict[str, str] | None]
ObjectHook = Callable[[str, str], None]
MessageHook = Callable[[str], None]


def _snake(operation: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()


def operations_of(service: object, names: Iterable[str]) -> dict[str, Operation]:
    """The named AWS operations of an object that has them as snake-case methods."""
    return {name: getattr(service, _snake(name)) for name in names}


@contextmanager
def extended_moto(
    *,
    clock: Clock,
    sagemaker: Mapping[str, Operation],
    tags_of: TagsOf,
    put_events: Operation,
    on_object_created: ObjectHook,
    on_message: MessageHook = lambda _: None,
) -> Iterator[None]:
    """moto with our SageMaker, our event bus and our time."""
    with ExitStack() as stack:

        def patch(owner: Any, name: str, value: Any) -> None:
            missing = object()
            before = owner.__dict__.get(name, missing) if isinstance(owner, type) else getattr(owner, name, missing)
            setattr(owner, name, value)
            if before is missing:
                stack.callback(delattr, owner, name)
            else:
                stack.callback(setattr, owner, name, before)

        for operation, call in sagemaker.items():
            patch(SageMakerResponse, _snake(operation), _response_method("sagemaker", operation, call))
        for name in ("AddTags", "ListTags", "DeleteTags"):
            patch(SageMakerResponse, _snake(name), _tag_method(name, tags_of, getattr(SageMakerResponse, _snake(name))))
        patch(EventsHandler, "put_events", _response_method("events", "PutEvents", put_events))

        patch(moto.cloudwatch.models.CloudWatchBackend, "get_metric_data", get_metric_data)
        for module in (moto.s3.models, moto.cloudwatch.models):
            patch(module, "utcnow", lambda: clock.now().replace(tzinfo=None))

        # Messages hide and age by the cloud's own time, and their receivers are told of each.
        patch(moto.sqs.models, "unix_time_millis", lambda: clock.now().timestamp() * 1000)
        send_message = moto.sqs.models.SQSBackend.send_message

        def send(backend: Any, queue_name: str, *arguments: Any, **named: Any) -> Any:
            message = send_message(backend, queue_name, *arguments, **named)
            on_message(queue_name)
            return message

        patch(moto.sqs.models.SQSBackend, "send_message", send)

        send_event = moto.s3.notifications.send_event

        def notify(account_id: str, event_name: Any, bucket: Any, key: Any) -> None:
            if "ObjectCreated" not in str(getattr(event_name, "value", event_name)):
                send_event(account_id, event_name, bucket, key)
                return
            on_object_created(bucket.name, key.name)

        patch(moto.s3.notifications, "send_event", notify)
        yield


def _response_method(service: str, operation: str, call: Operation) -> Callable[[Any], Any]:
    """A method for one of moto's response classes: request checked, answer checked, errors by code."""

    def method(self: Any) -> ActionResult:
        request = json.loads(self.body or "{}")
        return ActionResult(_run(service, operation, call, request))

    method.__name__ = _snake(operation)
    return method


def _run(service: str, operation: str, call: Operation, request: dict[str, Any]) -> dict[str, Any]:
    problems = request_problems(service, operation, request)
    if problems:
        raise _moto_error(AwsError("ValidationException", f"{len(problems)} validation errors: {'; '.join(problems)}"))
    try:
        return check_answer(service, operation, call(request))
    except AwsError as err:
        raise _moto_error(err) from err


def _moto_error(err: AwsError) -> ServiceException:
    """moto finds an error's service by the module of its class, so it must be one of SageMaker's own."""
    return SagemakerClientError(err.code, err.message)


def _tag_method(operation: str, tags_of: TagsOf, otherwise: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Tags of what we own; moto keeps those of everything else."""

    def method(self: Any) -> Any:
        request = json.loads(self.body or "{}")
        try:
            tags = tags_of(request["ResourceArn"])
        except AwsError as err:
            raise _moto_error(err) from err
        if tags is None:
            return otherwise(self)
        answer: dict[str, Any] = {}
        if operation == "AddTags":
            tags |= {tag["Key"]: tag["Value"] for tag in request["Tags"]}
        elif operation == "DeleteTags":
            for key in request["TagKeys"]:
                tags.pop(key, None)
        if operation != "DeleteTags":
            answer = {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
        return ActionResult(check_answer("sagemaker", operation, answer))

    method.__name__ = _snake(operation)
    return method


# ---- behind HTTP -------------------------------------------------------------------------------------------------


class QuietHandler(WSGIRequestHandler):
    """Keeps connections open, and the console clean."""

    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        """Say nothing."""


class LoopbackServer:
    """Something answered over HTTP on a loopback port, in a thread of its own."""

    def __init__(
        self, answer: Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]], *, name: str, port: int
    ) -> None:
        self._server: BaseWSGIServer = make_server(
            "127.0.0.1", port, answer, threaded=True, request_handler=QuietHandler
        )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name=name, daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._thread.join(timeout=5)
        self._server.server_close()


class HttpServer(LoopbackServer):
    """All AWS services on one loopback port: durable Lambda by us, the rest by moto."""

    def __init__(self, *, wire: Wire, lambdas: LambdaApi, port: int = 0) -> None:
        self._wire = wire
        self._lambdas = lambdas
        self._moto = DomainDispatcherApplication(create_backend_app)
        super().__init__(self._answer, name="cloud-http", port=port)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        service = _service_of(environ)
        if service == "lambda":
            length = int(environ.get("CONTENT_LENGTH") or 0)
            body = environ["wsgi.input"].read(length) if length else b""
            headers = {k[5:].replace("_", "-"): v for k, v in environ.items() if k.startswith("HTTP_")}
            url = environ.get("REQUEST_URI") or environ["PATH_INFO"]
            answer = self._lambdas.handle(environ["REQUEST_METHOD"], url, headers, body)
            if answer is not None:
                status, out, content = answer
                out = {**out, "Content-Length": str(len(content))}
                start_response(f"{status} -", list(out.items()))
                return [content]
        if long_poll.is_long_poll(environ):
            return long_poll.answer(environ, start_response, moto=self._moto, lock=self._wire.lock(service))
        with self._wire.lock(service):
            return list(self._moto(environ, start_response))


def _service_of(environ: Mapping[str, Any]) -> str:
    """The service a signed request is for, from its credential scope."""
    match = re.search(r"Credential=[^/]+/\d+/[^/]+/([^/]+)/aws4_request", environ.get("HTTP_AUTHORIZATION", ""))
    return match.group(1) if match else "unsigned"
