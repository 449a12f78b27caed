"""The service's tables in memory: Incidents with inbox and timeline, Jobs with their Attempts.

For replay, the proving ground and tests. They keep the contracts of `chalicelib.ports`: tests/adapters plays the same
tests on them and on DynamoDB's. Nothing outlives the process; they may be used from many threads.
"""

from __future__ import annotations

import base64
import heapq
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from chalicelib.aws.dynamodb.incident_inbox import MAX_INBOX, ORDERS_EXTRA
from chalicelib.domain.model.errors import InvalidRequest, Permanent, UnknownEntity, VersionConflict
from chalicelib.domain.model.incident import Incident, TimelineEntry, node_scope
from chalicelib.domain.model.job import Attempt, Job, NewestSave, WatchPlan
from chalicelib.domain.model.signal import Signal, SignalSource
from chalicelib.ports.incidents import Entry, JoinOutcome, Page, StoredIncident
from chalicelib.ports.jobs import ObservationBasis
from localcloud.switches import MemoryControls


class MemoryJobs(MemoryControls):
    """ports.JobRegistry."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: dict[str, Job] = {}
        self._attempts: dict[str, dict[int, Attempt]] = {}
        self._names: dict[str, str] = {}
        self._lock = threading.RLock()

    def register(self, job: Job, attempt: Attempt) -> Job:
        with self._lock:
            if job.job_id in self._jobs:
                return self._jobs[job.job_id]
            if attempt.name in self._names:
                return self._jobs[self._names[attempt.name]]
            self._jobs[job.job_id] = job
            self._attempts[job.job_id] = {attempt.number: attempt}
            self._names[attempt.name] = job.job_id
            return job

    def get(self, job_id: str) -> Job:
        if job_id not in self._jobs:
            raise UnknownEntity(job_id)
        return self._jobs[job_id]

    def known(self, job_ids: Iterable[str]) -> dict[str, Job]:
        return {job_id: self._jobs[job_id] for job_id in job_ids if job_id in self._jobs}

    def job_of_attempt(self, attempt_name: str) -> str | None:
        return self._names.get(attempt_name)

    def add_attempt(self, job: Job, attempt: Attempt, *, now: datetime) -> Job:
        with self._lock:
            stored = self.get(job.job_id)
            if stored.current_attempt == attempt.name:
                return stored
            if stored.version != job.version:
                raise VersionConflict(f"{job.job_id} is at version {stored.version}, not {job.version}")
            old = self._attempts[job.job_id].get(stored.attempt_number)
            if old is not None and old.number != attempt.number and old.superseded_at is None:
                self._attempts[job.job_id][old.number] = replace(old, superseded_at=now)
            self._attempts[job.job_id][attempt.number] = attempt
            self._names[attempt.name] = job.job_id
            self._jobs[job.job_id] = replace(
                stored,
                active=True,
                halted_by="",
                current_attempt=attempt.name,
                attempt_number=attempt.number,
                attempt_started_at=attempt.submitted_at,
                version=stored.version + 1,
            )
            return self._jobs[job.job_id]

    def update_attempt(self, attempt: Attempt) -> None:
        with self._lock:
            stored = self._attempts.get(attempt.job_id, {}).get(attempt.number)
            if stored is None or stored.name != attempt.name:
                raise UnknownEntity(attempt.name)
            self._attempts[attempt.job_id][attempt.number] = stored.updated(attempt)

    def attempts(self, job_id: str) -> tuple[Attempt, ...]:
        return tuple(attempt for _, attempt in sorted(self._attempts.get(job_id, {}).items()))

    def active(self, *, after: str = "") -> Iterator[Job]:
        yield from [job for job_id, job in sorted(self._jobs.items()) if job.active and job_id > after]

    def set_watch(self, job_id: str, watch: WatchPlan) -> None:
        self._jobs[job_id] = replace(self.get(job_id), watch=watch)

    def note_save(self, job_id: str, save: NewestSave) -> None:
        self._jobs[job_id] = replace(self.get(job_id), newest_save=save)

    def everything(self) -> list[Job]:
        """Every Job, active ones first."""
        return sorted(self._jobs.values(), key=lambda job: (not job.active, job.job_id))

    def deactivate(self, job_id: str, *, ended_at: datetime, halted_by: str = "") -> None:
        stored = self.get(job_id)
        self._jobs[job_id] = replace(stored, active=False, halted_by=halted_by or stored.halted_by, ended_at=ended_at)

    def count_active(self) -> int:
        return sum(job.active for job in self._jobs.values())

    def standing(self, job_id: str | None) -> ObservationBasis:
        return ObservationBasis(switches=self.switches(), job=None if job_id is None else self.get(job_id))

    def point(self, job_id: str, incident_id: str | None) -> None:
        """Set the Job's open Incident: the store's half of the shared table."""
        self._jobs[job_id] = replace(self.get(job_id), open_incident=incident_id)


@dataclass(slots=True)
class _Record:
    """One Incident's rows."""

    incident: Incident
    inbox: list[Signal] = field(default_factory=list)
    callback_id: str | None = None
    look_by: datetime | None = None
    token: str | None = None
    recorded: list[TimelineEntry] = field(default_factory=list)
    appended: dict[str, TimelineEntry] = field(default_factory=dict)
    claimed: set[str] = field(default_factory=set)


