"""What stands in for tables and queues of the service, in memory; and what the judge may see of the service's acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chalicelib.aws.dynamodb.newer_version import read_incident
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.signal import Signal
from chalicelib.ports.incidents import Entry, JoinOutcome
from chalicelib.ports.notices import Notice
from chalicelib.services.reporting.outcome import Outcome
from localcloud.memory_tables import MemoryIncidents, MemoryJobs
from simulation.runs.truth import Attempt, TrueNode, TrueRun

Moved = Callable[[Incident | None, Incident], None]
"""Called with an Incident before (None: it opens) and after a write."""


class Watcher:
    """What the judge learns of what the service does, at the moment it does it. The base learns nothing."""

    def stops(self, attempt: Attempt) -> None:
        """The service stops it."""

    def submitted(self, attempt: Attempt) -> None:
        """The service has submitted it."""

    def acts(self, run: TrueRun, at: datetime) -> None:
        """The service has ordered a start then, which comes about now."""

    def repairs(self, node: TrueNode, how: str) -> None:
        """The service has a node rebooted or replaced."""

    def condemned(self, root: str) -> None:
        """The service has marked a checkpoint as bad."""

    def notified(self, notice: Notice) -> None:
        """The service has notified people."""

    def recorded(self, before: Incident | None, after: Incident) -> None:
        """An Incident has opened, or stands elsewhere."""

    def minute(self) -> None:
        """A minute has passed, and the sweep has run."""


class Incidents(MemoryIncidents):
    """The table of Incidents, which may be throttled, and reports what it takes."""

    def __init__(self, jobs: MemoryJobs, *, check: Callable[[str], None], moved: Moved) -> None:
        super().__init__(jobs)
        self._check = check
        self._moved = moved

    def open(self, incident: Incident, signal: Signal, *, now: datetime) -> Entry:
        self._check("open")
        entry = super().open(incident, signal, now=now)
        if entry.outcome is JoinOutcome.OPENED:
            self._moved(None, self.load(entry.incident_id).incident)
        return entry

    def look(self, incident_id: str, **more: Any) -> Any:
        self._check("look")
        return super().look(incident_id, **more)

    def roll_back(self) -> None:
        """Simulate a rollback of the service: open Incidents have been written by a newer version."""
        for record in self._open.values():
            record.incident = read_incident(record.incident.to_wire() | {"escalation": {"rung": 2}})

    def record(self, incident: Incident, **more: Any) -> Incident:
        self._check("record")
        before = self.load(incident.incident_id).incident
        after = super().record(incident, **more)
        self._moved(before, after)
        return after


@dataclass(frozen=True, slots=True)
class Tables:
    """One stage's own."""

    incidents: Incidents
    jobs: MemoryJobs


class NoticeLog:
    """ports.Announcer: keeps the notices."""

    def __init__(self, watcher: Callable[[], Watcher], *, asked: Callable[[str | None], None]) -> None:
        self._watcher = watcher
        self._asked = asked
        self.notices: list[Notice] = []

    def announce(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._watcher().notified(notice)
        if notice.approval_id:
            self._asked(notice.job_id)


class DiscardedOutcomes:
    """The service's own outcomes; nothing is kept of them."""

    def __call__(self, outcome: Outcome) -> None:
        del outcome


class MemoryQuarantine:
    """ports.Quarantine: nothing that this world sends is unreadable, so what lands here is a defect of the world's."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def put(self, *, raw: str, function: str, error: str, field: str, at: datetime) -> None:
        del function, field, at
        self.kept.append(f"{error}: {raw[:300]}")

    def peek(self, *, limit: int) -> tuple[Mapping[str, Any], ...]:
        del limit
        return ()

    def take(self, *, limit: int) -> Any:
        del limit
        return iter(())

    def drop(self, receipt: str) -> None:
        del receipt
