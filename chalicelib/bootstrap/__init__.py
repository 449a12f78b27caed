"""Composition root: settings, clients, clock -> ready services. The one place where the world enters.

Every part is made on first use and imports its own modules then, so that a function starts with what it needs: an event
handler never loads the workflow, the API never loads the parsers. On Lambda `warm_up` makes the function's parts at
init (full CPU), not in the first call. Clients come from one Session.

The parts stand by subject, each file's class above those whose parts it uses:
`adapters` < `reporting` < `recovery` < `api`, and `channels` above `reporting`.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from chalicelib.bootstrap.api import ApiParts
from chalicelib.bootstrap.channels import ChannelParts
from chalicelib.bootstrap.clients import Clients, SystemClock, session_of
from chalicelib.config import Settings

if TYPE_CHECKING:
    from chalicelib.api.operation import Operation
    from chalicelib.ports.clock import Clock

# What each function uses; the others are event handlers, which use the ingress.
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "recover": ("look", "perform", "observability"),
    "sweep": ("sweep", "observability"),
    "notice_event": ("fan_out", "observability"),
    "deliver": ("deliver", "observability"),
    "app": (
        "api",
        "orders",
        "listings",
        "answers",
        "observability",
    ),  # Chalice's own handler of the REST API: `app.app`
}
# What each function would import at its first event; on Lambda that is done at init, before a caller waits.
FIRST: Final[Mapping[str, tuple[str, ...]]] = {
    "hyperpod_event": ("chalicelib.ingest.hyperpod",),
    "training_job_event": ("chalicelib.ingest.training_job",),
    "alarm_event": ("chalicelib.ingest.alarm",),
    "health_event": ("chalicelib.ingest.health",),
    "ec2_event": ("chalicelib.ingest.ec2",),
    "monitor_event": ("chalicelib.ingest.monitor",),
    "agent_event": ("chalicelib.ingest.agent",),
    "log_batch": ("chalicelib.ingest.logs",),
    "recover": ("chalicelib.recovery.workflow", "chalicelib.aws.s3.checkpoints", "chalicelib.aws.s3.discovered"),
}


class Service(ApiParts, ChannelParts):
    """Everything app.py's triggers call."""

    def prepare(self, function: str) -> None:
        """Make what `function` uses, now."""
        for part in _PARTS.get(function, ("ingress",)):
            getattr(self, part)
        for module in FIRST.get(function, ()):
            import_module(module)


def build(
    environ: Mapping[str, str],
    *,
    clock: Clock | None = None,
    session: Any = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Service:
    """Put the service together. monotonic: seconds, by which an invocation runs out of time.

    Raises:
        BadSettings: names every missing variable at once.
    """
    settings = Settings.from_env(environ)
    from chalicelib.aws.deadline import patience_of

    clients = Clients(
        session or session_of(settings.region), patience=patience_of(_function(environ)), monotonic=monotonic
    )
    return Service(settings, clock=clock or SystemClock(), clients=clients)


def _function(environ: Mapping[str, str]) -> str:
    """Whose process this is, empty outside Lambda, which sets _HANDLER: `app.<function>`."""
    return environ.get("_HANDLER", "").rpartition(".")[2]


_installed: Service | None = None


def install(service: Service | None) -> None:
    """Use `service` in this process; None forgets it. For the embedded cloud, which brings its own clock."""
    global _installed
    _installed = service


def service() -> Service:
    """The process's service, made on first use."""
    if _installed is None:
        install(build(os.environ))
    assert _installed is not None  # noqa: S101  install() has just set it; this tells the type checker
    return _installed


def operations() -> tuple[Operation, ...]:
    """The API's operations; none in a Lambda function that is not the API's, which need not load them."""
    if _function(os.environ) not in ("", "app"):
        return ()
    from chalicelib.api.operations.routes import OPERATIONS

    return OPERATIONS


def warm_up() -> None:
    """Make this function's parts at Lambda's init phase; elsewhere (packaging, tests) nothing is read at import.

    All that is made here stays: to look through it for garbage again and again takes a tenth of the init.
    """
    if "AWS_LAMBDA_FUNCTION_NAME" not in os.environ:
        return
    gc.disable()
    service().prepare(_function(os.environ))
    gc.freeze()
    gc.enable()
