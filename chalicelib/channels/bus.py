"""Tells people through the custom event bus, from where any rule may carry a notice on, and through an SNS topic.

Losing a message must never fail a recovery, and a wrong permission must not either: whatever goes wrong is Retryable.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from chalicelib.aws.errors import call, meaning_of
from chalicelib.channels.address import lasting_links
from chalicelib.domain.model.errors import Permanent, RecoveryError, Retryable
from chalicelib.ports.notices import Address, Notice, NoticeKind

SOURCE: Final = "rekindle"
DETAIL_TYPE: Final = "Rekindle Notice"
MAX_TEXT_CHARS: Final = 20_000  # far below an event's 256 KB, and no person reads a longer text
_MAX_SUBJECT_CHARS: Final = 99  # Source: SNS Publish, Subject: ASCII, no line breaks, less than 100 characters


class BusAnnouncer:
    """ports.Announcer; `events` is a boto3 EventBridge client, `sns` one of SNS, needed only with `topic`."""

    def __init__(
        self, events: Any, *, bus: str, sns: Any | None = None, topic: str | None = None, console_url: str = ""
    ) -> None:
        self._events = events
        self._console_url = console_url
        self._bus = bus
        self._sns = sns
        self._topic = topic

    def announce(self, notice: Notice) -> None:
        """See ports.Announcer. One channel's failure does not keep the notice from the other.

        A repetition says the same again, with the same id: neither channel removes duplicates.
        """
        notice = replace(notice, address=lasting_links(notice.incident_id, self._console_url))
        channels: list[Callable[[Notice], None]] = [self._put]
        if self._sns is not None and self._topic and notice.kind is not NoticeKind.CHANGE:
            channels.append(self._publish)
        failures = []
        for tell in channels:
            try:
                tell(notice)
            except RecoveryError as err:
                failures.append(err)
        if failures:
            raise Retryable("; ".join(str(err) for err in failures)[:800]) from failures[0]

    def _put(self, notice: Notice) -> None:
        entry = {
            "EventBusName": self._bus,
            "Source": SOURCE,
            "DetailType": DETAIL_TYPE,
            "Time": notice.at,
            "Detail": json.dumps(detail_of(notice)),
        }
        answer = call(self._events.put_events, Entries=[entry])
        for failed in answer.get("Entries", ()):  # PutEvents answers 200 for entries that failed
            if failed.get("ErrorCode"):
                raise meaning_of(failed["ErrorCode"], f"put_events: {failed.get('ErrorMessage', '')}")

    def _publish(self, notice: Notice) -> None:
        if self._sns is None:
            raise Permanent("a topic needs an SNS client")
        subject = f"[{notice.severity}] {notice.title}".encode("ascii", "replace").decode()
        call(
            self._sns.publish,
            TopicArn=self._topic,
            Subject=" ".join(subject.split())[:_MAX_SUBJECT_CHARS],
            Message=notice.text[:MAX_TEXT_CHARS] + "\n\n" + "\n".join(_facts(notice)),
            MessageAttributes={"severity": {"DataType": "String", "StringValue": notice.severity.value}},
        )


def detail_of(notice: Notice) -> dict[str, Any]:
    """The event's detail, laid out as a CloudEvent (1.0), so that receivers need not know EventBridge."""
    return {
        "specversion": "1.0",
        "id": notice.token,
        "source": SOURCE,
        "type": "rekindle.notice",
        "subject": notice.job_id or notice.incident_id,
        "time": notice.at.isoformat(),
        # Source: cloudevents/spec, extensions/sequence.md: a text that is compared as text; here within one Incident.
        **({"sequence": notice.sequence} if notice.sequence else {}),
        "datacontenttype": "application/json",
        "data": {
            "severity": notice.severity.value,
            "title": notice.title,
            "text": notice.text[:MAX_TEXT_CHARS],
            "incident_id": notice.incident_id,
            "job_id": notice.job_id,
            "kind": notice.kind.value,
            "approval_id": notice.approval_id,
            "fault": notice.fault,
            "phase": notice.phase,
            "cluster": notice.cluster,
            "node": notice.node,
            "paste": [list(item) for item in notice.paste],
            "address": _address(notice.address),
        },
    }


def _address(address: Address | None) -> dict[str, str | None] | None:
    if address is None:
        return None
    until = address.until.isoformat() if address.until else None
    return {"url": address.url or None, "until": until, "command": address.command}


def _facts(notice: Notice) -> list[str]:
    facts = [f"at {notice.at.isoformat()}", f"id {notice.token}"]
    if notice.address is not None:  # what stays: a mail is read whenever it is
        facts.insert(0, f"page {notice.address.url or notice.address.command}")
    if notice.incident_id:
        facts.insert(0, f"incident {notice.incident_id}")
    return [f"job {notice.job_id}", *facts] if notice.job_id else facts
