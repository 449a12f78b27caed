"""The quarantine queue: events that could not be read wait here for a person, or for a fixed parser."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from chalicelib.aws.errors import call
from chalicelib.aws.sqs.waiting import SqsWaiting

_HIDDEN_S: Final = 300  # long enough to redrive one page; then it comes back
# Below the 256 KiB that older queues take (1 MiB since August 2025), with room for SQS's own accounting.
MAX_BODY_BYTES: Final = 250_000
_MAX_TEXT_CHARS: Final = 1000


class SqsQuarantine:
    """ports.Quarantine; `client` is a boto3 SQS client, `url` a standard queue without a redrive policy."""

    def __init__(self, client: Any, *, url: str) -> None:
        self._client = client
        self._url = url
        self._waiting = SqsWaiting(client, url=url, hidden_s=_HIDDEN_S)

    def put(self, *, raw: str, function: str, error: str, field: str, at: datetime) -> None:
        """See ports.Quarantine. An event too large for a message is compressed, and cut only if that is not enough."""
        body = {
            "function": function,
            "error": error[:_MAX_TEXT_CHARS],
            "field": field[:_MAX_TEXT_CHARS],
            "at": at.isoformat(),
        }
        call(self._client.send_message, QueueUrl=self._url, MessageBody=_fitting(body, raw))

    def peek(self, *, limit: int) -> tuple[Mapping[str, Any], ...]:
        return tuple(_event(message) for message in self._waiting.peek(limit=limit))

    def take(self, *, limit: int) -> Iterator[tuple[Mapping[str, Any], str]]:
        for message in self._waiting.take(limit=limit):
            yield _event(message), message["ReceiptHandle"]

    def drop(self, receipt: str) -> None:
        """See ports.Quarantine. Idempotent."""
        self._waiting.drop(receipt)


def _fitting(body: dict[str, Any], raw: str) -> str:
    plain = json.dumps({**body, "raw": raw})
    if len(plain.encode()) <= MAX_BODY_BYTES:
        return plain
    packed = base64.b64encode(zlib.compress(raw.encode(), 9)).decode()
    if len(packed) <= MAX_BODY_BYTES - 10_000:
        return json.dumps({**body, "raw_zlib": packed})
    cut = raw.encode()[:50_000].decode(errors="ignore")
    return json.dumps({**body, "raw": cut, "cut_from_bytes": len(raw.encode())})


def _event(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The event as it was put, with the message's id. A body that is not ours is an event whose raw text it is."""
    body = _body(message["Body"])
    if body is None:
        body = {"raw": message["Body"], "function": "", "error": "not a quarantined event", "field": "", "at": ""}
    return {"id": message["MessageId"], **body}


def _body(text: str) -> dict[str, Any] | None:
    try:
        body = json.loads(text)
        if isinstance(body, dict) and "raw_zlib" in body:
            body["raw"] = zlib.decompress(base64.b64decode(body.pop("raw_zlib"))).decode()
    except (ValueError, TypeError, zlib.error):
        return None
    return body if isinstance(body, dict) and {"function", "error", "raw"} <= body.keys() else None
