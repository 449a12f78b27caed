"""Deploys the app on the embedded cloud: triggers become rules and schedules, routes an HTTP server on loopback.

Triggers and routes are read from the Chalice app itself, as `chalice package` reads them. Only what the merge template
adds is repeated here: which rules belong to the custom bus, and which function is durable.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from chalice.app import Chalice, CloudWatchEventConfig, ScheduledEventConfig, SQSEventConfig
from chalice.config import Config
from chalice.local import LocalGateway, LocalGatewayException

from localcloud.aws.events import DEFAULT_BUS, Rule, Schedule
from localcloud.aws.moto_server import LoopbackServer
from localcloud.aws.queues import QueueSource
from localcloud.aws.roles import acting_as
from localcloud.aws.sizes import GATEWAY_BYTES, SYNCHRONOUS_BYTES
from localcloud.engine.durable import Handler

# Events of these sources come over the custom bus. Source: the merge template, infra/.
_CUSTOM_SOURCES = ("rekindle.",)
_OWN_SOURCE = "rekindle"
MAX_LENGTH_DIGITS = 8  # of a request's Content-Length
_UNITS = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What a stack of this app has in an account."""

    handlers: dict[str, Handler]
    rules: tuple[Rule, ...]
    schedules: tuple[Schedule, ...]
    durable: dict[str, str]
    queues: tuple[QueueSource, ...] = ()


def deployment_of(
    app: Chalice, *, bus: str, durable: Iterable[str] = ("recover",), alias: str = "live", stack: str = "rekindle"
) -> Deployment:
    """Functions under their own name and as `<stack>-<name>`, the rules and the schedules of a Chalice app."""
    rules, schedules, queues = [], [], []
    for source in app.event_sources:
        if isinstance(source, CloudWatchEventConfig):
            names = source.event_pattern.get("source", [])
            is_custom = any(name == _OWN_SOURCE or str(name).startswith(_CUSTOM_SOURCES) for name in names)
            where = bus if is_custom else DEFAULT_BUS
            rules.append(Rule(function=source.name, bus=where, pattern=source.event_pattern))
        elif isinstance(source, ScheduledEventConfig):
            schedules.append(Schedule(function=source.name, every=_rate(source.schedule_expression)))
        elif isinstance(source, SQSEventConfig):
            named = (source.queue_arn or source.queue or "").rpartition(":")[2]
            queues.append(QueueSource(function=source.name, queue=f"{stack}-{named}", batch_size=source.batch_size))
    plain = {name: acting_as(name, handler) for name, handler in app.handler_map.items()}
    durable_names = [name for name in durable if name in plain]
    return Deployment(
        handlers=plain | {f"{stack}-{name}": handler for name, handler in plain.items()},
        rules=tuple(rules),
        schedules=tuple(schedules),
        queues=tuple(queues),
        durable={name: alias for one in durable_names for name in (one, f"{stack}-{one}")},
    )


def _rate(expression: Any) -> timedelta:
    text = expression if isinstance(expression, str) else expression.to_string()
    match = re.fullmatch(r"rate\((\d+) (minute|hour|day)s?\)", text)
    if match is None:
        raise ValueError(f"the embedded cloud knows rates only, not {text!r}")
    return int(match[1]) * _UNITS[match[2]]


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
