"""Deploys the app on the embedded cloud: its functions as the packaged template has them, routes as an HTTP server on
loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from chalice.app import Chalice
from chalice.config import Config
from chalice.local import LocalGateway, LocalGatewayException

from localcloud.aws.events import Rule, Schedule
from localcloud.aws.queues import QueueSource
from localcloud.aws.roles import acting_as
from localcloud.aws.sizes import GATEWAY_BYTES, SYNCHRONOUS_BYTES
from localcloud.engine.durable import Handler
from localcloud.engine.functions import Settings
from localcloud.moto_server import LoopbackServer

API_ENTRY = "app"  # Chalice's handler of the REST API is the app itself
MAX_LENGTH_DIGITS = 8  # of a request's Content-Length


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What a stack of this app has in an account: handlers and settings under both names of a function."""

    handlers: dict[str, Handler]
    settings: dict[str, Settings]
    rules: tuple[Rule, ...]
    schedules: tuple[Schedule, ...]
    durable: dict[str, str]
    queues: tuple[QueueSource, ...]


def deployment_of(app: Chalice, functions: Iterable[Settings], *, stack: str) -> Deployment:
    """The functions of the packaged template with the handlers of an app, under their own name and `<stack>-<name>`.

    Raises:
        KeyError: the template names a handler that the app has not.
    """
    named = {name: function for function in functions for name in (own_name(function, stack), function.name)}
    whole: dict[str, Handler] = {**app.handler_map, API_ENTRY: app}
    handlers = {name: acting_as(own_name(function, stack), whole[function.entry]) for name, function in named.items()}
    each = [function for name, function in named.items() if name == function.name]
    return Deployment(
        handlers=handlers,
        settings=named,
        rules=tuple(rule for function in each for rule in function.rules),
        schedules=tuple(schedule for function in each for schedule in function.schedules),
        queues=tuple(queue for function in each for queue in function.queues),
        durable={name: function.alias for name, function in named.items() if function.alias is not None},
    )


def own_name(settings: Settings, stack: str) -> str:
    """A function's name in app.py, by which its role is known as well."""
    return settings.name.removeprefix(f"{stack}-")


class ApiServer(LoopbackServer):
    """The app's REST API on a loopback port. IAM signatures are not checked here: loopback is the border."""

    def __init__(self, app: Chalice, *, port: int = 0) -> None:
        self._gateway = LocalGateway(app, Config())
        # Chalice keeps the request on the app object, one at a time; so do we.
        self._one_at_a_time = threading.Lock()
        super().__init__(self._answer, name="cloud-api", port=port)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        given = environ.get("CONTENT_LENGTH") or "0"
        if not (given.isascii() and given.isdigit() and len(given) <= MAX_LENGTH_DIGITS):
            start_response("400 Bad Request", [("Content-Length", "0")])
            return [b""]
        length = int(given)
        if length > GATEWAY_BYTES:
            start_response("413 Request Entity Too Large", [("Content-Length", "0")])
            return [b""]
        body = environ["wsgi.input"].read(length) if length else b""
        headers = {k[5:].replace("_", "-").lower(): v for k, v in environ.items() if k.startswith("HTTP_")}
        if environ.get("CONTENT_TYPE"):
            headers["content-type"] = environ["CONTENT_TYPE"]
        query = f"?{environ['QUERY_STRING']}" if environ.get("QUERY_STRING") else ""
        path = environ.get("REQUEST_URI", environ["PATH_INFO"] + query)
        try:
            with self._one_at_a_time:
                answer = acting_as("api_handler", self._gateway.handle_request)(
                    environ["REQUEST_METHOD"], path, headers, body
                )
            status, out, content = answer["statusCode"], dict(answer.get("headers") or {}), answer.get("body", "")
        except LocalGatewayException as err:
            status, out, content = err.CODE, dict(err.headers), err.body or b""
        data = content if isinstance(content, bytes) else str(content).encode()
        if len(data) > SYNCHRONOUS_BYTES:  # Lambda drops the answer, and the gateway has none to give
            status, out, data = 502, {"content-type": "application/json"}, b'{"message": "Internal server error"}'
        start_response(f"{status} -", [*out.items(), ("Content-Length", str(len(data)))])
        return [data]
