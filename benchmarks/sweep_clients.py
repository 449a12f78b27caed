"""Real boto3 clients over the sweep's in-memory fleet, to measure the CPU time that botocore itself takes.

Requests are built, signed, answered in AWS's own wire formats (by moto's serialisers) and parsed. The cost of sockets
and TLS is not measured, because nothing is sent.
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
    """A session of boto3 clients. `answering_s`: CPU seconds of the fake answers, which benchmarks subtract."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._session = session_of("us-west-2")
        self._lock = threading.Lock()
        self.answering_s = 0.0

    def client(self, name: str, config: Config | None = None) -> Any:
        """A client of the service `name` whose every request the in-memory fleet answers."""
        client = self._session.client(
            name,
            config=config,
            aws_access_key_id="none",
            aws_secret_access_key="none",  # noqa: S106  nothing is sent
        )
        model = get_service_model(name)
        protocol = client.meta.service_model.resolved_protocol
        call = threading.local()  # the parameters of the call that this thread is making

        def remember(params: dict[str, Any], **_: Any) -> None:
            call.params = params

        def answer(request: AWSPreparedRequest, event_name: str, **_: Any) -> AWSResponse:
            began = time.thread_time()
            operation = model.operation_model(event_name.rpartition(".")[2])
            with self._lock:
                answer_fields = dict(self._wire.answer(name, operation.name, call.params))
            if "Body" in answer_fields:
                headers = {"ETag": answer_fields["ETag"]}
                reply: tuple[int, dict[str, str], bytes] = (200, headers, answer_fields["Body"].read())
            else:
                reply = _serialised(model, operation.name, protocol, answer_fields)
            with self._lock:
                self.answering_s += time.thread_time() - began
            return response(request.url, *reply)

        client.meta.events.register_first("provide-client-params", remember)
        client.meta.events.register("before-send", answer)
        return client


def _serialised(
    model: ServiceModel, operation: str, protocol: str, fields: dict[str, Any]
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer in the service's wire format."""
    response = get_serializer_class(model.service_name, protocol)(model.operation_model(operation)).serialize(fields)
    body = response["body"]
    return response["status_code"], dict(response["headers"]), body if isinstance(body, bytes) else body.encode()
