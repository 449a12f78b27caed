"""How large a call may be: AWS refuses larger ones, moto takes most of them.

One row per operation that the service sends texts of other people's by, with the documentation that the figure is from.
Where AWS has raised a quota for some Regions or accounts, the older and smaller figure stands here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

from botocore.awsrequest import AWSPreparedRequest

KIB: Final = 1024
EVENT_BYTES: Final = 256 * KIB
SYNCHRONOUS_BYTES: Final = 6 * KIB * KIB
GATEWAY_BYTES: Final = 10 * KIB * KIB  # Source: API Gateway guide, quotas: payload size, not adjustable


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is measured of a request, how much of it is taken, and how more is refused."""

    measure: Callable[[AWSPreparedRequest], int]
    code: str
    source: str
    limit: Callable[[AWSPreparedRequest], int] = lambda _: EVENT_BYTES
    status: int = 400


@dataclass(frozen=True, slots=True)
class TooLarge:
    """A refused call."""

    status: int
    code: str
    text: str


def too_large(key: str, request: AWSPreparedRequest) -> TooLarge | None:
    """The refusal of a call of `key` (`eventbridge.PutEvents`), or None where it is small enough or has no limit."""
    if key == "ssm.PutParameter" and "{{" in str(_document(request).get("Value", "")):
        return TooLarge(400, "ValidationException", f"{key}: a value refers to no other parameter (API reference)")
    row = SIZES.get(key)
    if row is None:
        return None
    size, limit = row.measure(request), row.limit(request)
    if size <= limit:
        return None
    return TooLarge(row.status, row.code, f"{key}: {size} bytes; at most {limit} are taken ({row.source})")


def _body(request: AWSPreparedRequest) -> bytes:
    body = request.body or b""
    return body.encode() if isinstance(body, str) else bytes(body)


def _whole(request: AWSPreparedRequest) -> int:
    return len(_body(request))


def _document(request: AWSPreparedRequest) -> Mapping[str, Any]:
    read = json.loads(_body(request) or b"{}")
    return read if isinstance(read, dict) else {}


def _bytes(text: object) -> int:
    return len(str(text or "").encode())


def _entries(request: AWSPreparedRequest) -> int:
    """As EventBridge counts: 14 bytes for a time, and the UTF-8 of all other members, over all entries."""
    return sum(
        (14 if entry.get("Time") is not None else 0)
        + sum(_bytes(entry.get(name)) for name in ("Source", "DetailType", "Detail"))
        + sum(map(_bytes, entry.get("Resources") or ()))
        for entry in _document(request).get("Entries") or ()
    )


def _message(request: AWSPreparedRequest) -> int:
    document = _document(request)
    entries = document.get("Entries") or [document]
    return sum(
        _bytes(entry.get("MessageBody"))
        + sum(
            _bytes(name) + sum(_bytes(value) for value in attribute.values())
            for name, attribute in (entry.get("MessageAttributes") or {}).items()
        )
        for entry in entries
    )


def _form_message(request: AWSPreparedRequest) -> int:
    return sum(map(_bytes, parse_qs(_body(request).decode()).get("Message", ())))


def _is_asynchronous(request: AWSPreparedRequest) -> bool:
    kind = request.headers.get("X-Amz-Invocation-Type") or ""
    return (kind.decode() if isinstance(kind, bytes) else str(kind)) == "Event"


SIZES: Final[Mapping[str, Size]] = {
    "eventbridge.PutEvents": Size(
        measure=_entries,
        code="ValidationException",
        source="EventBridge guide, calculating PutEvents event entry size",
    ),
    "sqs.SendMessage": Size(
        measure=_message,
        code="InvalidParameterValue",
        source="SQS guide, message quotas",
    ),
    "sqs.SendMessageBatch": Size(
        measure=_message,
        code="AWS.SimpleQueueService.BatchRequestTooLong",
        source="SQS guide, message quotas: all messages of a batch together",
    ),
    "ssm.PutParameter": Size(
        measure=lambda request: _bytes(_document(request).get("Value")),
        limit=lambda request: 4 * KIB if _document(request).get("Tier", "Standard") == "Standard" else 8 * KIB,
        code="ValidationException",
        source="Systems Manager API reference, PutParameter, Value",
    ),
    "sns.Publish": Size(
        measure=_form_message,
        code="InvalidParameter",
        source="SNS API reference, Publish",
    ),
    "lambda.Invoke": Size(
        measure=_whole,
        limit=lambda request: EVENT_BYTES if _is_asynchronous(request) else SYNCHRONOUS_BYTES,
        status=413,
        code="RequestTooLargeException",
        source="Lambda guide, quotas: invocation payload",
    ),
    "lambda.SendDurableExecutionCallbackSuccess": Size(
        measure=_whole,
        status=413,
        code="RequestTooLargeException",
        source="Lambda guide, quotas: durable functions, 256 KB per checkpointed payload",
    ),
}
