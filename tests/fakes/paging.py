"""Pages, remembered answers and policy documents in memory, by the rules of their ports."""

from __future__ import annotations

import base64
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from chalicelib.domain.model.errors import InvalidRequest, Outdated
from chalicelib.domain.model.incident import Incident, TimelineEntry
from chalicelib.domain.model.job import Job
from chalicelib.ports.incidents import IncidentQuery, Page
from chalicelib.ports.operator import EarlierOrder, StoredPolicy
from localcloud.memory_tables import MemoryIncidents, MemoryJobs

T = TypeVar("T")


class FakeListings:
    """ports.Listings over the fakes."""

    def __init__(self, store: MemoryIncidents, registry: MemoryJobs) -> None:
        self._store = store
        self._registry = registry

    def incidents(self, wanted: IncidentQuery, *, limit: int, cursor: str | None = None) -> Page:
        everything = sorted(
            self._store.everything(), key=lambda incident: (incident.opened_at, incident.incident_id), reverse=True
        )
        chosen = [incident for incident in everything if _fits(incident, wanted)]
        if wanted.is_open is None and wanted.job_id is None:
            chosen.sort(key=lambda incident: not incident.is_open)
        found, after = _page(chosen, limit, cursor)
        return Page(incidents=tuple(found), cursor=after)

    def jobs(self, *, active: bool | None, limit: int, cursor: str | None = None) -> tuple[tuple[Job, ...], str | None]:
        chosen = [job for job in self._registry.everything() if active is None or job.active is active]
        found, after = _page(chosen, limit, cursor)
        return tuple(found), after

    def timeline(
        self, incident_id: str, *, limit: int, cursor: str | None = None
    ) -> tuple[tuple[TimelineEntry, ...], str | None]:
        found, after = _page(self._store.timeline(incident_id), limit, cursor)
        return tuple(found), after

    def open_incidents(self) -> int:
        return sum(1 for _ in self._store.list_open())

    def active_jobs(self) -> int:
        return sum(1 for _ in self._registry.active())


def _fits(incident: Incident, wanted: IncidentQuery) -> bool:
    return (
        (wanted.is_open is None or incident.is_open is wanted.is_open)
        and (wanted.job_id is None or incident.job_id == wanted.job_id)
        and (wanted.cluster is None or incident.cluster == wanted.cluster)
        and (wanted.fault is None or incident.fault.value == wanted.fault)
        and (wanted.since is None or incident.opened_at >= wanted.since)
    )


def _page(rows: Sequence[T], limit: int, cursor: str | None) -> tuple[Sequence[T], str | None]:
    try:
        start = int(base64.urlsafe_b64decode(cursor.encode())) if cursor else 0
    except ValueError as err:
        raise InvalidRequest("cursor", "is not one that this API gave out for this question") from err
    end = start + limit
    return rows[start:end], base64.urlsafe_b64encode(str(end).encode()).decode() if end < len(rows) else None


class FakeAnswers:
    """ports.AnswerMemory; forgets nothing."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, Mapping[str, Any] | None]] = {}
        self._lock = threading.Lock()

    def begin(self, key: str, *, fingerprint: str, now: datetime) -> EarlierOrder | None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = (fingerprint, None)
                return None
            known, answer = self._kept[key]
            return EarlierOrder(same=known == fingerprint, answer=answer)

    def finish(self, key: str, *, answer: Mapping[str, Any]) -> None:
        with self._lock:
            self._kept[key] = (self._kept[key][0], answer)


class FakePolicyShelf:
    """ports.PolicyDocumentStore."""

    def __init__(self) -> None:
        self.kept: dict[str, StoredPolicy] = {}

    def listing(self) -> tuple[StoredPolicy, ...]:
        return tuple(self.kept[name] for name in sorted(self.kept))

    def stored(self, name: str) -> StoredPolicy | None:
        return self.kept.get(name)

    def write(self, name: str, text: str, *, replaces: int, now: datetime) -> StoredPolicy:
        present = self.kept[name].version if name in self.kept else 0
        if present != replaces:
            raise Outdated(f"policy {name!r} is at version {present}, not {replaces}", present=present)
        self.kept[name] = StoredPolicy(name=name, version=present + 1, text=text, modified_at=now)
        return self.kept[name]
