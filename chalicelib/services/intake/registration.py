"""Whose run a Signal is about; runs that join by their tags or their comment; attempts that others have started."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from chalicelib.domain.model.errors import NotOurs, Permanent, RecoveryError, UnknownEntity
from chalicelib.domain.model.incident import STOPPED_BY_ORDER
from chalicelib.domain.model.incident_parts import Try
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Unknown
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.model.start_view import is_another_run
from chalicelib.domain.model.urgency import Severity
from chalicelib.domain.resume.resume_point import is_attempt_name
from chalicelib.ports.clock import Clock
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.notices import Announcer, Notice
from chalicelib.ports.platforms import DiscoveredJob, Mailbox, Schedulers
from chalicelib.services.intake.ownership import Ownership, may_be_another_jobs
from chalicelib.services.intake.remembered_names import UnprotectedNames

PLATFORM_STATES: Final = frozenset({SignalKind.ATTEMPT_STATE})  # the platform's own words
_LATE_ANSWERS: Final = 3  # Incidents of a Job that are looked through for an order whose answer they did not wait for
_MAILBOX_TAKEN: Final = "its mailbox is passed over: another user's protected run has it"
_JOB_TAKEN: Final = "its tag rekindle:job is passed over: that Job runs under another role"
_SHARED: Final = (
    "it shares {place} with {others}: whose a checkpoint in a shared place is cannot be told, and "
    "one that dies is left to a person. Give each run a place of its own"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Finds and registers Jobs and Attempts. Every path is safe to repeat."""

    registry: JobRegistry
    store: IncidentStore
    scheduler: Schedulers
    mailbox: Mailbox
    clock: Clock
    announcer: Announcer | None = None
    unprotected: UnprotectedNames = field(default_factory=UnprotectedNames)

    @property
    def _ownership(self) -> Ownership:
        return Ownership(registry=self.registry, scheduler=self.scheduler)

    def lives(self, job: Job) -> bool:
        return self._ownership.lives(job)

    def job_of(self, signal: Signal) -> Job | None:
        """The Job a Signal concerns; None for a cluster's own Signal. Registers a tagged run on its first event."""
        if signal.job_id is not None:
            try:
                return self._adopted(self._still_its_own(self.registry.get(signal.job_id), signal), signal)
            except UnknownEntity:
                if signal.attempt is None:
                    raise NotOurs("unknown job") from None
        if signal.attempt is not None:
            job_id = self.registry.job_of_attempt(signal.attempt)
            if job_id is not None:
                return self._still_its_own(self.registry.get(job_id), signal)
            if self._is_stranger(signal, signal.attempt):
                raise NotOurs("a name that was never protected")
            if not self._may_ask(signal):
                raise NotOurs("too many unknown names in this minute: not looked up")
            return self._discover(signal.attempt)
        if signal.cluster is None:
            raise NotOurs("names no job and no cluster")
        return None

    def _is_stranger(self, signal: Signal, attempt: str) -> bool:
        """Otherwise a role that may put events on the bus could make us ask the platform about any name repeatedly."""
        if signal.kind in PLATFORM_STATES and signal.source is not SignalSource.SWEEP:
            self.unprotected.forget(attempt)
        return self.unprotected.knows(attempt, now=self.clock.now())

    def _may_ask(self, signal: Signal) -> bool:
        return signal.kind in PLATFORM_STATES or self.unprotected.may_ask(now=self.clock.now())

    def _still_its_own(self, job: Job, signal: Signal) -> Job:
        """Raises: NotOurs, after people were notified, for a new job that has the name of a known one."""
        platform = self.scheduler.of(job.platform)
        if not platform.platform.names_recur or signal.kind not in PLATFORM_STATES or signal.attempt != job.job_id:
            return job
        try:
            found = platform.discover(signal.attempt)
        except RecoveryError:
            return job  # an execution that acts looks again, and needs to see it
        if found is None or not is_another_run(
            found.name, found.created_at, job_id=job.job_id, created_at=job.created_at
        ):
            return job
        self.registry.deactivate(job.job_id, ended_at=self.clock.now())
        at = f"{found.created_at:%Y-%m-%d %H:%M} UTC"
        self._notify(
            token=f"another-run:{job.job_id}:{found.created_at.isoformat()}",
            title=f"{found.title or found.name} is not protected",
            text=f"{found.name}, submitted at {at}, has the number of a job that was protected before (submitted at "
            f"{job.created_at:%Y-%m-%d %H:%M} UTC), as if its cluster was made again under its old name. It is left "
            "alone, and gets nothing of the old one's. Submitted once more it has a number of its own; where many "
            "are taken, set FirstJobId in slurm.conf beyond the old ones, or give the cluster another name.",
            job_id=job.job_id,
        )
        raise NotOurs("another run has the number of a Job that is over")

    def _adopted(self, job: Job, signal: Signal) -> Job:
        attempt = signal.attempt
        if attempt is None or attempt == job.current_attempt or self._is_stranger(signal, attempt):
            return job
        if self.registry.job_of_attempt(attempt) is not None or not self._may_ask(signal):
            return job
        found = self._find(attempt)
        if found is None:
            return job
        if found.job_id is None:
            found = self._ownership.as_declared(found)
        return (
            self.adopt(job, found) if found.job_id == job.job_id and self._ownership.is_of_its_user(found, job) else job
        )

    def _find(self, attempt: str) -> DiscoveredJob | None:
        """What asks us for protection under this name; who does not is remembered as a stranger. Raises: NotOurs."""
        try:
            found = self.scheduler.of_name(attempt).discover(attempt)
        except NotOurs:
            self.unprotected.add(attempt, now=self.clock.now())
            raise
        if found is None:
            self.unprotected.add(attempt, now=self.clock.now())
        return found

    def _discover(self, attempt: str) -> Job:
        found = self._find(attempt)
        if found is None:
            raise NotOurs("no rekindle:policy tag")
        beside = self._lives_beside(found)
        if beside is not None:
            return beside
        found = self._ownership.as_declared(found)
        if found.job_id is not None:
            try:
                tagged = self.registry.get(found.job_id)
                if self._ownership.is_of_its_user(found, tagged):
                    return self.adopt(tagged, found)
                found = replace(found, job_id=None, limits=(*found.limits, _JOB_TAKEN))
            except UnknownEntity:
                pass  # tagged as a clone of a Job that this table has never held: protect it as its own
        else:
            waiting = self._waiting_for(found)
            if waiting is not None:
                return waiting
        return self.register(found)

    def _lives_beside(self, found: DiscoveredJob) -> Job | None:
        """The Job of which an attempt of ours lives, and of which `found` is another: by its tag, the id that its
        environment declares, or, where neither says anything and no other Job shares it, its mailbox. On a cluster:
        `Ownership.is_retry_of`.

        It is not registered: the Job's Incident makes ours end first, and takes it for the new attempt.
        """
        named, is_on_a_cluster = found.job_id or found.declared_job, self._ownership.checks_users(found)
        if named and not is_on_a_cluster:
            candidates = tuple(self.registry.known((named,)).values())
        elif found.mailbox and not named:
            candidates = tuple(job for job in self.registry.active() if job.place.mailbox == found.mailbox)
            if is_on_a_cluster:
                candidates = tuple(job for job in candidates if self._ownership.is_retry_of(found, job))
        else:
            return None
        if len(candidates) != 1 or not candidates[0].active:
            return None
        job = candidates[0]
        if (
            found.place != job.place
            or found.name == job.current_attempt
            or not self._ownership.is_of_its_user(found, job)
        ):
            return None
        current = self.current(job)
        is_ours = current is not None and current.incident_id is not None
        return job if is_ours and self._ownership.lives(job) else None

    def is_attempt_of(self, name: str, job: Job) -> bool:
        """It is registered as one, or shows the Job's tag, or its mailbox, under the Job's own role. What an event says
        of it proves nothing: any job could name this Job in one.
        """
        if self.registry.job_of_attempt(name) == job.job_id:
            return True
        found = self.scheduler.of(job.platform).find(name)
        if found is None or not self._ownership.is_of_its_user(found, job):
            return False
        if self._ownership.checks_users(found):
            return self._ownership.is_retry_of(found, job)
        if found.job_id == job.job_id:
            return True
        return bool(job.place.mailbox) and found.place == job.place and not self._may_be_another_jobs(found, job)

    def _may_be_another_jobs(self, found: DiscoveredJob, job: Job) -> bool:
        return may_be_another_jobs(found, job, self.registry, self.mailbox)

    def _waiting_for(self, found: DiscoveredJob) -> Job | None:
        """The Job that is being recovered and of which an untagged run is an attempt, by its mailbox or, where it has
        none, by its name: a person has resubmitted it.

        Its Incident finds the run, and takes it for the new attempt; a Job of its own would have two runs recovered.
        """
        if self._ownership.checks_users(found):
            return None
        mailbox = found.place.mailbox
        recovering = (job for job in self.registry.active() if job.open_incident is not None)
        for job in recovering:
            is_its = mailbox == job.place.mailbox if mailbox else is_attempt_name(found.name, job.name)
            if is_its and not self._may_be_another_jobs(found, job):
                return job if self._ownership.is_of_its_user(found, job) else None
        return None

    def adopt(self, job: Job, found: DiscoveredJob) -> Job:
        """A run tagged as an attempt of `job` that we did not (or do not know to have) submit ourselves.

        While an Incident is open its own workflow registers what it submits; otherwise a person has resubmitted the
        Job by hand, or an Incident was closed before its order was answered, and that attempt is the one to protect
        now. An older run than the current attempt is history, and so is one from before an order that the Job be
        stopped for good: that order was about it as well.
        """
        if job.open_incident is not None or not self._is_newer(found, job):
            return job
        if job.halted_by and self._was_there_at_the_stop(found, job):
            return job
        restarts = self._restarts(job, found)
        if restarts is None and job.active and self._ownership.will_train(job):
            return job  # a second attempt beside it: the intake tells of the two
        now = self.clock.now()
        current = self.current(job)
        attempt = Attempt(
            job_id=job.job_id,
            number=job.attempt_number + max(1, restarts or 1),
            name=found.name,
            submitted_at=max(found.created_at, job.attempt_started_at),
            resume_step=Unknown("it was given no resume step"),
            skips=current.skips if current is not None else (),
        )
        attempt = self._as_ordered(attempt)
        self._admit(job, attempt, now)
        return self.registry.add_attempt(job, attempt, now=now)

    def _was_there_at_the_stop(self, found: DiscoveredJob, job: Job) -> bool:
        """It was submitted before the order came that stopped the Job for good."""
        for incident in self.store.list_for_job(job.job_id, limit=_LATE_ANSWERS):
            if incident.outcome == STOPPED_BY_ORDER:
                orders = [signal.occurred_at for signal in incident.signals if signal.kind is SignalKind.ORDER_STOP]
                return found.created_at <= max(orders, default=incident.opened_at)
        return False

    def _as_ordered(self, attempt: Attempt) -> Attempt:
        """The same with what it was ordered with, where an Incident of ours ordered it and closed before the answer
        came: its budget, and where it resumes, are the ones of that order.
        """
        for incident in self.store.list_for_job(attempt.job_id, limit=_LATE_ANSWERS):
            pending = incident.resubmission.pending
            if pending is not None and pending.name == attempt.name and not pending.is_theirs:
                return _ordered(attempt, pending, incident.incident_id)
        return attempt

    def _admit(self, job: Job, attempt: Attempt, now: datetime) -> None:
        """Name it in the fence. Its environment is a copy, with an old attempt's number or none: no number admits it.

        Before it is registered, so that its next event repairs a crash in between.
        """
        older = [earlier.name for earlier in self.registry.attempts(job.job_id) if earlier.name != attempt.name]
        with suppress(Permanent):  # a mailbox that cannot be used must not keep the run from being protected
            self.mailbox.fence(job, attempt=attempt.name, number=attempt.number, superseded=older, now=now)

    def register(self, found: DiscoveredJob) -> Job:
        """Protect a run from now on. The Job's id is the one that the run's environment declares, else the first
        attempt's name. Idempotent.
        """
        asked, found = found, self._ownership.as_declared(found)
        job_id = found.job_id or found.name
        if asked.job_id is None and found.job_id is not None:
            with suppress(UnknownEntity):
                return self.adopt(self.registry.get(job_id), found)
        owner = self._of_earlier_start(found)
        if owner is not None:
            return self.adopt(owner, found)
        if self._ownership.is_taken(found, job_id):
            found = replace(found, mailbox="", limits=(*found.limits, _MAILBOX_TAKEN))
        elif beside := self._ownership.shares_with(found, job_id):
            found = replace(found, limits=(*found.limits, _SHARED.format(place=found.mailbox, others=beside)))
        job = Job(
            job_id=job_id,
            name=found.title or found.name,
            platform=found.platform,
            cluster=found.cluster,
            policy_name=found.policy_name,
            created_at=found.created_at,
            current_attempt=found.name,
            attempt_number=found.number,
            attempt_started_at=found.created_at,
            mailbox=found.mailbox,
            checkpoints=found.checkpoints,
            watch=found.watch,
            limits=found.limits,
            size=found.size,
        )
        first = Attempt(job_id=job_id, number=found.number, name=found.name, submitted_at=found.created_at)
        stored = self.registry.register(job, first)
        if stored is job and job.limits:
            self._tell_limits(job)
        return stored

    def _of_earlier_start(self, found: DiscoveredJob) -> Job | None:
        """The Job that an earlier start of the same submission is an attempt of. A submission is one run's, whichever
        of its starts is heard of first; two Jobs would recover it twice, and each would know half of its checkpoints.

        None for one of another place, or without a mailbox after the Job's end: a cluster that is created again under
        its old name gives old names to new submissions (Platform.names_recur).
        """
        for name in self.scheduler.of(found.platform).earlier_starts(found.name):
            job_id = self.registry.job_of_attempt(name)
            if job_id is not None:
                job = self.registry.get(job_id)
                is_its = job.place == found.place and (job.active or bool(job.place.mailbox))
                return job if is_its else None
        return None

    def _tell_limits(self, job: Job) -> None:
        """Once, while the person who submitted the run may be there to fix it; it is also stored on the Job."""
        self._notify(
            token=f"registered:{job.job_id}",
            title=f"{job.name} is protected, with limits",
            text="\n".join([f"{job.job_id} ({job.name}):", *(f"- {limit}" for limit in job.limits)]),
            job_id=job.job_id,
        )

    def _notify(self, *, token: str, title: str, text: str, job_id: str) -> None:
        if self.announcer is None:
            return
        notice = Notice(
            token=token,
            severity=Severity.WARNING,
            title=title,
            text=text,
            incident_id="",
            job_id=job_id,
            at=self.clock.now(),
        )
        with suppress(RecoveryError):  # a message that is lost must not keep the run from being protected
            self.announcer.announce(notice)

    def _restarts(self, job: Job, found: DiscoveredJob) -> int | None:
        return self.scheduler.of(job.platform).restarts_between(job.current_attempt, found.name)

    def _is_newer(self, found: DiscoveredJob, job: Job) -> bool:
        """True for a run that came after the Job's current attempt."""
        restarts = self._restarts(job, found)
        return restarts > 0 if restarts is not None else found.created_at > job.attempt_started_at

    def current(self, job: Job) -> Attempt | None:
        return next(
            (attempt for attempt in self.registry.attempts(job.job_id) if attempt.name == job.current_attempt), None
        )


def _ordered(attempt: Attempt, order: Try, incident_id: str) -> Attempt:
    return replace(
        attempt,
        number=max(attempt.number, order.number),
        incident_id=incident_id,
        resume_step=order.resume_step,
        went_back=order.went_back,
    )
