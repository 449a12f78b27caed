"""The quarantine queue: events that could not be read wait here for a person, or for a fixed parser."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from chalicelib.adapters.errors import AwsRefusal, call

_PAGE: Final = 10  # Source: SQS ReceiveMessage, MaxNumberOfMessages
_HIDDEN_S: Final = 300  # long enough to redrive one page; then it comes back
_EMPTY_RECEIVES: Final = 2  # short polling asks some of SQS's servers only
# Below the 256 KiB that older queues take (1 MiB since August 2025), with room for SQS's own accounting.
MAX_BODY_BYTES: Final = 250_000
_MAX_TEXT_CHARS: Final = 1000


class SqsQuarantine:
    """ports.Quarantine; `client` is a boto3 SQS client, `url` a standard queue without a redrive policy."""

    def __init__(self, client: Any, *, url: str) -> None:
        self._client = client
        self._url = url

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
        """See ports.Quarantine."""
        seen: dict[str, Mapping[str, Any]] = {}
        empty = 0
        while len(seen) < limit and empty < _EMPTY_RECEIVES:
            before = len(seen)
            for message in self._receive(limit=min(_PAGE, limit - before), hidden_s=0):
                seen.setdefault(message["MessageId"], _event(message))
            empty += len(seen) == before
        return tuple(seen.values())

    def take(self, *, limit: int) -> Iterator[tuple[Mapping[str, Any], str]]:
        """See ports.Quarantine."""
        left, empty = limit, 0
        while left > 0 and empty < _EMPTY_RECEIVES:
            messages = self._receive(limit=min(_PAGE, left), hidden_s=_HIDDEN_S)
            empty += not messages
            left -= len(messages)
            for message in messages:
                yield _event(message), message["ReceiptHandle"]

    def drop(self, receipt: str) -> None:
        """See ports.Quarantine. Idempotent."""
        try:
            call(
                self._client.delete_message,
                expect=("ReceiptHandleIsInvalid",),
                QueueUrl=self._url,
                ReceiptHandle=receipt,
            )
        except AwsRefusal:
            return

    def _receive(self, *, limit: int, hidden_s: int) -> list[dict[str, Any]]:
        answer = call(
            self._client.receive_message,
            QueueUrl=self._url,
            MaxNumberOfMessages=limit,
            VisibilityTimeout=hidden_s,
            WaitTimeSeconds=0,
        )
        return list(answer.get("Messages", ()))


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
