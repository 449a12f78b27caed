"""The service's tables in memory, for `rekindle replay`: Incidents with inbox and timeline, Jobs with their Attempts.

They keep the contracts of `chalicelib.ports`, but nothing outlives the process and one thread uses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from chalicelib.domain.model.errors import UnknownEntity, VersionConflict
from chalicelib.domain.model.incident import Incident, TimelineEntry
from chalicelib.domain.model.job import Attempt, Job, WatchPlan
from chalicelib.domain.model.signal import Signal
from chalicelib.ports import Entry, Joined, Looked, Page, Standing
from localcloud.replay.switches import MemoryControls


@dataclass(slots=True)
class _Case:
    """One Incident's rows."""

    incident: Incident
    inbox: list[Signal]
    timeline: list[TimelineEntry] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    last_token: str = ""
    callback_id: str | None = None
    look_by: datetime | None = None


@dataclass(slots=True)
class Books:
    """What both tables share: the pointer from a Job or cluster to its open Incident stands in one place."""

    open_by_scope: dict[str, str] = field(default_factory=dict)
    seen: dict[str, str] = field(default_factory=dict)


def _scope(incident: Incident) -> str:
    return f"job {incident.job_id}" if incident.job_id is not None else f"cluster {incident.scope}"


class MemoryIncidents:
    """IncidentStore in memory."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._cases: dict[str, _Case] = {}
        self._of_job: dict[str, list[_Case]] = {}

    def open(self, incident: Incident, signal: Signal, *, now: datetime) -> Entry:
        """See the port."""
        known = self._books.seen.get(signal.dedupe_key)
        if known is not None:
            return self._entry(Joined.DUPLICATE, known)
        there = self._books.open_by_scope.get(_scope(incident))
        if there is not None:
            return self.join(there, signal, now=now)
        case = self._cases[incident.incident_id] = _Case(incident=incident, inbox=[signal])
        if incident.job_id is not None:
            self._of_job.setdefault(incident.job_id, []).append(case)
        self._books.open_by_scope[_scope(incident)] = incident.incident_id
        self._books.seen[signal.dedupe_key] = incident.incident_id
        return self._entry(Joined.OPENED, incident.incident_id)

    def join(self, incident_id: str, signal: Signal, *, now: datetime) -> Entry:  # noqa: ARG002  the port's own names
        """See the port. Raises UnknownEntity."""
        case = self._case(incident_id)
        known = self._books.seen.get(signal.dedupe_key)
        if known is not None:
            return self._entry(Joined.DUPLICATE, known)
        if not case.incident.is_open:
            return self._entry(Joined.CLOSED, incident_id)
        case.inbox.append(signal)
        self._books.seen[signal.dedupe_key] = incident_id
        return self._entry(Joined.JOINED, incident_id)

    def look(self, incident_id: str, *, generation: int, callback_id: str, look_by: datetime) -> Looked:
        """See the port."""
        case = self._case(incident_id)
        if case.incident.generation != generation:
            raise VersionConflict(f"{incident_id} is at generation {case.incident.generation}")
        case.callback_id, case.look_by = callback_id, look_by
        return Looked(incident=case.incident, inbox=tuple(case.inbox))

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
        """See the port."""
        case = self._case(incident.incident_id)
        if token == case.last_token:
            return case.incident
        stored = case.incident
        if (stored.version, stored.generation) != (expected_version, incident.generation):
            raise VersionConflict(f"{incident.incident_id} is at version {stored.version}")
        case.incident = replace(incident, version=expected_version + 1)
        case.inbox = case.inbox[absorbed:]
        case.timeline.append(entry)
        case.last_token = token
        case.look_by = look_by
        if not incident.is_open:
            self._books.open_by_scope.pop(_scope(stored), None)
        return case.incident

    def append(self, incident_id: str, *, token: str, entry: TimelineEntry) -> None:
        """See the port."""
        case = self._case(incident_id)
        if token not in case.tokens:
            case.tokens.add(token)
            case.timeline.append(entry)

    def load(self, incident_id: str) -> Looked:
        """See the port."""
        case = self._case(incident_id)
        return Looked(incident=case.incident, inbox=tuple(case.inbox))

    def callback_of(self, incident_id: str) -> str | None:
        """See the port."""
        return self._case(incident_id).callback_id

    def timeline(self, incident_id: str) -> tuple[TimelineEntry, ...]:
        """See the port."""
        return tuple(self._case(incident_id).timeline)

    def list_open(self) -> Iterator[tuple[Incident, datetime | None]]:
        """See the port."""
        yield from [(case.incident, case.look_by) for case in self._cases.values() if case.incident.is_open]

    def list_closed(self, *, limit: int, cursor: str | None = None) -> Page:
        """See the port. The cursor is an offset."""
        closed = self._newest_first(case.incident for case in self._cases.values() if not case.incident.is_open)
        start = int(cursor or 0)
        more = start + limit < len(closed)
        return Page(incidents=tuple(closed[start : start + limit]), cursor=str(start + limit) if more else None)

    def list_for_job(self, job_id: str, *, limit: int) -> tuple[Incident, ...]:
        """See the port."""
        found = self._newest_first(case.incident for case in self._of_job.get(job_id, ()))
        return tuple(found[:limit])

    def list_for_node(self, cluster: str, node: str, *, limit: int) -> tuple[Incident, ...]:
        """See the port."""
        cases = (case.incident for case in self._cases.values())
        return tuple(self._newest_first(one for one in cases if (one.cluster, one.node) == (cluster, node))[:limit])

    def claim(self, incident_id: str, *, token: str) -> bool:
        """See the port."""
        case = self._case(incident_id)
        is_first = token not in case.tokens
        case.tokens.add(token)
        return is_first

    def next_generation(self, incident_id: str, *, generation: int) -> int:
        """See the port."""
        case = self._case(incident_id)
        if case.incident.generation != generation:
            raise VersionConflict(f"{incident_id} is at generation {case.incident.generation}")
        case.incident = replace(case.incident, generation=generation + 1)
        return generation + 1

    def _case(self, incident_id: str) -> _Case:
        if incident_id not in self._cases:
            raise UnknownEntity(f"incident {incident_id!r} does not exist")
        return self._cases[incident_id]

    def _entry(self, outcome: Joined, incident_id: str) -> Entry:
        case = self._cases[incident_id]
        return Entry(
            outcome=outcome,
            incident_id=incident_id,
            generation=case.incident.generation,
            callback_id=case.callback_id,
        )

    @staticmethod
    def _newest_first(incidents: Iterator[Incident]) -> list[Incident]:
        return sorted(incidents, key=lambda incident: (incident.opened_at, incident.incident_id), reverse=True)


class MemoryJobs(MemoryControls):
    """JobRegistry in memory."""

    def __init__(self, books: Books) -> None:
        super().__init__()
        self._books = books
        self._jobs: dict[str, Job] = {}
        self._attempts: dict[str, dict[str, Attempt]] = {}
        self._job_of: dict[str, str] = {}

    def register(self, job: Job, attempt: Attempt) -> Job:
        """See the port."""
        if job.job_id not in self._jobs:
            self._jobs[job.job_id] = job
            self._attempts[job.job_id] = {attempt.name: attempt}
            self._job_of[attempt.name] = job.job_id
        return self.get(job.job_id)

    def get(self, job_id: str) -> Job:
        """See the port."""
        if job_id not in self._jobs:
            raise UnknownEntity(f"job {job_id!r} does not exist")
        return replace(self._jobs[job_id], open_incident=self._books.open_by_scope.get(f"job {job_id}"))

    def known(self, job_ids: Iterable[str]) -> dict[str, Job]:
        """See the port."""
        return {job_id: self.get(job_id) for job_id in job_ids if job_id in self._jobs}

    def job_of_attempt(self, attempt_name: str) -> str | None:
        """See the port."""
        return self._job_of.get(attempt_name)

    def add_attempt(self, job: Job, attempt: Attempt, *, now: datetime) -> Job:
        """See the port."""
        stored = self.get(job.job_id)
        if stored.current_attempt == attempt.name:
            return stored
        if stored.version != job.version:
            raise VersionConflict(f"{job.job_id} is at version {stored.version}")
        rows = self._attempts[job.job_id]
        rows[stored.current_attempt] = replace(rows[stored.current_attempt], superseded_at=now)
        rows[attempt.name] = attempt
        self._job_of[attempt.name] = job.job_id
        self._jobs[job.job_id] = replace(
            stored,
            active=True,
            halted_by="",
            current_attempt=attempt.name,
            attempt_number=attempt.number,
            attempt_started_at=attempt.submitted_at,
            version=stored.version + 1,
        )
        return self.get(job.job_id)

    def update_attempt(self, attempt: Attempt) -> None:
        """See the port."""
        stored = self._attempts[attempt.job_id].get(attempt.name)
        if stored is None or stored.number != attempt.number:
            raise UnknownEntity(attempt.name)
        self._attempts[attempt.job_id][attempt.name] = stored.updated(attempt)

    def attempts(self, job_id: str) -> tuple[Attempt, ...]:
        """See the port."""
        return tuple(sorted(self._attempts.get(job_id, {}).values(), key=lambda attempt: attempt.number))

    def active(self, *, after: str = "") -> Iterator[Job]:
        """See the port."""
        yield from [self.get(job_id) for job_id, job in sorted(self._jobs.items()) if job.active and job_id > after]

    def set_watch(self, job_id: str, watch: WatchPlan) -> None:
        """See the port."""
        self._jobs[job_id] = replace(self.get(job_id), watch=watch)

    def list_jobs(self, *, limit: int, cursor: str | None = None) -> tuple[tuple[Job, ...], str | None]:
        """See the port. The cursor is an offset."""
        jobs = sorted((self.get(job_id) for job_id in self._jobs), key=lambda job: (not job.active, job.job_id))
        start = int(cursor or 0)
        return tuple(jobs[start : start + limit]), str(start + limit) if start + limit < len(jobs) else None

    def deactivate(self, job_id: str, *, now: datetime, halted_by: str = "") -> None:  # noqa: ARG002  the port's own names
        """See the port."""
        stored = self._jobs[job_id]
        self._jobs[job_id] = replace(stored, active=False, halted_by=halted_by or stored.halted_by)

    def count_active(self) -> int:
        """See the port."""
        return sum(job.active for job in self._jobs.values())

    def standing(self, job_id: str | None) -> Standing:
        """See the port."""
        return Standing(switches=self.switches(), job=None if job_id is None else self.get(job_id))
