"""Gathers what the view shows: the registry's Job and Incidents, the workers' own notes, the processes' states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from chalicelib.domain.model.errors import UnknownEntity
from chalicelib.domain.model.incident import Incident, TimelineEntry
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.job import Attempt
from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.reporting.ledger import ledger_of
from chalicelib.domain.reporting.prices import NO_PRICES
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry
from localcloud.demo.story import AttemptSeen, IncidentSeen, Line
from localcloud.demo.trace import Trace
from localcloud.demo.view import DemoState, WorkerSeen

T = TypeVar("T")

MAX_INCIDENTS = 50
# Reading the registry costs the processor that the run and its recovery also need.
READ_EVERY = timedelta(milliseconds=500)
FINAL = frozenset({"Completed", "Failed", "Stopped"})
# /proc/<pid>/stat's third field. Source: proc_pid_stat(5)
_STATES = {"T": "frozen", "t": "frozen", "Z": "dead", "X": "dead"}


class Watch:
    """One Job, looked at again and again.

    status_of: the platform's word for an attempt's state. workers_of: rank to process id of an attempt's workers.
    """

    def __init__(
        self,
        *,
        job_id: str,
        store: IncidentStore,
        registry: JobRegistry,
        trace: Trace,
        now: Callable[[], datetime],
        status_of: Callable[[str], str],
        workers_of: Callable[[str], Mapping[int, int]],
    ) -> None:
        self.job_id = job_id
        self.trace = trace
        self._store = store
        self._registry = registry
        self._now = now
        self._status_of = status_of
        self._workers_of = workers_of
        self._closed: dict[str, IncidentSeen] = {}
        self._ended: dict[str, str] = {}
        self._read: tuple[AttemptSeen, ...] = ()
        self._seen: tuple[IncidentSeen, ...] = ()
        self._read_again_at = now()
        self.started_at = now()
        self.act = "starting"

    def picture(self, *, fresh: bool = False) -> DemoState:
        """Everything; the registry as it is now where it must be `fresh`, else as it was at most `READ_EVERY` ago."""
        steps = self.trace.read()
        if fresh or self._now() >= self._read_again_at:
            self._read, self._seen = self._attempts(), self._incidents()
            self._read_again_at = self._now() + READ_EVERY
        attempts = self._read
        workers = self._workers_of(attempts[-1].name) if attempts else {}
        return DemoState(
            started_at=self.started_at,
            at=self._now(),
            act=self.act,
            attempts=attempts,
            workers=tuple(WorkerSeen(rank=rank, pid=pid, state=process_state(pid)) for rank, pid in workers.items()),
            steps=steps,
            incidents=self._seen,
        )

    def _attempts(self) -> tuple[AttemptSeen, ...]:
        """All attempts in order; the first appears with the first event about the run."""
        try:
            return tuple(self._attempt(item) for item in self._registry.attempts(self.job_id))
        except UnknownEntity:
            return ()

    def _incidents(self) -> tuple[IncidentSeen, ...]:
        """The Job's Incidents, oldest first. Closed ones do not change any more and are read once."""
        seen = []
        for incident in reversed(self._store.list_for_job(self.job_id, limit=MAX_INCIDENTS)):
            if incident.incident_id not in self._closed:
                # Read again in one strongly consistent piece: an index row may be older than the timeline.
                fresh = self._store.load(incident.incident_id).incident
                lines = self._store.timeline(incident.incident_id)
                entry = _incident(fresh, lines, now=self._now())
                if not fresh.is_open and any(line.rule == "notified" for line in lines):
                    self._closed[incident.incident_id] = entry
                seen.append(entry)
            else:
                seen.append(self._closed[incident.incident_id])
        return tuple(seen)

    def _status(self, attempt: str) -> str:
        """The platform's word; asked for only until it is the last one."""
        status = self._ended.get(attempt) or self._status_of(attempt)
        if status in FINAL:
            self._ended[attempt] = status
        return status

    def _attempt(self, attempt: Attempt) -> AttemptSeen:
        steps = self.trace.range_of(attempt.name)
        return AttemptSeen(
            name=attempt.name,
            number=attempt.number,
            status=self._status(attempt.name),
            resumed_from=_known(attempt.resume_step),
            skips=tuple((window.from_step, window.to_step) for window in attempt.skips),
            first_step=steps[0] if steps else None,
            last_step=steps[1] if steps else None,
            last_good_step=self.trace.last_good_step(attempt.name),
        )


def _incident(incident: Incident, lines: tuple[TimelineEntry, ...], *, now: datetime) -> IncidentSeen:
    book = ledger_of(incident, size=JobSize(), prices=NO_PRICES, now=now)
    ask: dict[str, Any] | None = None
    if incident.halt.ask is not None:
        ask = {"outcome": incident.halt.ask.outcome, "step": incident.halt.ask.step, "why": incident.halt.ask.why}
    return IncidentSeen(
        incident_id=incident.incident_id,
        fault=incident.fault.value,
        phase=incident.phase.value,
        outcome=incident.outcome,
        opened_at=incident.opened_at,
        closed_at=incident.closed_at,
        ask=ask,
        tries=tuple(item.name for item in incident.resubmission.tries),
        mttd_s=_known(book.mttd_s),
        mttr_s=_known(book.mttr_s),
        steps_lost=_known(book.steps_lost),
        steps_saved=_known(book.steps_saved),
        lines=tuple(Line(at=line.at, phase=line.phase.value, rule=line.rule, text=line.text) for line in lines),
    )


def _known(quantity: Maybe[T]) -> T | None:
    return quantity.value if isinstance(quantity, Known) else None


def process_state(pid: int) -> str:
    """running, frozen, dead or gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "gone"
    # The name in parentheses may itself hold spaces and parentheses: the state follows the last one.
    return _STATES.get(stat.rpartition(")")[2].split()[0], "running")
