"""What every way out to people has in common: the Channel, what its errors mean, and how a notice travels.

A notice goes over the bus to `notice_event`, which lays one message per channel into the queue `deliveries`; `deliver`
hands each to its Channel (chalicelib/channels/delivery). Delivery is at least once: a double carries the same token.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from chalicelib.domain.model.errors import DependencyUnavailable, MalformedEvent, Throttled
from chalicelib.domain.model.urgency import Severity
from chalicelib.ports.notices import Address, Notice, NoticeKind


class Channel(Protocol):
    """One way to tell people."""

    def send(self, notice: Notice, *, attempt: int) -> None:
        """Hand the notice over, or raise. `attempt` counts from 1; from 2 on, the notice may have arrived before.

        Raises:
            SlowDown: the receiver wants fewer messages; the whole channel rests for so long.
            RetryLater: another delivery is at the same message, or it is too soon; the channel does not rest for that.
            DependencyUnavailable: no answer, or a failure of the receiver's; tried again later.
            Permanent: this notice will never be taken: it goes to the dead letters, where a person finds it.
        """
        ...


class SlowDown(Throttled):
    """The receiver asked for a pause. `retry_after_s` is in seconds, at least 1."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = max(1.0, retry_after_s)


class RetryLater(DependencyUnavailable):
    """This notice must wait `retry_after_s` seconds; nothing is wrong with the channel, and the others need not."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = max(1.0, retry_after_s)


class Secrets(Protocol):
    """Secrets by name."""

    def secret(self, name: str) -> str:
        """The secret's value. Never log it, never put it into an error.

        Raises:
            UnknownEntity: there is none of this name.
        """
        ...


def read_notice(detail: Mapping[str, Any]) -> Notice:
    """The Notice in an event's detail: the inverse of channels.bus.detail_of.

    Raises:
        MalformedEvent: names the field.
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
            paste=tuple((str(label), str(what)) for label, what in data.get("paste") or ()),
            sequence=_text(detail, "sequence"),
            address=_address(data.get("address")),
        )
    except (ValueError, TypeError) as err:
        raise MalformedEvent("detail", f"is not a notice: {err}"[:200]) from err


def _address(body: Any) -> Address | None:
    """None in a notice about no Incident, and in one of a version that gave none."""
    if not isinstance(body, Mapping):
        return None
    until = _text(body, "until")
    return Address(
        url=_text(body, "url"),
        until=datetime.fromisoformat(until) if until else None,
        command=_text(body, "command"),
    )


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise MalformedEvent(f"detail.{name}", f"must be a text, not {type(value).__name__}")
    return value or ""
