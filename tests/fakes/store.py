"""Incidents in memory, by the rules of ports.IncidentStore."""

from __future__ import annotations

import base64
import heapq
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from chalicelib.domain.model.errors import InvalidRequest, Permanent, UnknownEntity, VersionConflict
from chalicelib.domain.model.incident import Incident, TimelineEntry, node_scope
from chalicelib.domain.model.signal import Signal, SignalSource
from chalicelib.ports import Entry, Joined, Looked, Page
from tests.fakes.registry import FakeJobRegistry

MAX_INBOX = 80
ORDERS_EXTRA = 20


@dataclass
class _Record:
    incident: Incident
    inbox: list[Signal] = field(default_factory=list)
    took: set[str] = field(default_factory=set)
    callback_id: str | None = None
    look_by: datetime | None = None
    token: str | None = None
    overflow: int = 0
    recorded: list[TimelineEntry] = field(default_factory=list)
    appended: dict[str, TimelineEntry] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)


class FakeIncidentStore:
    """Keeps Incidents in a dict; thread-safe, so that storms can be played."""

    def __init__(self, registry: FakeJobRegistry) -> None:
        self._registry = registry
        self._records: dict[str, _Record] = {}
        self._marks: dict[str, str] = {}
        self._clusters: dict[str, str] = {}
        self._lock = threading.RLock()

    def open(self, incident: Incident, signal: Signal, *, now: datetime) -> Entry:
        with self._lock:
            seen = self._seen_before(signal)
            if seen is not None:
                return seen
            if incident.job_id is None and incident.cluster is None:
                raise Permanent("names neither a job nor a cluster")
            current = self._pointer(incident)
            if current is not None:
                return self.join(current, signal, now=now)
            if incident.incident_id in self._records:
                return self._entry(Joined.DUPLICATE, incident.incident_id)
            self._records[incident.incident_id] = _Record(incident=incident, inbox=[signal], took={signal.dedupe_key})
            self._marks[signal.dedupe_key] = incident.incident_id
            self._point(incident, incident.incident_id)
            return self._entry(Joined.OPENED, incident.incident_id)

    def join(self, incident_id: str, signal: Signal, *, now: datetime) -> Entry:
        with self._lock:
            seen = self._seen_before(signal)
            if seen is not None:
                return seen
            record = self._get(incident_id)
            if not record.incident.is_open:
                return self._entry(Joined.CLOSED, incident_id)
            if len(record.inbox) >= MAX_INBOX + (ORDERS_EXTRA if signal.source is SignalSource.OPERATOR else 0):
                record.overflow += 1
                return replace(self._entry(Joined.JOINED, incident_id), is_full=True)
            record.inbox.append(signal)
            record.took.add(signal.dedupe_key)
            self._marks[signal.dedupe_key] = incident_id
            return self._entry(Joined.JOINED, incident_id)

    def look(self, incident_id: str, *, generation: int, callback_id: str, look_by: datetime) -> Looked:
        with self._lock:
            record = self._get(incident_id)
            if record.incident.generation != generation:
                raise VersionConflict(f"{incident_id} is at generation {record.incident.generation}, not {generation}")
            record.callback_id, record.look_by = callback_id, look_by
            return Looked(incident=record.incident, inbox=tuple(record.inbox))

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
        with self._lock:
            record = self._get(incident.incident_id)
            if record.token == token:
                return record.incident
            found = (record.incident.version, record.incident.generation)
            if found != (expected_version, incident.generation):
                raise VersionConflict(f"is at {found}")
            if not incident.is_open and len(record.inbox) > absorbed:
                raise VersionConflict("Signals arrived while it was closing")
            record.incident = replace(incident, version=expected_version + 1)
            record.token, record.look_by = token, look_by
            record.inbox = record.inbox[absorbed:]
            record.recorded.append(entry)
            if not incident.is_open:
                record.callback_id = None
                if self._pointer(incident) == incident.incident_id:
                    self._point(incident, None)
            return record.incident

    def append(self, incident_id: str, *, token: str, entry: TimelineEntry) -> None:
        with self._lock:
            self._get(incident_id).appended.setdefault(token, entry)

    def load(self, incident_id: str) -> Looked:
        with self._lock:
            record = self._get(incident_id)
            return Looked(incident=record.incident, inbox=tuple(record.inbox))

    def callback_of(self, incident_id: str) -> str | None:
        with self._lock:
            return self._get(incident_id).callback_id

    def timeline(self, incident_id: str) -> tuple[TimelineEntry, ...]:
        with self._lock:
            record = self._get(incident_id)
            appended = sorted(record.appended.values(), key=lambda line: line.at)
            return tuple(heapq.merge(record.recorded, appended, key=lambda line: line.at))

    def list_open(self) -> Iterator[tuple[Incident, datetime | None]]:
        with self._lock:
            found = [(item.incident, item.look_by) for item in self._records.values() if item.incident.is_open]
        yield from sorted(found, key=lambda pair: (pair[0].opened_at, pair[0].incident_id))

    def everything(self) -> list[Incident]:
        """Every Incident, open or closed."""
        with self._lock:
            return [record.incident for record in self._records.values()]

    def list_closed(self, *, limit: int, cursor: str | None = None) -> Page:
        start = _read_cursor(cursor)
        with self._lock:
            closed = _newest_first([item.incident for item in self._records.values() if not item.incident.is_open])
        after = start + limit
        more = base64.b64encode(str(after).encode()).decode() if after < len(closed) else None
        return Page(incidents=tuple(closed[start:after]), cursor=more)

    def list_for_job(self, job_id: str, *, limit: int) -> tuple[Incident, ...]:
        with self._lock:
            found = [item.incident for item in self._records.values() if item.incident.job_id == job_id]
        return tuple(_newest_first(found)[:limit])

    def list_for_node(self, cluster: str, node: str, *, limit: int) -> tuple[Incident, ...]:
        with self._lock:
            found = [
                item.incident for item in self._records.values() if item.incident.scope == node_scope(cluster, node)
            ]
        return tuple(_newest_first(found)[:limit])

    def claim(self, incident_id: str, *, token: str) -> bool:
        with self._lock:
            claimed = self._get(incident_id).claimed
            is_first = token not in claimed
            claimed.add(token)
            return is_first

    def next_generation(self, incident_id: str, *, generation: int) -> int:
        with self._lock:
            record = self._get(incident_id)
            if record.incident.generation != generation or not record.incident.is_open:
                raise VersionConflict(f"{incident_id} is at generation {record.incident.generation} or closed")
            record.incident = replace(record.incident, generation=generation + 1)
            record.callback_id = None
            return generation + 1

    def overflow_of(self, incident_id: str) -> int:
        """How many Signals found no room. For assertions."""
        return self._records[incident_id].overflow

    def _get(self, incident_id: str) -> _Record:
        if incident_id not in self._records:
            raise UnknownEntity(incident_id)
        return self._records[incident_id]

    def _seen_before(self, signal: Signal) -> Entry | None:
        owner = self._marks.get(signal.dedupe_key)
        return None if owner is None else self._entry(Joined.DUPLICATE, owner)

    def _entry(self, outcome: Joined, incident_id: str) -> Entry:
        record = self._records[incident_id]
        return Entry(
            outcome=outcome,
            incident_id=incident_id,
            generation=record.incident.generation,
            callback_id=record.callback_id,
        )

    def _pointer(self, incident: Incident) -> str | None:
        if incident.job_id is not None:
            return self._registry.get(incident.job_id).open_incident
        return self._clusters.get(incident.scope or "")

    def _point(self, incident: Incident, to: str | None) -> None:
        if incident.job_id is not None:
            self._registry.point(incident.job_id, to)
        elif to is None:
            self._clusters.pop(incident.scope or "", None)
        else:
            self._clusters[incident.scope or ""] = to


def _newest_first(incidents: list[Incident]) -> list[Incident]:
    return sorted(incidents, key=lambda item: (item.opened_at, item.incident_id), reverse=True)


def _read_cursor(cursor: str | None) -> int:
    if cursor is None:
        return 0
    try:
        return int(base64.b64decode(cursor))
    except ValueError as err:
        raise InvalidRequest("cursor", "is not one that this store gave out") from err
