"""Which channels a notice goes to, by the channels document. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from fnmatch import fnmatchcase
from typing import Final
from zoneinfo import ZoneInfo

from chalicelib.domain.model.urgency import Severity
from chalicelib.domain.notices.channels import Channels, Day, Hours, NoticeType, Route
from chalicelib.ports.notices import Notice, NoticeKind

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
