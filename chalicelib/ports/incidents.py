"""Incidents: the store, their timeline, and the executions that work on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from chalicelib.domain.model.incident import Incident, TimelineEntry
    from chalicelib.domain.model.job import Job
    from chalicelib.domain.model.signal import Signal


class JoinOutcome(StrEnum):
    """How a Signal met an Incident."""

    OPENED = "opened"
    JOINED = "joined"
    DUPLICATE = "duplicate"  # this very fact was taken in before
    CLOSED = "closed"  # the Incident has closed meanwhile; ask again


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a Signal went. `callback_id` is the pending wake-up callback, None while nothing waits.

    `is_full`: there was no room for it; it is not kept, and wakes no Incident.
    """

    outcome: JoinOutcome
    incident_id: str
    generation: int = 1
    callback_id: str | None = None
    is_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredIncident:
    """An Incident as stored, with the Signals its workflow has not absorbed yet, in order of arrival."""

    incident: Incident
    inbox: tuple[Signal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of Incidents, newest first; `cursor` is opaque, None on the last page."""

    incidents: tuple[Incident, ...]
    cursor: str | None


class IncidentStore(Protocol):
    """Incidents with inbox and timeline."""

    def open(self, incident: Incident, signal: Signal, *, now: datetime) -> Entry:
        """Create `incident` with `signal` in its inbox, unless its Job (or cluster) has an open one.

        Atomic: the Incident, the Job's pointer and the Signal's dedupe mark appear together or not at all. With an
        open Incident there already, the Signal joins that one instead (two writes). Outcomes: OPENED, JOINED,
        DUPLICATE (this fact was seen before, in whatever Incident; its id is returned), CLOSED (lost a race; retry).
        """
        ...

    def join(self, incident_id: str, signal: Signal, *, now: datetime) -> Entry:
        """Add `signal` to the inbox of an open Incident: at most two writes. JOINED, DUPLICATE or CLOSED.

        A DUPLICATE still returns the callback id, so that a lost wake is healed by the platform's own redelivery.
        """
        ...

    def look(self, incident_id: str, *, generation: int, callback_id: str, look_by: datetime) -> StoredIncident:
        """Publish `callback_id` and read the whole Incident in one write (strongly consistent).

        `look_by` is when the sweep may conclude that the next observation is overdue; `record` may move it later.

        Published before it is read: a Signal that arrives later completes this callback, an earlier one is in the
        answer; so no wake is ever lost in between.

        Raises:
            VersionConflict: a newer generation has taken over; this execution must end.
            UnknownEntity: no such Incident.
        """
        ...

    def record(
        self,
        incident: Incident,
        *,
        expected_version: int,
        token: str,
        absorbed: int,
        entry: TimelineEntry,
        look_by: datetime | None,
    ) -> Incident:
        """Write the Incident's new state and timeline line, fenced by version and generation; returns it as stored.

        Drops the first `absorbed` Signals of the inbox. Closing also frees the Job's pointer, in the same transaction.
        `look_by` is when the sweep may conclude that the next observation is overdue. Writing again with the `token`
        that was written last is a no-op that returns the stored Incident.

        Raises:
            VersionConflict: another writer came in between.
        """
        ...

    def append(self, incident_id: str, *, token: str, entry: TimelineEntry) -> None:
        """Add a line to the timeline without touching the Incident; the same token twice writes once."""
        ...

    def load(self, incident_id: str) -> StoredIncident:
        """Read without publishing anything. Raises UnknownEntity."""
        ...

    def callback_of(self, incident_id: str) -> str | None:
        """The callback published by the newest look, None if there was none yet."""
        ...

    def timeline(self, incident_id: str) -> tuple[TimelineEntry, ...]:
        """The whole story in order."""
        ...

    def load_with_timeline(self, incident_id: str) -> tuple[StoredIncident, tuple[TimelineEntry, ...]]:
        """`load` and `timeline` in one read. Raises UnknownEntity."""
        ...

    def list_open(self) -> Iterator[tuple[Incident, datetime | None]]:
        """Every open Incident with its `look_by`. For the sweep: an index query, never a scan."""
        ...

    def list_closed(self, *, limit: int, cursor: str | None = None) -> Page:
        """Closed Incidents, newest first."""
        ...

    def list_for_job(self, job_id: str, *, limit: int) -> tuple[Incident, ...]:
        """A Job's Incidents, newest first."""
        ...

    def list_for_node(self, cluster: str, node: str, *, limit: int) -> tuple[Incident, ...]:
        """The Incidents of one node of a cluster, newest first."""
        ...

    def claim(self, incident_id: str, *, token: str) -> bool:
        """True for the first who asks for `token`, False ever after.

        For a side effect that takes no token itself: one who finds it claimed cannot know whether it was carried out.
        """
        ...

    def next_generation(self, incident_id: str, *, generation: int) -> int:
        """Take over from `generation`: returns generation + 1. Raises VersionConflict if another owner did."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentQuery:
    """Which Incidents. None: any. `is_open` None: both, the open ones first. `since`: opened then or later."""

    is_open: bool | None = None
    job_id: str | None = None
    cluster: str | None = None
    fault: str | None = None
    since: datetime | None = None


class Listings(Protocol):
    """Pages for people: each costs a bounded number of reads, however much is stored.

    All raise InvalidRequest for a cursor that is not theirs.
    """

    def incidents(self, wanted: IncidentQuery, *, limit: int, cursor: str | None = None) -> Page:
        """Newest first. A page may hold fewer than `limit`, even none, and yet have a cursor: what `wanted` leaves out
        was read, too."""
        ...

    def jobs(self, *, active: bool | None, limit: int, cursor: str | None = None) -> tuple[tuple[Job, ...], str | None]:
        """By id; `active` None: both, the active ones first."""
        ...

    def timeline(
        self, incident_id: str, *, limit: int, cursor: str | None = None
    ) -> tuple[tuple[TimelineEntry, ...], str | None]:
        """The story from its beginning. Raises UnknownEntity."""
        ...

    def open_incidents(self) -> int:
        """How many are open. The index lags by a second."""
        ...

    def active_jobs(self) -> int:
        """How many Jobs are active. The index lags by a second."""
        ...


class Executions(Protocol):
    """The durable executions of `recover`."""

    def start(self, incident_id: str, *, generation: int) -> None:
        """Start the Incident's execution; one that exists under the same name is left alone."""
        ...

    def wake(self, callback_id: str, *, why: str) -> bool:
        """Complete the callback that a look waits on. False if it is gone (answered, or its execution ended)."""
        ...

    def running(self) -> frozenset[str]:
        """Names of all running executions."""
        ...
