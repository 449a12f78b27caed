"""Notices to people, and the pages that they lead to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from chalicelib.domain.model.action import Severity


class NoticeKind(StrEnum):
    """What a notice is for."""

    NEWS = "news"
    APPROVAL = "approval"  # an answer is wanted: `approval_id`
    CHANGE = "change"  # the Incident's state has changed: for channels that show it, without notifying people


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an Incident can be looked at.

    `url` is empty where nothing can be opened. `until` is when a signed link ends at the latest; None for an address
    that stays. `command` prints a new link.
    """

    url: str
    until: datetime | None
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One message to people. `token` is equal for the same message sent twice; `incident_id` is empty where it is about
    none.

    `fault`, `phase` are the Incident's own words. `paste` are what an on-call person runs or opens next, each a label
    and a command or address. `sequence` orders the notices of one Incident when compared as text, however they arrive;
    empty where the notice is about none. `address` is None where it is about none, and before it is known.
    """

    token: str
    severity: Severity
    title: str
    text: str
    incident_id: str
    job_id: str | None
    at: datetime
    kind: NoticeKind = NoticeKind.NEWS
    approval_id: str = ""
    fault: str = ""
    phase: str = ""
    cluster: str = ""
    node: str = ""
    paste: tuple[tuple[str, str], ...] = ()
    sequence: str = ""
    address: Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLink:
    """A signed link to an Incident's page: it opens for every holder, until `until` at the latest.

    It ends sooner where the credentials that signed it end sooner.
    """

    url: str
    until: datetime
    written_at: datetime


class IncidentPages(Protocol):
    """Incidents' pages, private, each under one key that every new state is written over."""

    def put(self, incident_id: str, page: str) -> None:
        """Write the page."""
        ...

    def link(self, incident_id: str, *, lasts: timedelta) -> PageLink | None:
        """A fresh link; None where no page is there."""
        ...


class Announcer(Protocol):
    """Tells people. Losing a message must never fail a recovery: adapters raise only Retryable."""

    def announce(self, notice: Notice) -> None: ...
