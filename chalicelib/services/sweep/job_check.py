"""Checks one active Job for events that were lost: reads the platform's state and the run's signs of life."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chalicelib.domain.faults.lives import life_of
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.job import PLAN_IGNORED, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.run.alerts import left_by_alerts_alone
from chalicelib.domain.run.beside import two_live_signal
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry, Saves
from chalicelib.ports.platforms import Mailbox, Schedulers
from chalicelib.ports.sweep import Series
from chalicelib.services.intake.ended_attempt import signal_from_state
from chalicelib.services.intake.known_trouble import is_known, is_left_alone, is_new_poison
from chalicelib.services.intake.missed_signals import (
    BAD_WITHIN,
    BEGAN_BELOW,
    SILENT_AFTER,
    gone_quiet,
    never_in_rhythm,
    signal_from_count,
    signal_from_life,
    signal_from_metrics,
    signal_from_queue,
    signal_from_saves,
    signal_from_spot,
    signal_from_start,
    signals_from_heartbeat,
    silence,
)
from chalicelib.services.intake.newest_save import note_newest
from chalicelib.services.observe.siblings import unprotected
from chalicelib.services.reporting.job_metrics import monitor_needs_asking
from chalicelib.services.sweep.round import SweepRound
from rekindle.protocol.signals import FaultClass

# Each Job is asked once in so many rounds (see SweepRound.is_turn), so that what the cheap listings miss is found, too.
ASK_STATE_EVERY: Final = 30
ASK_HEARTBEAT_EVERY: Final = 10
ASK_SAVES_EVERY: Final = 30
RECENT: Final = 5  # Incidents of a Job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCheck:
    """Finds the signal that a Job's lost event would have been. Reads only; may be called from several threads."""

    store: IncidentStore
    registry: JobRegistry
    scheduler: Schedulers
    mailbox: Mailbox
    saves: Saves
    clock: Clock

    def signal_for(self, job: Job, sweep_round: SweepRound, readings: Mapping[str, Maybe[Series]]) -> Signal | None:
        """What intake must be told about a Job; None where all is well or a person is already responsible.

        The platform's state comes first: a run that has ended cannot also be silent. Then the run's heartbeat, metrics
        and checkpoints. `readings` holds the metrics that were read for this Job, by name.

        Raises:
            RecoveryError: a source cannot be read now.
        """
        listed = sweep_round.changed.value.get(job.current_attempt) if isinstance(sweep_round.changed, Known) else None
        view: AttemptView | None = None
        if _is_state_needed(listed, job, sweep_round):
            view = self.scheduler.of(job.platform).describe(job.current_attempt)
            ended = signal_from_state(job.job_id, view, now=self.clock.now())
            if ended is not None or view.status is not AttemptStatus.RUNNING:
                return ended or self._signal_from_queue(job, view) or self._signal_from_what_waits(job, view)
        elif listed is not None and listed is not AttemptStatus.RUNNING:
            return None
        signal = self._signal_from_run(job, sweep_round, readings, view)
        signal = signal or self._signal_from_overdue_save(job, sweep_round)
        signal = signal or self._signal_from_two_live(job, sweep_round)
        if signal is None:
            return self._signal_from_missing_metrics(job, sweep_round, readings, view)
        return self._confirmed(signal, job, view)

    def _confirmed(self, signal: Signal, job: Job, view: AttemptView | None) -> Signal | None:
        """The signal, once the platform confirms that the run trains; else what the platform shows instead.

        `view`: its current attempt, which runs; None where the platform has not been asked in this round.
        """
        if view is None:
            view = self.scheduler.of(job.platform).describe(job.current_attempt)
            if view.status is not AttemptStatus.RUNNING:
                ended = signal_from_state(job.job_id, view, now=self.clock.now())
                return ended or self._signal_from_what_waits(job, view)
        is_over = view.is_finishing and signal.fault is not FaultClass.NON_FINITE
        return None if is_over or self._is_left_to_a_person(job, signal) else signal

    def _signal_from_queue(self, job: Job, view: AttemptView) -> Signal | None:
        if job.attempt_number < 2 or view.start is None or not view.start.is_queued:
            return None
        attempts = self.registry.attempts(job.job_id)
        before = next((attempt for attempt in attempts if attempt.number == job.attempt_number - 1), None)
        signal = signal_from_queue(job, view, before, now=self.clock.now())
        return None if signal is None or self._is_left_to_a_person(job, signal) else signal

    def _signal_from_what_waits(self, job: Job, view: AttemptView) -> Signal | None:
        """Of a run that its platform will start again from what it has saved: its bad loss, or a long wait."""
        if view.status is not AttemptStatus.REPAIRING:
            return None
        signal = self._signal_from_heartbeat(job, self.mailbox.heartbeat(job, view)) if job.mailbox else None
        signal = signal or signal_from_spot(job, view, now=self.clock.now())
        return None if signal is None or self._is_left_to_a_person(job, signal) else signal

    def _signal_from_run(
        self, job: Job, sweep_round: SweepRound, readings: Mapping[str, Maybe[Series]], view: AttemptView | None
    ) -> Signal | None:
        """What the run itself shows: its own metrics, or else its heartbeat, or else the monitor's metrics."""
        now = self.clock.now()
        has_readings = sweep_round.reads_metrics(job)
        if job.watch.has_own_metrics:
            return signal_from_metrics(job, readings, now=now) if has_readings else None
        needs_heartbeat = has_readings and monitor_needs_asking(readings, now=now)
        if not (needs_heartbeat or sweep_round.is_turn(job, ASK_HEARTBEAT_EVERY)):
            return None
        if job.mailbox:
            seen = view or AttemptView(name=job.current_attempt, status=AttemptStatus.RUNNING)
            heartbeat = self.mailbox.heartbeat(job, seen)
            if heartbeat.heartbeat_at is not None:  # a monitor that still writes heartbeats judges the run itself
                signal = self._signal_after_last_heartbeat(job, readings, heartbeat)
                signal = signal or self._signal_from_heartbeat(job, heartbeat)
                signal = signal or self._signal_from_ignored_plan(job, heartbeat)
                return signal or self._signal_from_life(job, heartbeat, readings["step"])
        step, bad = readings["step"], readings["bad"]
        poisoned = signal_from_count(job, bad.value, now=now) if isinstance(bad, Known) else None
        if poisoned is not None or not isinstance(step, Known):
            return poisoned
        quiet = gone_quiet(job, step.value, now=now) if job.mailbox else None
        return silence(job, [step.value], now=now) or quiet

    def _signal_from_heartbeat(self, job: Job, heartbeat: AttemptView) -> Signal | None:
        """The worst that it shows and that is not left to a person; the last where all before it are."""
        *worse, last = signals_from_heartbeat(job, heartbeat, now=self.clock.now()) or (None,)
        return next((signal for signal in worse if signal and not self._is_left_to_a_person(job, signal)), last)

    def _signal_from_ignored_plan(self, job: Job, heartbeat: AttemptView) -> Signal | None:
        """A resubmitted attempt that started below its resume step after its Incident was handed over to a person.

        The Incident ended while the attempt was still queued, so no recovery verifies the start any more.
        """
        if job.attempt_number <= 1 or not isinstance(heartbeat.first_step, Known):
            return None
        attempts = self.registry.attempts(job.job_id)
        current = next((attempt for attempt in attempts if attempt.name == job.current_attempt), None)
        signal = signal_from_start(job, heartbeat, current) if current is not None else None
        if current is None or signal is None:
            return None
        newest = self.store.list_for_job(job.job_id, limit=1)
        if not newest or newest[0].phase is not Phase.HANDED_OVER or newest[0].incident_id != current.incident_id:
            return None  # its own recovery verified the start, or a person asked to leave the run alone
        return None if newest[0].outcome == PLAN_IGNORED else signal

    def _signal_from_life(self, job: Job, heartbeat: AttemptView, steps: Maybe[Series]) -> Signal | None:
        """A life of which no Incident knows."""
        if heartbeat.life == 0:
            return None
        known = (
            life_of(kept) or 0
            for incident in self.store.list_for_job(job.job_id, limit=RECENT)
            for kept in incident.signals
            if kept.attempt == job.current_attempt
        )
        if max(known, default=0) >= heartbeat.life:
            return None
        own = (item for item in self.registry.attempts(job.job_id) if item.name == heartbeat.name)
        came_to = next((item.last_step for item in own), Unknown("it is not registered"))
        return signal_from_life(job, heartbeat, steps.value if isinstance(steps, Known) else (), came_to)

    def _signal_after_last_heartbeat(
        self, job: Job, readings: Mapping[str, Maybe[Series]], heartbeat: AttemptView
    ) -> Signal | None:
        """For a run whose heartbeats have stopped: what its metrics show after the newest heartbeat.

        Values that are not finite count as soon as that heartbeat is older than the minutes in which they are counted.
        Metrics that stopped together with the heartbeats are reported as silence of the heartbeats, not here.
        """
        now, steps, bad = self.clock.now(), readings["step"], readings["bad"]
        if heartbeat.heartbeat_at is None or now - heartbeat.heartbeat_at < BAD_WITHIN:
            return None
        non_finite: Series = ()
        if isinstance(bad, Known):
            non_finite = tuple((at, count) for at, count in bad.value if at >= heartbeat.heartbeat_at)
        poisoned = signal_from_count(job, non_finite, now=now)
        if poisoned is not None or not isinstance(steps, Known) or now - heartbeat.heartbeat_at < SILENT_AFTER:
            return poisoned
        later_steps = tuple((at, step) for at, step in steps.value if at >= heartbeat.heartbeat_at + SILENT_AFTER)
        return gone_quiet(job, later_steps, now=now, heartbeat_at=heartbeat.heartbeat_at)

    def _signal_from_missing_metrics(
        self, job: Job, sweep_round: SweepRound, readings: Mapping[str, Maybe[Series]], view: AttemptView | None
    ) -> Signal | None:
        """A Job without a monitor whose own metrics never began. The platform is asked only where none have arrived."""
        now = self.clock.now()
        if not job.watch.has_own_metrics or not sweep_round.reads_metrics(job):
            return None
        if never_in_rhythm(job, readings, training_since=job.attempt_started_at, now=now) is None:
            return None
        view = view or self.scheduler.of(job.platform).describe(job.current_attempt)
        if view.status is not AttemptStatus.RUNNING or view.is_finishing:
            return signal_from_state(job.job_id, view, now=now)
        signal = never_in_rhythm(job, readings, training_since=view.training_since, now=now)
        return None if signal is None or self._is_left_to_a_person(job, signal) else signal

    def _signal_from_overdue_save(self, job: Job, sweep_round: SweepRound) -> Signal | None:
        """A Job that has saved no checkpoint for longer than its usual interval."""
        if not job.mailbox or not sweep_round.is_turn(job, ASK_SAVES_EVERY):
            return None
        saves = self.saves.saves(job)
        if not isinstance(saves, Known):
            return None
        if saves.value:
            note_newest(self.registry, job, max(step for _, step in saves.value))
        return signal_from_saves(job, [at for at, _ in saves.value], now=self.clock.now())

    def _signal_from_two_live(self, job: Job, sweep_round: SweepRound) -> Signal | None:
        """A run that asks for no protection, so that no event of it is taken, sends heartbeats beside ours."""
        is_turn = sweep_round.is_turn(job, ASK_SAVES_EVERY)
        scheduler = self.scheduler.of(job.platform)
        if not job.mailbox or not is_turn or scheduler.platform.checks_users:
            return None
        earlier = self.registry.attempts(job.job_id) if job.attempt_number > 1 else ()
        own = {job.current_attempt, *(attempt.name for attempt in earlier)}
        now = self.clock.now()
        name = unprotected(job, self.mailbox, own=own, ended_at=None, now=now)
        if name is None or self.registry.job_of_attempt(name) is not None or scheduler.describe(name).status.has_ended:
            return None
        return two_live_signal(job, name, now=now)

    def _is_left_to_a_person(self, job: Job, signal: Signal) -> bool:
        """The newest Incident of this attempt was handed over, cancelled or denied, and the signal says nothing new."""
        newest = self.store.list_for_job(job.job_id, limit=1)
        if not newest or newest[0].attempt != job.current_attempt:
            return False
        if left_by_alerts_alone(newest[0]) or is_new_poison(newest[0], signal) or BEGAN_BELOW in signal.evidence:
            return False  # new evidence from the run itself: intake decides
        is_handed_over = newest[0].phase is Phase.HANDED_OVER and is_known(newest[0], signal)
        return is_handed_over or is_left_alone(newest[0], signal)


def _is_state_needed(listed: AttemptStatus | None, job: Job, sweep_round: SweepRound) -> bool:
    """Whether the platform is asked about the current attempt: its listing failed, shows a change, or it is the Job's
    turn.
    """
    is_changed = listed is not None and (
        listed.has_ended or listed in (AttemptStatus.STOPPING, AttemptStatus.REPAIRING)
    )
    return isinstance(sweep_round.changed, Unknown) or is_changed or sweep_round.is_turn(job, ASK_STATE_EVERY)
