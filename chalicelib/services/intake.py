"""From a Signal to an Incident: whose run is it, is it news or trouble, open or join, wake."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from chalicelib.domain.diagnosis import is_stale
from chalicelib.domain.errors import DependencyUnavailable, NotOurs, Permanent, UnknownEntity
from chalicelib.domain.evidence import LOSS_FAULTS
from chalicelib.domain.incidents import Incident, Phase, incident_id_for
from chalicelib.domain.jobs import Attempt, Job, Orchestrator
from chalicelib.domain.observations import AttemptStatus
from chalicelib.domain.signals import Signal, SignalKind, SignalSource
from chalicelib.ports import (
    Clock,
    ClusterReader,
    Discovered,
    Entry,
    Executions,
    IncidentStore,
    JobRegistry,
    Joined,
    Mailbox,
    Scheduler,
)
from chalicelib.services.outcome import Outcome, What

MAX_RACES = 4  # an Incident can close and another open while we knock; more often than this in one event is a bug
HANDED_OVER_RESPITE = timedelta(hours=1)  # about what a called person needs to see and to say something
_OVER = frozenset({"Completed", "Stopped"})
_ENDED = _OVER | {"Failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Takes Signals in. Every path is safe to repeat: events are at-least-once, unordered, sometimes missing."""

    store: IncidentStore
    registry: JobRegistry
    scheduler: Scheduler
    mailbox: Mailbox
    clusters: ClusterReader
    executions: Executions
    clock: Clock

    def receive(self, signal: Signal) -> Outcome:
        """Open or join the Incident that `signal` belongs to, and wake it.

        Raises:
            NotOurs: about a run or cluster that nobody asked us to protect.
            Retryable: nothing is lost; the same event may come again.
        """
        job = self._job_of(signal)
        if job is None:
            return self._receive_for_cluster(signal)
        signal = replace(signal, job_id=job.job_id)
        if job.open_incident is not None:
            return _dropped(signal, "mere news", job) if is_mere_news(signal) else self._join(signal, job)
        return self._without_incident(signal, job)

    def cancel(self, incident_id: str, signal: Signal) -> Outcome:
        """Hand an order to one Incident by its id.

        Raises:
            UnknownEntity: no such Incident.
        """
        entry = self.store.join(incident_id, signal, now=self.clock.now())
        if entry.outcome is Joined.CLOSED:
            return Outcome(what=What.DROPPED, reason="the Incident is closed", incident_id=incident_id)
        self._wake(entry, signal)
        return _taken(entry, signal)

    # --- whose is it ---

    def _job_of(self, signal: Signal) -> Job | None:
        """The Job a Signal concerns; None for a cluster's own Signal. Registers a tagged run on its first event."""
        if signal.job_id is not None:
            try:
                return self._adopted(self.registry.get(signal.job_id), signal.attempt)
            except UnknownEntity:
                if signal.attempt is None:
                    raise NotOurs("unknown job") from None
        if signal.attempt is not None:
            job_id = self.registry.job_of_attempt(signal.attempt)
            if job_id is not None:
                return self.registry.get(job_id)
            return self._discover(signal.attempt)
        if signal.cluster is None:
            raise NotOurs("names no job and no cluster")
        return None

    def _adopted(self, job: Job, attempt: str | None) -> Job:
        if attempt is None or attempt == job.current_attempt or self.registry.job_of_attempt(attempt) is not None:
            return job
        found = self.scheduler.discover(attempt)
        return self._adopt(job, found) if found is not None and found.job_id == job.job_id else job

    def _discover(self, attempt: str) -> Job:
        found = self.scheduler.discover(attempt)
        if found is None:
            raise NotOurs("no rekindle:policy tag")
        if found.job_id is not None:
            try:
                return self._adopt(self.registry.get(found.job_id), found)
            except UnknownEntity:
                pass  # tagged as a clone of a Job that this table has never held: protect it as its own
        return self.register(found)

    def _adopt(self, job: Job, found: Discovered) -> Job:
        """A run tagged as an attempt of `job` that we did not (or do not know to have) submit ourselves.

        While an Incident is open its own workflow registers what it submits; otherwise a person has resubmitted the
        Job by hand, and that attempt is the one to protect now. An older run than the current attempt is history.
        """
        if job.open_incident is not None or found.created_at <= job.attempt_started_at:
            return job
        now = self.clock.now()
        attempt = Attempt(
            job_id=job.job_id, number=job.attempt_number + 1, name=found.name, submitted_at=found.created_at
        )
        self._admit(job, attempt, now)
        self.registry.reactivate(job.job_id)
        return self.registry.add_attempt(job, attempt, now=now)

    def _admit(self, job: Job, attempt: Attempt, now: datetime) -> None:
        """Name it in the fence. Its environment is a copy, with an old attempt's number or none: no number admits it.

        Before it is registered, so that a crash in between is mended by its next event.
        """
        older = [one.name for one in self.registry.attempts(job.job_id) if one.name != attempt.name]
        with suppress(Permanent):  # a mailbox that cannot be used must not keep the run from being protected
            self.mailbox.fence(job, attempt=attempt.name, number=attempt.number, superseded=older, now=now)

    def register(self, found: Discovered) -> Job:
        """Protect a run from now on. The Job's id is the first attempt's name. Idempotent."""
        job_id = found.job_id or found.name
        job = Job(
            job_id=job_id,
            name=found.name,
            orchestrator=Orchestrator.TRAINING_JOB,
            policy_name=found.policy_name,
            created_at=found.created_at,
            current_attempt=found.name,
            attempt_number=1,
            attempt_started_at=found.created_at,
            mailbox=found.mailbox,
            checkpoints=found.checkpoints,
            watch=found.watch,
        )
        first = Attempt(job_id=job_id, number=1, name=found.name, submitted_at=found.created_at)
        return self.registry.register(job, first)

    # --- news and trouble ---

    def _without_incident(self, signal: Signal, job: Job) -> Outcome:
        if not signal.triggers:
            return self._news(signal, job)
        if is_stale(signal, current_attempt=job.current_attempt, attempt_started_at=job.attempt_started_at):
            return _dropped(signal, "stale: about an attempt that has been succeeded", job)
        return self._open(signal, job)

    def _news(self, signal: Signal, job: Job) -> Outcome:
        """Nothing to recover. A run that is over is no longer looked after."""
        status = signal.evidence.get("status")
        if (
            signal.kind is SignalKind.TRAINING_JOB_STATE
            and status in _OVER
            and signal.attempt == job.current_attempt
            and job.active
        ):
            self._keep_end(job, AttemptStatus(str(status).lower()), signal.occurred_at)
            self.registry.deactivate(job.job_id, now=self.clock.now())
            return _dropped(signal, f"the run is over: {status}", job)
        return _dropped(signal, "news, not trouble", job)

    def _keep_end(self, job: Job, status: AttemptStatus, ended_at: datetime) -> None:
        """Write down how the current attempt ended; no look at it will come to do that."""
        current = self._current(job)
        if current is not None:
            self.registry.update_attempt(replace(current, status=status.value, ended_at=ended_at))

    def _current(self, job: Job) -> Attempt | None:
        return next((one for one in self.registry.attempts(job.job_id) if one.name == job.current_attempt), None)

    def _receive_for_cluster(self, signal: Signal) -> Outcome:
        cluster = signal.cluster or ""
        policy_name = self.clusters.policy_of(cluster)
        if policy_name is None:
            raise NotOurs("the cluster has no rekindle:policy tag")
        if not signal.triggers:
            return Outcome(what=What.DROPPED, reason="news, not trouble", signal=signal.kind.value)
        incident = self._new_incident(signal, scope=cluster, policy_name=policy_name)
        return self._knock(incident, signal)

    # --- open, join, wake ---

    def _open(self, signal: Signal, job: Job) -> Outcome:
        incident = self._new_incident(signal, scope=job.job_id, policy_name=job.policy_name)
        current = self._current(job)
        incident = replace(
            incident,
            job_id=job.job_id,
            attempt=job.current_attempt,
            attempt_number=job.attempt_number,
            # Data once found poisonous stay skipped: a later Incident's clone must not meet them again.
            skips=current.skips if current is not None else (),
        )
        for before in self.store.list_for_job(job.job_id, limit=1):
            if is_in_hand(before, signal, job, now=self.clock.now()):
                return _dropped(signal, f"a person has {before.incident_id} about this very trouble in hand", job)
            # What was saved in a bad stretch is never resumed from, also where it has healed since.
            incident = replace(incident, stretches=before.stretches)
            if before.onset_attempt == job.current_attempt and before.onset_fault not in LOSS_FAULTS:
                # The last Incident closed with this run poisoned (cancelled, say): what it saved since is no better.
                incident = replace(incident, onset_attempt=before.onset_attempt, onset_step=before.onset_step)
        return self._knock(incident, signal)

    def _new_incident(self, signal: Signal, *, scope: str, policy_name: str) -> Incident:
        now: datetime = self.clock.now()
        return Incident(
            incident_id=incident_id_for(signal, scope=scope),
            job_id=None,
            cluster=signal.cluster,
            opened_at=now,
            phase=Phase.OPEN,
            phase_entered_at=now,
            policy_name=policy_name,
        )

    def _knock(self, incident: Incident, signal: Signal) -> Outcome:
        for _ in range(MAX_RACES):
            entry = self.store.open(incident, signal, now=self.clock.now())
            if entry.outcome is not Joined.CLOSED:
                self._wake(entry, signal)
                return _taken(entry, signal)
        raise DependencyUnavailable("the Incident changed hands too often; the event will come again")

    def _join(self, signal: Signal, job: Job) -> Outcome:
        if job.open_incident is not None:
            entry = self.store.join(job.open_incident, signal, now=self.clock.now())
            if entry.outcome is not Joined.CLOSED:
                self._wake(entry, signal)
                return _taken(entry, signal)
        fresh = self.registry.get(job.job_id)
        if fresh.open_incident == job.open_incident:
            fresh = replace(fresh, open_incident=None)  # the pointer outlived its Incident; open() settles it
        return self._without_incident(signal, fresh)

    def _wake(self, entry: Entry, signal: Signal) -> None:
        """A lost wake costs one timeout, never the recovery; a lost start is healed by redelivery and the sweep."""
        if entry.outcome is Joined.OPENED or entry.callback_id is None:
            self.executions.start(entry.incident_id, generation=entry.generation)
        else:
            self.executions.wake(entry.callback_id, why=signal.kind.value)


