"""Rehearsing a fault on a living Job: the real reads, the real decide(), an assumed world, and not one effect.

A drill's Incident exists in memory only. What reads the world for it is the service's own Look, over facades that have
no method that writes; the one thing a drill writes is its own record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from chalicelib.domain.drills.catalogue import DrillRow, drill_for, signal_of
from chalicelib.domain.drills.earlier import measured
from chalicelib.domain.drills.report import RealState, report
from chalicelib.domain.drills.world import DrillWorld
from chalicelib.domain.model.errors import InvalidRequest, Skip, UnknownEntity
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry
from chalicelib.services.observe.observer import Observer
from chalicelib.services.operator.drill_play import Reader, ReadOnly, ReadOnlySchedulers, ShadowStore, Stage

EARLIER: Final = 5  # Incidents of the Job whose timelines tell how long its stages take
KEPT_FOR: Final = timedelta(days=30)
MAX_WHO: Final = 128


class DrillRecords(Protocol):
    """Where results of drills stay for a while."""

    def load(self, drill_id: str) -> Mapping[str, Any] | None:
        """The result, None where there is none (any more)."""
        ...

    def save(self, drill_id: str, result: Mapping[str, Any], *, until: datetime) -> bool:
        """Keep `result` until then; False where one is there already, which stays."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Drills:
    """Rehearsals of faults. `look` is the service's own."""

    look: Observer
    store: IncidentStore
    registry: JobRegistry
    records: DrillRecords
    clock: Clock

    def start(self, job_id: str, fault: str, *, who: str, key: str) -> dict[str, Any]:
        """Rehearse `fault` on the Job's current attempt and keep the result. The same key is the same drill.

        Raises:
            InvalidRequest: no fault that can be rehearsed, or the key has been used for another.
            UnknownEntity: no such Job.
            Skip: nothing of the Job runs that could be struck.
        """
        row = drill_for(fault)
        drill_id = drill_id_of(job_id, key)
        known = self.records.load(drill_id)
        if known is not None:
            return _same(known, fault)
        job = self.registry.get(job_id)
        now = self.clock.now()
        result = self._rehearse(job, row, drill_id=drill_id, now=now) | {
            "drill_id": drill_id,
            "job_id": job_id,
            "fault": fault,
            "by": who[:MAX_WHO],
            "at": now.isoformat(),
        }
        if not self.records.save(drill_id, result, until=now + KEPT_FOR):
            return _same(self.get(drill_id), fault)  # the same order, taken twice at once
        return result

    def get(self, drill_id: str) -> dict[str, Any]:
        """The result of a drill of the last days.

        Raises:
            UnknownEntity: there is none.
        """
        found = self.records.load(drill_id)
        if found is None:
            raise UnknownEntity(f"no drill {drill_id}; results are kept for {KEPT_FOR.days} days")
        return dict(found)

    def _rehearse(self, job: Job, row: DrillRow, *, drill_id: str, now: datetime) -> dict[str, Any]:
        shadow = ShadowStore(self.store)
        read: dict[str, Any] = {"store": shadow, "nodes": None}
        read["scheduler"] = ReadOnlySchedulers(self.look.scheduler)
        for name in ("registry", "mailbox", "policies", "head_nodes"):
            part = getattr(self.look, name)
            read[name] = ReadOnly(part, name) if part is not None else None
        reader = Reader(look=replace(self.look, **read), store=shadow, job=job)
        incident = _incident(job, drill_id, now)
        policy = reader.policy_for(incident)
        first = reader.read(incident)
        view = first.attempt.value if isinstance(first.attempt, Known) else None
        if view is not None and view.status.has_ended:
            raise Skip(f"nothing to rehearse on: {view.name} is {view.status}")
        earlier = self.store.list_for_job(job.job_id, limit=EARLIER)
        figures = measured([self.store.timeline(incident.incident_id) for incident in earlier if not incident.is_open])
        world = DrillWorld.begin(row, view, figures, now=now) if view is not None else None
        stage = Stage(reader=reader, world=world, registry=self.registry, first=first, policy=policy)
        play = stage.play(incident, signal_of(row, job, view, drill_id=drill_id, now=now), now=now)
        return report(
            RealState(job=job, row=row, first=first, policy=policy, figures=figures, earlier=len(earlier)), play, world
        )


def drill_id_of(job_id: str, key: str) -> str:
    """The same order of the same Job is the same drill."""
    return "drill-" + hashlib.sha256(f"{job_id}|{key}".encode()).hexdigest()[:20]


def _same(known: Mapping[str, Any], fault: str) -> dict[str, Any]:
    if known["fault"] != fault:
        raise InvalidRequest("fault", f"this key has been used to rehearse {known['fault']}")
    return dict(known)


def _incident(job: Job, drill_id: str, now: datetime) -> Incident:
    return Incident(
        incident_id=drill_id,
        job_id=job.job_id,
        cluster=None,
        opened_at=now,
        phase=Phase.OPEN,
        phase_entered_at=now,
        policy_name=job.policy_name,
        attempt=job.current_attempt,
        attempt_number=job.attempt_number,
    )
