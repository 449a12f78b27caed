"""From a notice on the bus to the Incident's page, and to one message per channel in the queue `deliveries`.

The function `notice_event`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from fnmatch import fnmatchcase
from typing import Any, Final
from zoneinfo import ZoneInfo

from chalicelib.aws.sqs.deliveries import SqsDeliveries
from chalicelib.aws.ssm.settings import SsmSettings
from chalicelib.channels.channel import read_notice
from chalicelib.domain.model.errors import MalformedEvent
from chalicelib.domain.model.urgency import Severity
from chalicelib.domain.notices.channels import Channels, Day, Hours, NoticeType, Route
from chalicelib.ports.clock import Clock
from chalicelib.ports.notices import Notice, NoticeKind
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from chalicelib.services.reporting.pages import Pages


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """Routes notices. An event that comes twice makes doubles, which the delivery's log tells apart."""

    book: SsmSettings
    queue: SqsDeliveries
    clock: Clock
    report: Callable[[Outcome], None]
    pages: Pages

    def take(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """One event of our own bus.

        Raises:
            Retryable, InvalidSettings, MalformedEvent: nothing was routed, or only to what the document has right.
            Lambda tries again and then keeps the event in the failures queue, whose alarm tells people.
        """
        detail = event.get("detail")
        if not isinstance(detail, Mapping):
            raise MalformedEvent("detail", "missing")
        notice = read_notice(detail)
        if notice.incident_id:  # before the notices are sent, so that the page is there when they are opened
            self.pages.write(notice.incident_id)
        book = self.book.channels()
        names = routed(book, notice, now=self.clock.now())
        self.queue.enqueue([json.dumps({"channel": name, "detail": detail}) for name in names])
        self.report(_routed(notice, names))
        if book.problems:  # a receiver was not told: the event must not be lost
            raise book.problems[0]
        return {"channels": list(names)}


def _routed(notice: Notice, names: Sequence[str]) -> Outcome:
    return Outcome(
        what=OutcomeKind.ROUTED,
        reason="" if names else "no channel wants it",
        incident_id=notice.incident_id or None,
        job_id=notice.job_id,
        facts={"notice_id": notice.token, "kind": notice.kind.value, "channels": list(names)},
    )


_RANK: Final = {Severity.INFO: 0, Severity.WARNING: 1, Severity.PAGE: 2}
_DAYS: Final = tuple(Day)


def routed(channels: Channels, notice: Notice, *, now: datetime) -> tuple[str, ...]:
    """The names of the channels that get it, in the document's order, each once."""
    kind = NoticeType(notice.kind.value)
    wanted = {name for route in channels.routes if _fits(route, notice, kind, now) for name in route.to}
    return tuple(name for name, channel in channels.channels.items() if name in wanted and kind in channel.wants)


def _fits(route: Route, notice: Notice, kind: NoticeType, now: datetime) -> bool:
    if route.notices and kind not in route.notices:
        return False
    if not _named(route.jobs, notice.job_id) or not _named(route.clusters, notice.cluster):
        return False
    if notice.kind is NoticeKind.CHANGE:
        return True  # no new message: it updates one that was sent before, whatever the hour
    if _RANK[notice.severity] < _RANK[route.severity]:
        return False
    return route.hours is None or is_within(route.hours, now) is not route.outside


def _named(patterns: Sequence[str], name: str | None) -> bool:
    return not patterns or (bool(name) and any(fnmatchcase(name or "", pattern) for pattern in patterns))


def is_within(hours: Hours, now: datetime) -> bool:
    """True inside the span, by the zone's own clock. A zone that this machine does not know reads as UTC."""
    local = now.astimezone(_zone(hours.zone))
    clock = local.time().replace(tzinfo=None)
    if hours.start == hours.end:
        return _is_on(hours, local)
    if hours.start < hours.end:
        return hours.start <= clock < hours.end and _is_on(hours, local)
    if clock >= hours.start:
        return _is_on(hours, local)
    return clock < hours.end and _is_on(hours, local - timedelta(days=1))  # it began yesterday


def _is_on(hours: Hours, local: datetime) -> bool:
    return _DAYS[local.weekday()] in hours.days


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return UTC