def is_in_hand(before: Incident, signal: Signal, job: Job, *, now: datetime) -> bool:
    """True for more of what the Job's newest Incident has just left to a person: the same trouble of the same attempt.

    Each rank of a stuck run reports its own stall; one page is enough. What was cancelled stays so while the attempt
    lives, because somebody may be looking into it with a debugger; what was handed over may be told anew after a while.
    """
    if signal.source is SignalSource.OPERATOR or before.attempt != job.current_attempt or before.fault != signal.fault:
        return False
    if before.outcome == "order.cancel":
        return True
    is_fresh = before.closed_at is not None and now - before.closed_at < HANDED_OVER_RESPITE
    return before.phase is Phase.HANDED_OVER and is_fresh


def is_mere_news(signal: Signal) -> bool:
    """True for what every look re-reads anyway and nothing waits for: a job on its way to training, one more manifest.

    It is neither kept nor does it wake anybody: a busy run's own life must not cost an open Incident writes and looks.
    """
    if signal.triggers:
        return False
    if signal.kind is SignalKind.TRAINING_JOB_STATE:
        is_repair = signal.evidence.get("repairing") or signal.evidence.get("platform_restarts")
        return signal.evidence.get("status") not in _ENDED and not is_repair
    return signal.kind is SignalKind.CHECKPOINT_REPLY and signal.evidence.get("object") == "manifest"


def _taken(entry: Entry, signal: Signal) -> Outcome:
    return Outcome(
        what=What.OVERFLOWED if entry.is_full else What(entry.outcome.value),
        reason="the Incident's inbox is full" if entry.is_full else "",
        incident_id=entry.incident_id,
        job_id=signal.job_id,
        signal=signal.kind.value,
    )


def _dropped(signal: Signal, reason: str, job: Job) -> Outcome:
    return Outcome(what=What.DROPPED, reason=reason, job_id=job.job_id, signal=signal.kind.value)