class MemoryIncidents:
    """ports.IncidentStore. `jobs` holds which Incident of a Job is open, as the shared table does."""

    def __init__(self, jobs: MemoryJobs) -> None:
        self._jobs = jobs
        self._records: dict[str, _Record] = {}
        self._open: dict[str, _Record] = {}
        self._of_job: dict[str, list[_Record]] = {}
        self._marks: dict[str, str] = {}
        self._clusters: dict[str, str] = {}
        self._lock = threading.RLock()

    def put(self, incident: Incident) -> None:
        """Place an Incident as it is, without its history."""
        with self._lock:
            self._place(_Record(incident=incident))

    def _place(self, record: _Record) -> None:
        incident = record.incident
        self._records[incident.incident_id] = record
        if incident.is_open:
            self._open[incident.incident_id] = record
        if incident.job_id is not None:
            self._of_job.setdefault(incident.job_id, []).append(record)

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
                return self._entry(JoinOutcome.DUPLICATE, incident.incident_id)
            self._place(_Record(incident=incident, inbox=[signal]))
            self._marks[signal.dedupe_key] = incident.incident_id
            self._point(incident, incident.incident_id)
            return self._entry(JoinOutcome.OPENED, incident.incident_id)

    def join(self, incident_id: str, signal: Signal, *, now: datetime) -> Entry:  # noqa: ARG002  the port's own name
        with self._lock:
            seen = self._seen_before(signal)
            if seen is not None:
                return seen
            record = self._get(incident_id)
            if not record.incident.is_open:
                return self._entry(JoinOutcome.CLOSED, incident_id)
            if len(record.inbox) >= MAX_INBOX + (ORDERS_EXTRA if signal.source is SignalSource.OPERATOR else 0):
                return replace(self._entry(JoinOutcome.JOINED, incident_id), is_full=True)
            record.inbox.append(signal)
            self._marks[signal.dedupe_key] = incident_id
            return self._entry(JoinOutcome.JOINED, incident_id)

    def look(self, incident_id: str, *, generation: int, callback_id: str, look_by: datetime) -> StoredIncident:
        with self._lock:
            record = self._get(incident_id)
            if record.incident.generation != generation:
                raise VersionConflict(f"{incident_id} is at generation {record.incident.generation}, not {generation}")
            record.callback_id, record.look_by = callback_id, look_by
            return StoredIncident(incident=record.incident, inbox=tuple(record.inbox))

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
                self._open.pop(incident.incident_id, None)
                if self._pointer(incident) == incident.incident_id:
                    self._point(incident, None)
            return record.incident

    def append(self, incident_id: str, *, token: str, entry: TimelineEntry) -> None:
        with self._lock:
            self._get(incident_id).appended.setdefault(token, entry)

    def load(self, incident_id: str) -> StoredIncident:
        with self._lock:
            record = self._get(incident_id)
            return StoredIncident(incident=record.incident, inbox=tuple(record.inbox))

    def callback_of(self, incident_id: str) -> str | None:
        with self._lock:
            return self._get(incident_id).callback_id

    def timeline(self, incident_id: str) -> tuple[TimelineEntry, ...]:
        with self._lock:
            record = self._get(incident_id)
            appended = sorted(record.appended.values(), key=lambda line: line.at)
            return tuple(heapq.merge(record.recorded, appended, key=lambda line: line.at))

    def load_with_timeline(self, incident_id: str) -> tuple[StoredIncident, tuple[TimelineEntry, ...]]:
        with self._lock:
            return self.load(incident_id), self.timeline(incident_id)

    def list_open(self) -> Iterator[tuple[Incident, datetime | None]]:
        with self._lock:
            found = [(item.incident, item.look_by) for item in self._open.values()]
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
            found = [item.incident for item in self._of_job.get(job_id, ())]
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

    def _get(self, incident_id: str) -> _Record:
        if incident_id not in self._records:
            raise UnknownEntity(incident_id)
        return self._records[incident_id]

    def _seen_before(self, signal: Signal) -> Entry | None:
        owner = self._marks.get(signal.dedupe_key)
        return None if owner is None else self._entry(JoinOutcome.DUPLICATE, owner)

    def _entry(self, outcome: JoinOutcome, incident_id: str) -> Entry:
        record = self._records[incident_id]
        return Entry(
            outcome=outcome,
            incident_id=incident_id,
            generation=record.incident.generation,
            callback_id=record.callback_id,
        )

    def _pointer(self, incident: Incident) -> str | None:
        if incident.job_id is not None:
            return self._jobs.get(incident.job_id).open_incident
        return self._clusters.get(incident.scope or "")

    def _point(self, incident: Incident, to: str | None) -> None:
        if incident.job_id is not None:
            self._jobs.point(incident.job_id, to)
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
