"""What all notification channels share: the Channel port, the meaning of its errors, and reading a notice.

A notice is published on the event bus. The function `notice_event` enqueues one message per channel in the queue
`deliveries`; the function `deliver` passes each to its Channel (chalicelib/channels/delivery). Delivery is at least
once: a duplicate has the same token.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from chalicelib.domain.model.errors import DependencyUnavailable, MalformedEvent, Throttled
from chalicelib.domain.model.urgency import Severity
from chalicelib.ports.notices import Address, Notice, NoticeKind


class Channel(Protocol):
    """One way to notify people, such as Slack or a webhook."""

    def send(self, notice: Notice, *, attempt: int) -> None:
        """Deliver the notice, or raise. `attempt` counts from 1; from 2 on, the notice may have been delivered before.

        Raises:
            SlowDown: the receiver limits the rate; the whole channel pauses for `retry_after_s`.
            RetryLater: this notice is being delivered already, or it is too soon; the channel does not pause.
            DependencyUnavailable: the receiver did not answer, or failed; delivery is tried again later.
            Permanent: the receiver will never accept this notice; it goes to the dead-letter queue.
        """
        ...


class SlowDown(Throttled):
    """The receiver asked for a pause. `retry_after_s` is in seconds, at least 1."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = max(1.0, retry_after_s)


class RetryLater(DependencyUnavailable):
    """This notice must wait `retry_after_s` seconds; the channel works, and other notices are sent."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = max(1.0, retry_after_s)


class Secrets(Protocol):
    """Port: reads secrets by name."""

    def secret(self, name: str) -> str:
        """The secret's value. Never log it, never put it into an error.

        Raises:
            UnknownEntity: no secret has this name.
        """
        ...


def read_notice(detail: Mapping[str, Any]) -> Notice:
    """Read the Notice from an event's detail: the inverse of channels.bus.detail_of.

    Raises:
        MalformedEvent: the detail is not a notice; names the field where one is wrong.
    """
    data = detail.get("data")
    if not isinstance(data, Mapping):
        raise MalformedEvent("detail.data", "missing")
    try:
        return Notice(
            token=_text(detail, "id"),
            severity=Severity(_text(data, "severity")),
            title=_text(data, "title"),
            text=_text(data, "text"),
            incident_id=_text(data, "incident_id"),
            job_id=_text(data, "job_id") or None,
            at=datetime.fromisoformat(_text(detail, "time")),
            kind=NoticeKind(_text(data, "kind") or NoticeKind.NEWS.value),
            approval_id=_text(data, "approval_id"),
            fault=_text(data, "fault"),
            phase=_text(data, "phase"),
            cluster=_text(data, "cluster"),
            node=_text(data, "node"),
            paste=tuple((str(label), str(command)) for label, command in data.get("paste") or ()),
            sequence=_text(detail, "sequence"),
            address=_address(data.get("address")),
        )
    except (ValueError, TypeError) as err:
        raise MalformedEvent("detail", f"is not a notice: {err}"[:200]) from err


def _address(body: Any) -> Address | None:
    """None if the notice is about no Incident, or was written by a version without addresses."""
    if not isinstance(body, Mapping):
        return None
    until = _text(body, "until")
    return Address(
        url=_text(body, "url"),
        until=datetime.fromisoformat(until) if until else None,
        command=_text(body, "command"),
    )


def _text(body: Mapping[str, Any], name: str) -> str:
    """A text field; empty where it is missing or null."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise MalformedEvent(f"detail.{name}", f"must be a text, not {type(value).__name__}")
    return value or ""
