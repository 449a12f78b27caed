"""Rekindle itself on the embedded cloud: the real app, its real composition root, the cloud's clients and clock."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

from chalicelib import bootstrap
from chalicelib.config import PRODUCTION_LOG_LEVEL
from localcloud.aws.wire import SERVICE
from localcloud.cloud import Cloud

# Made at once, before several threads ask for the same part.
PREPARED = ("recover", "sweep", "app", "training_job_event", "notice_event", "deliver")


class CloudSession:
    """What bootstrap asks of a boto3 Session, answered with the cloud's own clients."""

    def __init__(self, cloud: Cloud, caller: str = SERVICE) -> None:
        self._cloud = cloud
        self._caller = caller

    def client(self, name: str, config: object = None) -> Any:  # noqa: ARG002  the cloud sets its own timeouts
        return self._cloud.client(name, caller=self._caller)


def deploy_rekindle(
    cloud: Cloud, *, policies: Mapping[str, Mapping[str, Any]] | None = None, log_level: str = PRODUCTION_LOG_LEVEL
) -> bootstrap.Service:
    """Deploy the app to `cloud` and store `policies` (name -> document). Returns the service that its triggers use."""
    environ = {**cloud.environ(), "REKINDLE_LOG_LEVEL": log_level}
    service = bootstrap.build(environ, clock=cloud.clock, session=CloudSession(cloud), monotonic=cloud.monotonic_s)
    for function in PREPARED:
        service.prepare(function)
    bootstrap.install(service)
    # The logger is the process's: it keeps the level and the stream of the service that was deployed first.
    service.observability.logger.setLevel(log_level)
    for handler in service.observability.logger.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.stream = sys.stdout
    from app import app

    cloud.deploy_app(app)
    for name, document in (policies or {}).items():
        cloud.client("ssm").put_parameter(
            Name=f"{service.settings.policy_prefix}/{name}", Value=json.dumps(document), Type="String", Overwrite=True
        )
    return service
