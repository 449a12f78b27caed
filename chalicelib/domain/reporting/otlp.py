"""A trace in OTLP's JSON form, as `POST /v1/traces` takes it and as a file for anybody who has no endpoint. Pure.

Source: opentelemetry-proto 1.x, trace/v1/trace.proto, and the OTLP specification, "JSON Protobuf encoding": ids are
hex, 64-bit integers are texts, enums are numbers, names are in lowerCamelCase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from chalicelib.domain.reporting.trace import Span, SpanEvent, SpanStatus, Value

SCOPE: Final = "rekindle.recovery"
_INTERNAL: Final = 1  # SPAN_KIND_INTERNAL
_STATUS: Final[Mapping[SpanStatus, int]] = {SpanStatus.UNSET: 0, SpanStatus.OK: 1, SpanStatus.ERROR: 2}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def otlp_of(spans: Sequence[Span], *, resource: Mapping[str, str]) -> dict[str, Any]:
    """ExportTraceServiceRequest of these spans. `resource`: the attributes of the service that they are of."""
    named: dict[str, Value] = {name: value for name, value in sorted(resource.items()) if value}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(named)},
                "scopeSpans": [{"scope": {"name": SCOPE}, "spans": [_span(span) for span in spans]}],
            }
        ]
    }


def _span(span: Span) -> dict[str, Any]:
    wire: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": _nanoseconds(span.start),
        "endTimeUnixNano": _nanoseconds(span.end),
        "attributes": _attributes(span.attributes),
        "events": [_event(event) for event in span.events],
        "status": {"code": _STATUS[span.status]} | ({"message": span.description} if span.description else {}),
    }
    if span.parent_id:
        wire["parentSpanId"] = span.parent_id
    if span.dropped_events:
        wire["droppedEventsCount"] = span.dropped_events
    return wire


def _event(event: SpanEvent) -> dict[str, Any]:
    return {
        "timeUnixNano": _nanoseconds(event.at),
        "name": event.name,
        "attributes": _attributes(event.attributes),
    }


def _nanoseconds(at: datetime) -> str:
    return str((at - _EPOCH) // timedelta(microseconds=1) * 1000)


def _attributes(given: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in given.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, bool):  # before int, of which it is one
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, tuple):
        return {"arrayValue": {"values": [_value(member) for member in value]}}
    return {"stringValue": value}
