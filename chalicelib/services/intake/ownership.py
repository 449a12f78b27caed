"""Whose a run is, and whose the place in which it trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from chalicelib.domain.model.errors import UnknownEntity
from chalicelib.domain.model.job import Job, RunPlace
from chalicelib.domain.resume.resume_point import is_attempt_name
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import DiscoveredJob, Mailbox, Schedulers
from rekindle.protocol.wire import is_id

_MAX_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What a run was submitted with proves nothing: its role, its user, and what the platform shows do."""

    registry: JobRegistry
    scheduler: Schedulers

    def lives(self, job: Job) -> bool:
        """The Job's current attempt runs, or is queued without a hold. A stop may leave a job in the queue, held: an
        attempt that its owner submits then becomes the current one.
        """
        current = self.scheduler.of(job.platform).describe(job.current_attempt)
        return not (current.status.has_ended or current.is_held)

    def will_train(self, job: Job) -> bool:
        """The Job's current attempt runs, or is queued and waits for nodes alone: not held, and for no other job."""
        return self._trains(job.platform, job.current_attempt)

    def as_declared(self, found: DiscoveredJob) -> DiscoveredJob:
        """With the Job that its environment names, where nothing else says whose attempt it is.

        An id that no Job has becomes the run's own: its monitor signs with it. That of a Job makes the run an attempt
        of that Job only if it shares its mailbox and role, and the Job's last attempt is over; two that live are two
        runs, and the first one would be fenced from saving.
        """
        declared = found.declared_job
        if found.job_id is not None or declared in ("", found.name) or not is_id(declared):
            return found
        try:
            job = self.registry.get(declared)
        except UnknownEntity:
            return replace(found, job_id=declared)
        if job.current_attempt == found.name or self._goes_on_as(found, job):
            return replace(found, job_id=declared)
        return replace(found, declared_job="", limits=(*found.limits, _taken(declared)))

    def _goes_on_as(self, found: DiscoveredJob, job: Job) -> bool:
        if found.place != job.place or not self.is_of_its_user(found, job):
            return False
        return not self.lives(job)

    def is_of_its_user(self, found: DiscoveredJob, job: Job) -> bool:
        """It runs under the role of the Job's current attempt, where nothing in its cluster has judged that."""
        if self.checks_users(found) or found.name == job.current_attempt:
            return True
        own = self.scheduler.of(job.platform).find(job.current_attempt)
        return own is not None and own.user == found.user

    def checks_users(self, found: DiscoveredJob) -> bool:
        """The cluster has judged whose run it is already."""
        return self.scheduler.of(found.platform).platform.checks_users

    def is_taken(self, found: DiscoveredJob, job_id: str) -> bool:
        """True where what the run was submitted with names the mailbox of another owner's run. Anyone may write
        one, and we would fence and direct the run that reads that mailbox.
        """
        if not found.mailbox:
            return False
        if not self.checks_users(found):
            others = (job for job in self.registry.active() if job.job_id != job_id)
            there = (other for other in others if other.place.mailbox == found.place.mailbox)
            return any(not self.is_of_its_user(found, job) for job in there)
        for job in self.registry.active():
            if job.job_id == job_id or job.place.mailbox != found.place.mailbox:
                continue
            if job.place != found.place:
                return True
            other = self.scheduler.of(job.platform).discover(job.current_attempt)
            if other is None or other.user != found.user:
                return True
        return False

    def is_retry_of(self, found: DiscoveredJob, job: Job) -> bool:
        """Its user has submitted the Job's run once more on its cluster, after the Job's newest attempt: in the same
        mailbox, under the same name, not held, and as no link of a chain.
        """
        if not found.mailbox or found.job_id is not None or found.place != job.place or found.title != job.name:
            return False
        scheduler = self.scheduler.of(job.platform)
        own = scheduler.find(job.current_attempt)
        if own is None or own.user != found.user or found.created_at <= own.created_at:
            return False
        return scheduler.describe(found.name).will_train

    def shares_with(self, found: DiscoveredJob, job_id: str) -> str:
        """Names of other protected runs that train in its mailbox beside it; empty: none. Links of a chain do not."""
        if not found.mailbox:
            return ""
        there = list(other_jobs_in(found.place, job_id, self.registry))
        if not there or not self._trains(found.platform, found.name):
            return ""
        beside = (job.job_id for job in there if self._trains(job.platform, job.current_attempt))
        return ", ".join(islice(beside, _MAX_NAMED))

    def _trains(self, platform: str, attempt: str) -> bool:
        return self.scheduler.of(platform).describe(attempt).will_train


def other_jobs_in(place: RunPlace, job_id: str, registry: JobRegistry) -> Iterator[Job]:
    """The protected Jobs of the same mailbox and owner."""
    return (job for job in registry.active() if job.job_id != job_id and job.place == place)


def may_be_another_jobs(found: DiscoveredJob, job: Job, registry: JobRegistry, mailbox: Mailbox) -> bool:
    """It trains in a place in which another Job has trained beside `job`, and neither its tag, its name, nor the id
    that its monitor signs with tells whose attempt it is.

    Raises: Retryable: the mailbox cannot be listed now.
    """
    if found.job_id is not None or found.declared_job == job.job_id or is_attempt_name(found.name, job.name):
        return False
    if not found.mailbox:
        return False
    written = mailbox.heartbeat_times(job)  # a Job that has ended is not active any more, and may be tried again
    beside = {registry.job_of_attempt(name) for name, at in written.items() if at >= job.created_at}
    return bool(beside - {None, job.job_id}) or any(other_jobs_in(found.place, job.job_id, registry))


def _taken(declared: str) -> str:
    return (
        f"its heartbeats cannot be distinguished from another run's: its REKINDLE_JOB_ID is {declared}, a Job that has "
        "another mailbox or role, or still runs. Without that line its monitor takes the training job's own name"
    )
