"""The sweep that runs every minute: finds Jobs and Incidents whose events or wake-ups were lost.

It is level-triggered and safe to repeat. docs/sweep.md counts its calls of AWS: one listing of the states that changed,
GetMetricData for 500 metrics at a time, and single reads for a Job only if the listing, its metrics or its turn in the
round asks for them (see job_check).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from chalicelib.domain.model.errors import RecoveryError, Retryable, Skip, VersionConflict
from chalicelib.domain.model.incident import Incident, execution_name
from chalicelib.domain.model.job import AlarmMode, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.run.silence import TOGETHER, is_silence
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import Executions, IncidentStore
from chalicelib.ports.jobs import JobListing, JobRegistry
from chalicelib.ports.sweep import Metrics, Series, SweepMark, SweepMarks
from chalicelib.services.intake.intake import Intake
from chalicelib.services.reporting.alarms import Alarms
from chalicelib.services.reporting.job_metrics import (
    METRICS_WINDOW,
    MONITOR_WINDOW,
    metric_queries,
    readings_of,
)
from chalicelib.services.reporting.outcome import Outcome
from chalicelib.services.sweep.clusters import SweepClusters
from chalicelib.services.sweep.job_check import JobCheck
from chalicelib.services.sweep.round import SweepFigures, SweepRound, chunks, next_round
from chalicelib.services.sweep.unheard import HISTORY, MAX_ASKED, UnheardAttempts

_LOG = logging.getLogger(__name__)

# An execution that was started this recently may not be listed yet (Lambda's list is eventually consistent) [I].
START_GRACE = timedelta(seconds=60)
# The function has 55 s (.chalice/config.json); what is left is for the call under way and the mark.
BUDGET = timedelta(seconds=40)
# How far back a listing of states reaches beyond the time it must cover: clocks differ, and lists lag.
LISTING_OVERLAP = timedelta(minutes=10)
CHUNK: Final = 500  # Jobs whose metrics are read and held at once
METRICS_A_CALL: Final = 500  # Source: CloudWatch API reference, GetMetricData
JOBS_PER_READER: Final = 8  # checked between two looks at the clock; about one in six of them needs a read
TIDY_ALARMS_EVERY: Final = 60  # rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Re-reads active Jobs and finds open Incidents that no execution works on.

    `metrics_every`: a Job's metrics are read in one of so many rounds. They are most of a sweep's cost (docs/sweep.md).
    `readers`: how many Jobs are read in parallel. Signals are still taken in one Job after the other, in order.
    `budget`: after this time the sweep stops and saves its cursor; the next one continues there.
    """

    store: IncidentStore
    registry: JobRegistry
    listing: JobListing
    check: JobCheck
    metrics: Metrics
    marks: SweepMarks
    alarms: Alarms
    executions: Executions
    intake: Intake
    clock: Clock
    clusters: SweepClusters | None = None
    unheard: UnheardAttempts | None = None
    budget: timedelta = BUDGET
    metrics_every: int = 1
    readers: int = 1

    def run(self) -> SweepFigures:
        """One sweep. A Job or Incident that cannot be read is counted and left for the next minute."""
        tally = SweepFigures()
        until = self.clock.now() + self.budget
        self._sweep_incidents(tally)  # first: they are few, and each is a run whose recovery has stopped
        self._sweep_jobs(tally, until)
        return tally

    # ---- Jobs ------------------------------------------------------------------------------------------------------

    def _sweep_jobs(self, tally: SweepFigures, until: datetime) -> None:
        """From the saved cursor to the end, then from the beginning to the cursor: each Job at most once."""
        mark = self._load_mark()
        start = mark.cursor
        if not start:
            mark = next_round(mark, now=self.clock.now())
        mark, is_complete = self._pass(mark, tally, until)
        if is_complete and start:
            mark = next_round(mark, now=self.clock.now())
            mark, is_complete = self._pass(mark, tally, until, stop=start)
        self._report_silent_jobs(tally)
        if not is_complete:
            tally.left = max(tally.left, mark.jobs - mark.met)
        elif not mark.cursor and (mark.alarms_token or mark.round % TIDY_ALARMS_EVERY == 0):
            mark = replace(mark, alarms_token=self.alarms.tidy(mark.alarms_token, has_shared=mark.has_shared))
        if self.clusters is not None:
            outcomes, unread = self.clusters.run(tally.clusters, number=mark.round)
            tally.outcomes += outcomes
            tally.unread += unread
        try:
            self.marks.save(mark)
        except RecoveryError as err:  # the next sweep does this one's work again, which is safe
            _LOG.warning("the sweep's mark cannot be written", extra={"error": str(err)[:300]})

    def _load_mark(self) -> SweepMark:
        try:
            return self.marks.load()
        except RecoveryError as err:
            _LOG.warning("the sweep's mark cannot be read", extra={"error": str(err)[:300]})
            return SweepMark()

    def _pass(self, mark: SweepMark, tally: SweepFigures, until: datetime, stop: str = "") -> tuple[SweepMark, bool]:
        """Sweep the Jobs after the mark, up to `stop` (empty: to the end).

        Returns the new mark, and whether all of them were swept in time.
        """
        sweep_round = SweepRound(
            number=mark.round, changed=self._changed(mark), until=until, metrics_every=self.metrics_every
        )
        try:
            with ThreadPoolExecutor(self.readers) if self.readers > 1 else nullcontext() as readers:
                for chunk in chunks(self.registry.active(after=mark.cursor), CHUNK):
                    readings = self._readings(chunk, sweep_round, tally, readers)
                    in_range = [job for job in chunk if not stop or job.job_id <= stop]
                    for index, (job, check) in enumerate(self._checks(in_range, sweep_round, readings, readers)):
                        if check is None:  # the time is up
                            tally.left = len(chunk) - index
                            return mark, False
                        mark = self._process(job, check, mark, tally)
                    if len(in_range) < len(chunk):
                        return replace(mark, cursor=stop), True
        except RecoveryError as err:  # the registry itself cannot be read further
            _LOG.warning("active Jobs cannot be listed", extra={"error": str(err)[:300]})
            tally.unread += 1
            return mark, False
        has_all = self._take_in_unregistered(sweep_round, tally) and not mark.has_unread
        if not has_all and mark.last_began_at is not None:
            # The next round lists from the same moment on: what cannot be looked up or taken in yet is listed again.
            mark = replace(mark, began_at=max(mark.last_began_at, self.clock.now() - HISTORY))
        return replace(mark, cursor="", jobs=mark.met), True

    def _checks(
        self,
        jobs: Sequence[Job],
        sweep_round: SweepRound,
        readings: Mapping[str, Maybe[Series]],
        readers: Executor | None,
    ) -> Iterator[tuple[Job, Callable[[], Signal | None] | None]]:
        """Each Job with a call that returns its signal or raises; None instead of the call once the time is up.

        With readers, the checks of a few Jobs run ahead in parallel, and the call waits for the result.
        """
        for part in chunks(jobs, self.readers * JOBS_PER_READER if readers else 1):
            is_late = self.clock.now() >= sweep_round.until
            calls: list[Callable[[], Signal | None] | None] = []
            for job in part:
                call: Callable[[], Signal | None] = partial(
                    self.check.signal_for, job, sweep_round, readings_of(job, readings)
                )
                if readers is not None and job.open_incident is None and not is_late:
                    call = readers.submit(call).result
                calls.append(None if is_late else call)
            yield from zip(part, calls, strict=True)

    def _process(self, job: Job, check: Callable[[], Signal | None], mark: SweepMark, tally: SweepFigures) -> SweepMark:
        """Take one Job in and advance the mark past it. A Job with an open Incident is only counted."""
        tally.jobs += job.open_incident is None
        tally.attempts |= {job.job_id, job.current_attempt}  # a Job has the id of its first attempt
        if job.cluster:
            tally.clusters.setdefault(job.cluster, job.policy_name)
        is_read = job.open_incident is not None or self._take_in_job(job, check, tally)
        shared = mark.has_shared or job.watch.alarms is AlarmMode.SHARED
        has_unread = mark.has_unread or not is_read
        return replace(mark, cursor=job.job_id, met=mark.met + 1, has_shared=shared, has_unread=has_unread)

    def _changed(self, mark: SweepMark) -> Maybe[Mapping[str, AttemptStatus]]:
        """States that changed since each Job was last looked at; Unknown means that every Job is to be asked for."""
        if mark.last_began_at is None:
            return Unknown("the first round asks about every Job")
        found = self.listing.changed(mark.last_began_at - LISTING_OVERLAP)
        if isinstance(found, Unknown):
            _LOG.warning("changed states cannot be listed", extra={"why": found.why[:300]})
        return found

    def _readings(
        self, chunk: Sequence[Job], sweep_round: SweepRound, tally: SweepFigures, readers: Executor | None
    ) -> Mapping[str, Maybe[Series]]:
        """The metrics, by the query's key, of those Jobs of the chunk whose metrics are due in this round."""
        now = self.clock.now()
        due = [job for job in chunk if job.open_incident is None and sweep_round.reads_metrics(job)]
        readings: dict[str, Maybe[Series]] = {}
        for has_own, window in ((False, MONITOR_WINDOW), (True, METRICS_WINDOW)):
            queries = [query for job in due if job.watch.has_own_metrics is has_own for query in metric_queries(job)]
            ask = partial(self.metrics.series_of, since=now - window, until=now)
            for found in (readers.map if readers else map)(ask, chunks(queries, METRICS_A_CALL)):
                readings |= found
        tally.unknown += sum(isinstance(value, Unknown) for value in readings.values())
        return readings

    def _take_in_job(self, job: Job, check: Callable[[], Signal | None], tally: SweepFigures) -> bool:
        """False: the Job could not be read, or its signal not taken in, now; the next round tries again."""

        def sweep() -> None:
            self.alarms.ensure(job)
            signal = check()
            if signal is not None and is_silence(signal):
                tally.silent.append((job, signal))
            elif signal is not None:
                tally.outcomes.append(self.intake.receive(signal))

        return _isolated(sweep, tally, "a Job cannot be swept", job_id=job.job_id)

    def _report_silent_jobs(self, tally: SweepFigures) -> None:
        """Take in the Jobs that fell silent. Each Signal carries their number: many at once suggest a common cause."""
        for job, signal in tally.silent:
            evidence = {**signal.evidence, TOGETHER: len(tally.silent)}
            take = partial(self._receive, replace(signal, evidence=evidence), tally)
            _isolated(take, tally, "a Job cannot be swept", job_id=job.job_id)

    def _receive(self, signal: Signal, tally: SweepFigures) -> Outcome:
        outcome = self.intake.receive(signal)
        tally.outcomes.append(outcome)
        return outcome

    def _take_in_unregistered(self, sweep_round: SweepRound, tally: SweepFigures) -> bool:
        """Look up listed attempts that belong to no registered Job, and take in those that should be protected.

        False: some are left, because they cannot be listed or looked up now, or are too many for one sweep.
        """
        if self.unheard is None:
            return True
        if not isinstance(sweep_round.changed, Known):
            return False
        listed, unheard = sweep_round.changed.value, self.unheard
        in_hand: set[str] = set()  # an Incident's, as long as that is open: it may be one to protect afterwards

        def look_up(name: str) -> None:
            for signal in unheard.signals((name,), listed):
                if self._receive(signal, tally).incident_id is not None:
                    in_hand.add(name)

        names = unheard.names(listed, known=tally.attempts)
        is_complete = len(names) < MAX_ASKED
        for name in names:
            if not _isolated(partial(look_up, name), tally, "an attempt cannot be looked up", attempt=name):
                is_complete = False
            elif name not in in_hand:
                unheard.looked_up(name)
        return is_complete

    # ---- Incidents -------------------------------------------------------------------------------------------------

    def _sweep_incidents(self, tally: SweepFigures) -> None:
        now = self.clock.now()
        running: frozenset[str] | None = None
        for incident, look_by in self.store.list_open():
            if running is None:
                running = self.executions.running()  # one listing per sweep, and only when something is open
            if now - incident.opened_at < START_GRACE:
                continue
            try:
                if execution_name(incident.incident_id, incident.generation) not in running:
                    tally.stuck += 1
                    tally.restarted += self._restart(incident)
                elif look_by is not None and look_by < now:
                    tally.stuck += 1
                    tally.woken += self._wake(incident)
            except Exception:  # as in `_isolated`: the other Incidents must still be swept
                tally.unread += 1
                _LOG.exception("an Incident cannot be swept", extra={"incident_id": incident.incident_id})

    def _restart(self, incident: Incident) -> bool:
        """Start a new execution for an Incident that has none. False: another invocation did, or it failed."""
        try:
            generation = self.store.next_generation(incident.incident_id, generation=incident.generation)
            self.executions.start(incident.incident_id, generation=generation)
        except VersionConflict:
            return False  # another sweep or an operator has started one
        except RecoveryError:
            return False  # the next sweep sees the new generation without an execution, and starts it
        return True

    def _wake(self, incident: Incident) -> bool:
        """Complete the callback that an execution has waited for too long. False: there is none, or it failed."""
        try:
            callback_id = self.store.callback_of(incident.incident_id)
            return callback_id is not None and self.executions.wake(callback_id, why="sweep")
        except RecoveryError:
            return False  # the next sweep tries again


def _isolated(sweep: Callable[[], object], tally: SweepFigures, problem: str, **subject: str) -> bool:
    """Run `sweep` for one Job or attempt; any error is logged and counted, so that the others are still swept.

    Returns False where the same may work later, True where it worked or a retry is useless.
    """
    try:
        sweep()
    except Skip:
        return True
    except RecoveryError as err:
        tally.unread += 1
        _LOG.info(problem, extra={**subject, "error": str(err)[:300]})
        return not isinstance(err, Retryable)
    except Exception:
        tally.unread += 1
        _LOG.exception(problem, extra=dict(subject))
    return True
