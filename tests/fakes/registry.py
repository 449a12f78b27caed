"""Jobs and Attempts in memory, by the rules of ports.JobRegistry."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime

from chalicelib.domain.model.errors import InvalidRequest, UnknownEntity, VersionConflict
from chalicelib.domain.model.job import Attempt, Job, WatchPlan
from chalicelib.ports import Standing
from localcloud.replay.switches import MemoryControls


class FakeJobRegistry(MemoryControls):
    """Keeps Jobs in a dict."""

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

    def list_jobs(self, *, limit: int, cursor: str | None = None) -> tuple[tuple[Job, ...], str | None]:
        try:
            start = 0 if cursor is None else int(base64.b64decode(cursor))
        except ValueError as err:
            raise InvalidRequest("cursor", "is not one that this registry gave out") from err
        jobs = sorted(self._jobs.values(), key=lambda job: (not job.active, job.job_id))
        after = start + limit
        more = base64.b64encode(str(after).encode()).decode() if after < len(jobs) else None
        return tuple(jobs[start:after]), more

    def deactivate(self, job_id: str, *, now: datetime, halted_by: str = "") -> None:
        stored = self.get(job_id)
        self._jobs[job_id] = replace(stored, active=False, halted_by=halted_by or stored.halted_by, ended_at=now)

    def count_active(self) -> int:
        return sum(job.active for job in self._jobs.values())

    def standing(self, job_id: str | None) -> Standing:
        return Standing(switches=self.switches(), job=None if job_id is None else self.get(job_id))

    def point(self, job_id: str, incident_id: str | None) -> None:
        """Set the Job's open Incident: the store's half of the shared table."""
        self._jobs[job_id] = replace(self.get(job_id), open_incident=incident_id)
