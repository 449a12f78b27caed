"""Gathers what the view shows: the registry's Job and Incidents, the workers' own notes, the processes' states."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
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
from localcloud.demo.story import AttemptSeen, IncidentSeen, Line, StepSeen
from localcloud.demo.view import DemoState, WorkerSeen

T = TypeVar("T")

MAX_INCIDENTS = 50
# Reading the registry costs the processor that the run and its recovery also need.
READ_EVERY = timedelta(milliseconds=500)
FINAL = frozenset({"Completed", "Failed", "Stopped"})
# /proc/<pid>/stat's third field. Source: proc_pid_stat(5)
_STATES = {"T": "frozen", "t": "frozen", "Z": "dead", "X": "dead"}


class Trace:
    """All steps of all attempts so far, in the order they were read, as the workers wrote them down: one file per
    attempt, one JSON line per step, read as they grow.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.steps: list[StepSeen] = []

    def read(self) -> list[StepSeen]:
        """Read what was written since the last call; returns all steps. Half a line is left for later."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                fresh = file.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            self.steps.extend(_step(line, path.stem) for line in whole.splitlines())
        return self.steps

    def range_of(self, attempt: str) -> tuple[int, int] | None:
        """First and last step of an attempt; None while it has none."""
        steps = [item.step for item in self.steps if item.attempt == attempt]
        return (min(steps), max(steps)) if steps else None

    def last_good_step(self, attempt: str) -> int | None:
        """The last step of an attempt whose loss was finite."""
        return max(
            (item.step for item in self.steps if item.attempt == attempt and math.isfinite(item.loss)), default=None
        )


def _step(line: bytes, attempt: str) -> StepSeen:
    wire = json.loads(line)
    return StepSeen(
        attempt=attempt,
        number=int(wire["attempt_number"]),
        step=int(wire["step"]),
        exact=str(wire["loss"]),
        at=datetime.fromtimestamp(float(wire["at"]), UTC),
    )


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
