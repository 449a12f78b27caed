"""Real boto3 clients over the sweep's fleet in memory: what botocore itself takes of the processor.

Requests are made, signed, answered in AWS's own wire formats (moto's serialisers) and parsed. Sockets and TLS are not
part of it, because nothing is sent.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from moto.core.model import ServiceModel
from moto.core.serialize import get_serializer_class
from moto.core.utils import get_service_model

from benchmarks.sweep_wire import Wire
from chalicelib.bootstrap.clients import session_of
from localcloud.aws.wire import response


class RealClients:
    """A session whose clients are boto3's own. `spent_s`: CPU seconds of answering, which are not the service's."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._session = session_of("us-west-2")
        self._guard = threading.Lock()
        self.spent_s = 0.0

    def client(self, name: str, config: Config | None = None) -> Any:
        """A client that reaches the fleet and nothing else."""
        client = self._session.client(
            name,
            config=config,
            aws_access_key_id="none",
            aws_secret_access_key="none",  # noqa: S106  nothing is sent
        )
        model = get_service_model(name)
        protocol = client.meta.service_model.resolved_protocol
        asked = threading.local()

        def remember(params: dict[str, Any], **_: Any) -> None:
            asked.params = params

        def answer(request: AWSPreparedRequest, event_name: str, **_: Any) -> AWSResponse:
            began = time.thread_time()
            operation = model.operation_model(event_name.rpartition(".")[2])
            with self._guard:
                found = dict(self._wire.answer(name, operation.name, asked.params))
            if "Body" in found:
                made: tuple[int, dict[str, str], bytes] = (200, {"ETag": found["ETag"]}, found["Body"].read())
            else:
                made = _serialised(model, operation.name, protocol, found)
            with self._guard:
                self.spent_s += time.thread_time() - began
            return response(request.url, *made)

        client.meta.events.register_first("provide-client-params", remember)
        client.meta.events.register("before-send", answer)
        return client


def _serialised(
    model: ServiceModel, operation: str, protocol: str, found: dict[str, Any]
) -> tuple[int, dict[str, str], bytes]:
    response = get_serializer_class(model.service_name, protocol)(model.operation_model(operation)).serialize(found)
    body = response["body"]
    return response["status_code"], dict(response["headers"]), body if isinstance(body, bytes) else body.encode()
