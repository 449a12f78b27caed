"""Notices that were given up: seen by people, and laid back into the queue of deliveries, to be sent again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from chalicelib.aws.errors import call
from chalicelib.aws.sqs.waiting import SqsWaiting

_HIDDEN_S: Final = 60  # long enough to move one page; what was not moved comes back
# SQS's own redrive (maxReceiveCount) leaves no attributes of ours on a message.
_NO_REASON: Final = "the function `deliver` could not settle it; see its log"


class SqsUndelivered:
    """`client` is a boto3 SQS client, `dead_url` the queue of what was given up, `url` the one of deliveries."""

    def __init__(self, client: Any, *, url: str, dead_url: str) -> None:
        self._client = client
        self._url = url
        self._waiting = SqsWaiting(client, url=dead_url, hidden_s=_HIDDEN_S)

    def peek(self, *, limit: int) -> tuple[Mapping[str, Any], ...]:
        """Up to `limit` of them, left where they are."""
        return tuple(_reported(message) for message in self._waiting.peek(limit=limit))

    def send_again(self, *, limit: int) -> dict[str, int]:
        """Lay up to `limit` of them back into the queue of deliveries.

        A message is taken out only after it was laid in: a crash between the two makes a double, and the log of
        deliveries knows it by its notice and channel. A message that cannot be read stays where it is.
        """
        moved = unreadable = 0
        for message in self._waiting.take(limit=limit):
            if _notice(message) is None:
                unreadable += 1
                continue
            call(self._client.send_message, QueueUrl=self._url, MessageBody=message["Body"])
            self._waiting.drop(message["ReceiptHandle"])
            moved += 1
        return {"sent_again": moved, "unreadable": unreadable}


def _reported(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """What people want to know of one: what it says, to whom it did not go, why, and since when."""
    given = message.get("MessageAttributes") or {}
    wire = _notice(message) or {}
    detail = wire.get("detail") or {}
    data = detail.get("data") or {}
    facts = {name: _text(data.get(name)) for name in ("severity", "kind", "title", "incident_id", "job_id")}
    return {
        "id": message["MessageId"],
        "channel": _text(wire.get("channel")),
        "why": _text(given.get("why", {}).get("StringValue")) or _NO_REASON,
        "given_up_at": _moment(given.get("at", {}).get("StringValue")),
        "notice_id": _text(detail.get("id")),
        "written_at": _moment(detail.get("time")),
        **facts,
    }


def _notice(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """The message as the fan-out laid it in; None where it is nothing of ours."""
    try:
        wire = json.loads(message["Body"])
    except (ValueError, RecursionError):
        return None
    if not isinstance(wire, dict) or not isinstance(wire.get("channel"), str):
        return None
    detail = wire.get("detail")
    return wire if isinstance(detail, dict) and isinstance(detail.get("data"), dict) else None


def _moment(value: object) -> str | None:
    try:
        return datetime.fromisoformat(_text(value)).isoformat()
    except ValueError:
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
