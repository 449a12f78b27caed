"""The minute sweep: finds what lost events and lost wakes left behind. Level-triggered and safe to repeat.

What it asks of AWS is counted in docs/sweep.md. In short: one listing of the states that changed, GetMetricData for 500
metrics at a time, and single reads only for Jobs that one of the two, or their turn, points at.
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

from chalicelib.domain.claims.alerts import left_by_alerts_alone
from chalicelib.domain.claims.silence import TOGETHER, is_silence
from chalicelib.domain.model.errors import RecoveryError, Retryable, Skip, VersionConflict
from chalicelib.domain.model.incident import Incident, Phase, execution_name
from chalicelib.domain.model.job import PLAN_IGNORED, AlarmMode, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.signal import Signal
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import Executions, IncidentStore
from chalicelib.ports.jobs import JobListing, JobRegistry, Saves
from chalicelib.ports.platforms import Mailbox, Schedulers
from chalicelib.ports.sweep import Metrics, Series, SweepMark, SweepMarks
from chalicelib.services.intake.ended_attempt import signal_from_state
from chalicelib.services.intake.intake import Intake
from chalicelib.services.intake.known_trouble import LEFT_ALONE, is_known, is_new_poison
from chalicelib.services.intake.missed_signals import (
    BEGAN_BELOW,
    SILENT_AFTER,
    gone_quiet,
    never_in_rhythm,
    signal_from_count,
    signal_from_heartbeat,
    signal_from_metrics,
    signal_from_saves,
    signal_from_start,
    silence,
)
from chalicelib.services.reporting.alarms import Alarms
from chalicelib.services.reporting.job_metrics import (
    METRICS_WINDOW,
    MONITOR_WINDOW,
    metric_queries,
    monitor_needs_asking,
    readings_of,
)
from chalicelib.services.sweep.clusters import SweepClusters
from chalicelib.services.sweep.figures import SweepFigures, SweepTally
from chalicelib.services.sweep.round import SweepRound, chunks, next_round
from chalicelib.services.sweep.unheard import HISTORY, MAX_ASKED, UnheardAttempts
from rekindle.protocol.signals import FaultClass

_LOG = logging.getLogger(__name__)

# An execution that was started this recently may not be listed yet (Lambda's list is eventually consistent) [I].
START_GRACE = timedelta(seconds=60)
# The function has 55 s (.chalice/config.json); what is left is for the call under way and the mark.
BUDGET = timedelta(seconds=40)
# How far back a listing of states reaches beyond the time it must cover: clocks differ, and lists lag.
LISTING_OVERLAP = timedelta(minutes=10)
CHUNK: Final = 500  # Jobs whose metrics are read and held at once
METRICS_A_CALL: Final = 500  # Source: CloudWatch API reference, GetMetricData
AHEAD: Final = 8  # Jobs that each reader may be ahead of the time's check; one in six of them needs a read

# A Job's turn comes once in so many rounds, by its id: whatever the cheap listings miss is seen within that time.
ASK_STATE_EVERY: Final = 30
ASK_HEARTBEAT_EVERY: Final = 10
ASK_SAVES_EVERY: Final = 30
TIDY_ALARMS_EVERY: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Re-reads active Jobs and finds open Incidents that no execution works on.

    `metrics_every`: a Job's metrics are read in one of so many rounds. They are what a sweep costs (docs/sweep.md).
    `readers`: how many Jobs are read side by side; what follows from it is done one Job after the other, in order.
    """

    store: IncidentStore
    registry: JobRegistry
    scheduler: Schedulers
    listing: JobListing
    mailbox: Mailbox
    metrics: Metrics
    saves: Saves
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
        tally = SweepTally()
        until = self.clock.now() + self.budget
        self._incidents(tally)  # first: they are few, and each is a run that waits for us
        self._jobs(tally, until)
        return tally.swept()

    # ---- Jobs ------------------------------------------------------------------------------------------------------

    def _jobs(self, tally: SweepTally, until: datetime) -> None:
        """From where the last sweep stopped to the end, then from the beginning to there: each Job at most once."""
        mark = self._mark()
        first = mark.cursor
        if not first:
            mark = next_round(mark, now=self.clock.now())
        mark, is_whole = self._pass(mark, tally, until)
        if is_whole and first:
            mark = next_round(mark, now=self.clock.now())
            mark, is_whole = self._pass(mark, tally, until, stop=first)
        self._tell_silent(tally)
        if not is_whole:
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

    def _mark(self) -> SweepMark:
        try:
            return self.marks.load()
        except RecoveryError as err:
            _LOG.warning("the sweep's mark cannot be read", extra={"error": str(err)[:300]})
            return SweepMark()

    def _pass(self, mark: SweepMark, tally: SweepTally, until: datetime, stop: str = "") -> tuple[SweepMark, bool]:
        """Look at the Jobs behind the mark, up to `stop`; the mark as it then is, and whether that was all of them."""
        turn = SweepRound(number=mark.round, changed=self._changed(mark), until=until)
        try:
            with ThreadPoolExecutor(self.readers) if self.readers > 1 else nullcontext() as readers:
                for chunk in chunks(self.registry.active(after=mark.cursor), CHUNK):
                    readings = self._readings(chunk, turn, tally, readers)
                    behind = [job for job in chunk if not stop or job.job_id <= stop]
                    for index, (job, trouble) in enumerate(self._troubles(behind, turn, readings, readers)):
                        if trouble is None:
                            tally.left = len(chunk) - index
                            return mark, False
                        mark = self._met(job, trouble, mark, tally)
                    if len(behind) < len(chunk):
                        return replace(mark, cursor=stop), True
        except RecoveryError as err:  # the registry itself cannot be read further
            _LOG.warning("active Jobs cannot be listed", extra={"error": str(err)[:300]})
            tally.unread += 1
            return mark, False
        has_all = self._tell_unheard(turn, tally) and not mark.has_unread
        if not has_all and mark.last_began_at is not None:
            # The next round lists from the same moment on: what cannot be looked up or taken in yet is listed again.
            mark = replace(mark, began_at=max(mark.last_began_at, self.clock.now() - HISTORY))
        return replace(mark, cursor="", jobs=mark.met), True

    def _troubles(
        self, jobs: Sequence[Job], turn: SweepRound, readings: Mapping[str, Maybe[Series]], readers: Executor | None
    ) -> Iterator[tuple[Job, Callable[[], Signal | None] | None]]:
        """Each Job with what tells its trouble or raises, None from where the time is up. The readers are ahead."""
        for part in chunks(jobs, self.readers * AHEAD if readers else 1):
            is_late = self.clock.now() >= turn.until
            asked: list[Callable[[], Signal | None] | None] = []
            for job in part:
                ask: Callable[[], Signal | None] = partial(self._trouble_of, job, turn, readings_of(job, readings))
                if readers is not None and job.open_incident is None and not is_late:
                    ask = readers.submit(ask).result
                asked.append(None if is_late else ask)
            yield from zip(part, asked, strict=True)

    def _met(self, job: Job, trouble: Callable[[], Signal | None], mark: SweepMark, tally: SweepTally) -> SweepMark:
        tally.jobs += job.open_incident is None
        tally.attempts |= {job.job_id, job.current_attempt}  # a Job has the id of its first attempt
        if job.cluster:
            tally.clusters.setdefault(job.cluster, job.policy_name)
        is_read = job.open_incident is not None or self._one(job, trouble, tally)
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
        self, chunk: Sequence[Job], turn: SweepRound, tally: SweepTally, readers: Executor | None
    ) -> Mapping[str, Maybe[Series]]:
        """All metrics of those of these Jobs that have their turn, by the query's key."""
        now = self.clock.now()
        free = [job for job in chunk if job.open_incident is None and turn.is_turn(job, self.metrics_every)]
        readings: dict[str, Maybe[Series]] = {}
        for has_own, window in ((False, MONITOR_WINDOW), (True, METRICS_WINDOW)):
            queries = [query for job in free if job.watch.has_own_metrics is has_own for query in metric_queries(job)]
            ask = partial(self.metrics.series_of, since=now - window, until=now)
            for found in (readers.map if readers else map)(ask, chunks(queries, METRICS_A_CALL)):
                readings |= found
        tally.unknown += sum(isinstance(value, Unknown) for value in readings.values())
        return readings

    def _one(self, job: Job, trouble: Callable[[], Signal | None], tally: SweepTally) -> bool:
        """False: it could not be read or taken in now."""

        def sweep() -> None:
            self.alarms.ensure(job)
            signal = trouble()
            if signal is not None and is_silence(signal):
                tally.silent.append((job, signal))
            elif signal is not None:
                tally.outcomes.append(self.intake.receive(signal))

        return _alone(sweep, tally, "a Job cannot be swept", job_id=job.job_id)

    def _tell_silent(self, tally: SweepTally) -> None:
        """Jobs that fell silent in the same sweep make their common source the suspect: each Signal says how many."""
        for job, signal in tally.silent:
            evidence = {**signal.evidence, TOGETHER: len(tally.silent)}
            take = partial(self._receive, replace(signal, evidence=evidence), tally)
            _alone(take, tally, "a Job cannot be swept", job_id=job.job_id)

    def _receive(self, signal: Signal, tally: SweepTally) -> None:
        tally.outcomes.append(self.intake.receive(signal))

    def _tell_unheard(self, turn: SweepRound, tally: SweepTally) -> bool:
        """Take in listed attempts that no Job has registered; one that is not protected is looked up once an hour.

        False: some are left, because they cannot be listed or looked up now, or are too many for one sweep.
        """
        if self.unheard is None:
            return True
        if not isinstance(turn.changed, Known):
            return False
        listed, unheard = turn.changed.value, self.unheard

        def look_up(name: str) -> None:
            for signal in unheard.signals((name,), listed):
                self._receive(signal, tally)

        names = unheard.names(listed, known=tally.attempts)
        is_whole = len(names) < MAX_ASKED
        for name in names:
            if _alone(partial(look_up, name), tally, "an attempt cannot be looked up", attempt=name):
                unheard.looked_up(name)
            else:
                is_whole = False
        return is_whole

    def _trouble_of(self, job: Job, turn: SweepRound, readings: Mapping[str, Maybe[Series]]) -> Signal | None:
        """The signal of a lost event: from the platform's state first, then from the run's own signs of life."""
        listed = turn.changed.value.get(job.current_attempt) if isinstance(turn.changed, Known) else None
        is_moving_away = listed is not None and (listed.has_ended or listed is AttemptStatus.STOPPING)
        view: AttemptView | None = None
        if isinstance(turn.changed, Unknown) or is_moving_away or turn.is_turn(job, ASK_STATE_EVERY):
            view = self.scheduler.of(job.platform).describe(job.current_attempt)
            ended = signal_from_state(job.job_id, view, now=self.clock.now())
            if ended is not None or view.status is not AttemptStatus.RUNNING:
                return ended
        elif listed is not None and listed is not AttemptStatus.RUNNING:
            return None
        signal = self._sign_of_trouble(job, turn, readings, view) or self._overdue(job, turn)
        if signal is None:
            return self._unheard(job, turn, readings, view)
        if view is None:  # nothing is said of a run before the platform says that it trains
            view = self.scheduler.of(job.platform).describe(job.current_attempt)
            if view.status is not AttemptStatus.RUNNING:
                return signal_from_state(job.job_id, view, now=self.clock.now())
        is_over = view.is_finishing and signal.fault is not FaultClass.NON_FINITE
        return None if is_over or self._is_with_a_person(job, signal) else signal

    def _sign_of_trouble(
        self, job: Job, turn: SweepRound, readings: Mapping[str, Maybe[Series]], view: AttemptView | None
    ) -> Signal | None:
        now = self.clock.now()
        has_readings = turn.is_turn(job, self.metrics_every)
        if job.watch.has_own_metrics:
            return signal_from_metrics(job, readings, now=now) if has_readings else None
        is_asked = has_readings and monitor_needs_asking(readings, now=now)
        if not (is_asked or turn.is_turn(job, ASK_HEARTBEAT_EVERY)):
            return None
        if job.mailbox:
            seen = view or AttemptView(name=job.current_attempt, status=AttemptStatus.RUNNING)
            heartbeat = self.mailbox.heartbeat(job, seen)
            if heartbeat.heartbeat_at is not None:  # a monitor that lives judges its run itself
                signal = self._from_metrics_since(job, readings, heartbeat) or signal_from_heartbeat(
                    job, heartbeat, now=now
                )
                return signal or self._began_below(job, heartbeat)
        step, bad = readings["step"], readings["bad"]
        poisoned = signal_from_count(job, bad.value, now=now) if isinstance(bad, Known) else None
        if poisoned is not None or not isinstance(step, Known):
            return poisoned
        quiet = gone_quiet(job, step.value, now=now) if job.mailbox else None
        return silence(job, [step.value], now=now) or quiet

    def _began_below(self, job: Job, heartbeat: AttemptView) -> Signal | None:
        """An attempt of ours that a person was given while it waited to start, and that has ignored its resume plan."""
        if job.attempt_number <= 1 or not isinstance(heartbeat.first_step, Known):
            return None
        attempts = self.registry.attempts(job.job_id)
        own = next((attempt for attempt in attempts if attempt.name == job.current_attempt), None)
        signal = signal_from_start(job, heartbeat, own) if own is not None else None
        if own is None or signal is None:
            return None
        newest = self.store.list_for_job(job.job_id, limit=1)
        if not newest or newest[0].phase is not Phase.HANDED_OVER or newest[0].incident_id != own.incident_id:
            return None  # its own recovery has verified it, or a person has said that it shall be left alone
        return None if newest[0].outcome == PLAN_IGNORED else signal

    def _from_metrics_since(
        self, job: Job, readings: Mapping[str, Maybe[Series]], heartbeat: AttemptView
    ) -> Signal | None:
        """Of a run whose heartbeats have stopped: what its metrics show of the time after the newest one. Metrics that
        stop together with them are reported as silence of the heartbeats.
        """
        now, steps, bad = self.clock.now(), readings["step"], readings["bad"]
        if heartbeat.heartbeat_at is None or now - heartbeat.heartbeat_at < SILENT_AFTER:
            return None
        counted: Series = ()
        if isinstance(bad, Known):
            counted = tuple((at, count) for at, count in bad.value if at >= heartbeat.heartbeat_at)
        poisoned = signal_from_count(job, counted, now=now)
        if poisoned is not None or not isinstance(steps, Known):
            return poisoned
        went_on = tuple((at, step) for at, step in steps.value if at >= heartbeat.heartbeat_at + SILENT_AFTER)
        return gone_quiet(job, went_on, now=now, heartbeat_at=heartbeat.heartbeat_at)

    def _unheard(
        self, job: Job, turn: SweepRound, readings: Mapping[str, Maybe[Series]], view: AttemptView | None
    ) -> Signal | None:
        """Of a Job that has no monitor; the platform is asked since when it trains only where nothing was heard."""
        now = self.clock.now()
        if not job.watch.has_own_metrics or not turn.is_turn(job, self.metrics_every):
            return None
        if never_in_rhythm(job, readings, training_since=job.attempt_started_at, now=now) is None:
            return None
        view = view or self.scheduler.of(job.platform).describe(job.current_attempt)
        if view.status is not AttemptStatus.RUNNING or view.is_finishing:
            return signal_from_state(job.job_id, view, now=now)
        signal = never_in_rhythm(job, readings, training_since=view.training_since, now=now)
        return None if signal is None or self._is_with_a_person(job, signal) else signal

    def _overdue(self, job: Job, turn: SweepRound) -> Signal | None:
        if not job.mailbox or not turn.is_turn(job, ASK_SAVES_EVERY):
            return None
        saved_at = self.saves.save_times(job)
        return signal_from_saves(job, saved_at.value, now=self.clock.now()) if isinstance(saved_at, Known) else None

    def _is_with_a_person(self, job: Job, signal: Signal) -> bool:
        """The newest Incident about this very attempt was handed over, cancelled or denied: a person has it in hand."""
        newest = self.store.list_for_job(job.job_id, limit=1)
        if not newest or newest[0].attempt != job.current_attempt:
            return False
        if left_by_alerts_alone(newest[0]) or is_new_poison(newest[0], signal) or BEGAN_BELOW in signal.evidence:
            return False  # what the run itself says is new, and intake weighs it
        is_handed_over = newest[0].phase is Phase.HANDED_OVER and is_known(newest[0], signal)
        return is_handed_over or newest[0].outcome in LEFT_ALONE

    # ---- Incidents -------------------------------------------------------------------------------------------------

    def _incidents(self, tally: SweepTally) -> None:
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
            except Exception:  # as in `_alone`: the other Incidents are waiting
                tally.unread += 1
                _LOG.exception("an Incident cannot be swept", extra={"incident_id": incident.incident_id})

    def _restart(self, incident: Incident) -> bool:
        try:
            generation = self.store.next_generation(incident.incident_id, generation=incident.generation)
            self.executions.start(incident.incident_id, generation=generation)
        except VersionConflict:
            return False  # somebody else took over first
        except RecoveryError:
            return False  # the next sweep sees the new generation without an execution, and starts it
        return True

    def _wake(self, incident: Incident) -> bool:
        try:
            callback_id = self.store.callback_of(incident.incident_id)
            return callback_id is not None and self.executions.wake(callback_id, why="sweep")
        except RecoveryError:
            return False  # as above; and the other Incidents are waiting


def _alone(sweep: Callable[[], None], tally: SweepTally, problem: str, **subject: str) -> bool:
    """Whatever is wrong with one Job or attempt, even a defect of ours that only it brings out, must not leave all
    others. False: the same may work later.
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
