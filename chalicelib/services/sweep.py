"""The minute sweep: finds what lost events and lost wakes left behind. Level-triggered and safe to repeat."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from chalicelib.domain.errors import RecoveryError, Skip, VersionConflict
from chalicelib.domain.failure_reasons import classify_failure_reason
from chalicelib.domain.faults import FaultClass
from chalicelib.domain.incidents import Incident, Phase, execution_name
from chalicelib.domain.jobs import Job
from chalicelib.domain.known import Known
from chalicelib.domain.observations import STALLED, AttemptStatus, AttemptView
from chalicelib.domain.signals import Signal, SignalKind, SignalSource, ended_job_key
from chalicelib.ports import Clock, Executions, IncidentStore, JobRegistry, Mailbox, Scheduler
from chalicelib.services.intake import Intake
from chalicelib.services.outcome import Outcome, What

# An execution that was started this recently may not be listed yet (Lambda's list is eventually consistent) [I].
START_GRACE = timedelta(seconds=60)
# Forty beats of 15 s (rekindle/monitor): a network that is away for a while is no news, ten minutes of silence are.
SILENT_AFTER = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """One sweep's figures; `stuck` feeds the alarm on stuck executions."""

    jobs: int = 0
    unread: int = 0
    reopened: int = 0
    restarted: int = 0
    woken: int = 0
    stuck: int = 0
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Re-reads active Jobs and looks for open Incidents that nobody works on."""

    store: IncidentStore
    registry: JobRegistry
    scheduler: Scheduler
    mailbox: Mailbox
    executions: Executions
    intake: Intake
    clock: Clock

    def run(self) -> Swept:
        """One pass. A Job or Incident that cannot be read is counted and left for the next minute."""
        swept = self._jobs()
        return self._incidents(swept)

    def _jobs(self) -> Swept:
        seen = unread = 0
        outcomes: list[Outcome] = []
        for job in self.registry.active():
            if job.open_incident is not None:
                continue
            seen += 1
            try:
                signal = self._trouble_of(job)
                if signal is not None:
                    outcomes.append(self.intake.receive(signal))
            except Skip:
                continue
            except RecoveryError:  # one Job that cannot be read must not leave all others unswept
                unread += 1
        opened = sum(outcome.what is What.OPENED for outcome in outcomes)
        return Swept(jobs=seen, unread=unread, reopened=opened, outcomes=tuple(outcomes))

    def _trouble_of(self, job: Job) -> Signal | None:
        """What an event that got lost would have said: the platform's state first, then the run's own heartbeat."""
        view = self.scheduler.describe(job.current_attempt)
        ended = signal_from_state(job, view, now=self.clock.now())
        if ended is not None or view.status is not AttemptStatus.RUNNING or not job.mailbox:
            return ended
        signal = signal_from_beat(job, self.mailbox.beat(job, view), now=self.clock.now())
        return None if signal is None or self._is_with_a_person(job) else signal

    def _is_with_a_person(self, job: Job) -> bool:
        """The newest Incident about this very attempt was handed over or cancelled: a person has it in hand."""
        newest = self.store.list_for_job(job.job_id, limit=1)
        if not newest or newest[0].attempt != job.current_attempt:
            return False
        return newest[0].phase is Phase.HANDED_OVER or newest[0].outcome == "order.cancel"

    def _incidents(self, swept: Swept) -> Swept:
        now = self.clock.now()
        running: frozenset[str] | None = None
        restarted = woken = stuck = 0
        for incident, look_by in self.store.list_open():
            if running is None:
                running = self.executions.running()  # one listing per sweep, and only when something is open
            if now - incident.opened_at < START_GRACE:
                continue
            if execution_name(incident.incident_id, incident.generation) not in running:
                stuck += 1
                restarted += self._restart(incident)
            elif look_by is not None and look_by < now:
                stuck += 1
                woken += self._wake(incident)
        return Swept(
            jobs=swept.jobs,
            unread=swept.unread,
            reopened=swept.reopened,
            outcomes=swept.outcomes,
            restarted=restarted,
            woken=woken,
            stuck=stuck,
        )

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


def signal_from_state(job: Job, view: AttemptView, *, now: datetime) -> Signal | None:
    """The Signal that the platform's own event would have been, had it arrived; None while the run is well.

    The dedupe key is that of the event, so event and sweep count as one fact.
    """
    if not view.status.has_ended:
        return None
    status, fault = _trouble(view)
    return Signal(
        kind=SignalKind.TRAINING_JOB_STATE,
        source=SignalSource.SWEEP,
        occurred_at=view.ended_at or now,
        dedupe_key=ended_job_key(view.name, status),
        summary=f"{view.name} is {status}: {view.failure_reason or view.detail}"[:400],
        job_id=job.job_id,
        attempt=view.name,
        fault=fault,
        triggers=fault is not None,
        evidence={"status": status, "failure_reason": view.failure_reason[:1024], "found_by": "sweep"},
    )


def signal_from_beat(job: Job, view: AttemptView, *, now: datetime) -> Signal | None:
    """What the monitor's own event would have said, read from its heartbeat; None while the run is well.

    Monitor events are best effort: a stall or a non-finite loss whose event got lost must not go unseen. A heartbeat
    that has stopped altogether while the platform says "running" is told, not acted on: the mailbox may be what fails.
    """
    what, fault, kind = "", FaultClass.UNCLEAR, SignalKind.SILENT
    if view.loss_state in ("nan", "inf"):
        what, fault, kind = f"loss is {view.loss_state}", FaultClass.NON_FINITE, SignalKind.STATE_REREAD
    elif view.work == STALLED:
        what, fault, kind = "no step is being made", FaultClass.HANG, SignalKind.STALL
    elif view.beat_at is not None and view.work != "finished" and now - view.beat_at >= SILENT_AFTER:
        what = f"no heartbeat since {view.beat_at:%H:%M:%S}"
    if not what:
        return None
    step = view.last_step.value if isinstance(view.last_step, Known) else None
    evidence = {"found_by": "sweep", "status": view.status.value}
    return Signal(
        kind=kind,
        source=SignalSource.SWEEP,
        occurred_at=view.beat_at or now,
        dedupe_key=f"beat:{view.name}:{kind}:{view.loss_state}:{step}"[:200],
        summary=f"{view.name}: {what}, says its heartbeat at step {step}",
        job_id=job.job_id,
        attempt=view.name,
        fault=fault,
        # For a hang the step is where it is stuck. For a non-finite loss it would be no onset: the look finds that.
        evidence={**evidence, "step": step} if fault is FaultClass.HANG and step is not None else evidence,
    )


def _trouble(view: AttemptView) -> tuple[str, FaultClass | None]:
    match view.status:
        case AttemptStatus.FAILED:
            return "Failed", classify_failure_reason(view.failure_reason).fault
        case AttemptStatus.EXPIRED:
            return "Stopped", FaultClass.PLANNED_END
        case AttemptStatus.GONE:
            return "Gone", FaultClass.JOB_MISSING
        case AttemptStatus.COMPLETED:
            return "Completed", None
        case _:
            return "Stopped", None
