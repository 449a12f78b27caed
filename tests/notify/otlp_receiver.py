"""What a receiver of OTLP does with a request: OpenTelemetry's own messages, read strictly.

OTLP's JSON form is protobuf's, except that ids are hex (OTLP specification, "JSON Protobuf encoding"); protobuf's own
reader wants them in base64, and refuses every field that trace.proto does not have.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_IDS = {"traceId": 16, "spanId": 8, "parentSpanId": 8}


def received(body: bytes | str) -> list[Any]:
    """The request's spans. Raises ValueError or json_format.ParseError for what a receiver answers with 400."""
    request = json_format.Parse(json.dumps(_with_bytes(json.loads(body))), ExportTraceServiceRequest())
    ExportTraceServiceRequest.FromString(request.SerializeToString())
    return [span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]


def resource(body: bytes | str) -> dict[str, str]:
    """The attributes of the service that sent it."""
    request = json_format.Parse(json.dumps(_with_bytes(json.loads(body))), ExportTraceServiceRequest())
    return {attribute.key: attribute.value.string_value for attribute in request.resource_spans[0].resource.attributes}


def attributes(of: Any) -> dict[str, Any]:
    """Of a span or an event, as Python's own values."""
    return {attribute.key: getattr(attribute.value, attribute.value.WhichOneof("value")) for attribute in of.attributes}


def _with_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_bytes(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {name: _id(name, one) if name in _IDS else _with_bytes(one) for name, one in value.items()}


def _id(name: str, text: str) -> str:
    found = bytes.fromhex(text)
    if len(found) != _IDS[name] or not any(found) or text != text.lower():
        raise ValueError(f"{name} {text!r} is no id")
    return base64.b64encode(found).decode()
