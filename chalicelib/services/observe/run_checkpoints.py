"""The checkpoints that a run may resume from: its Job's, and those of earlier Jobs of the run that it continues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.evidence import Stretch
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.model.observation import AttemptView, CheckpointView
from chalicelib.domain.run.earlier_jobs import first_step_of, marked_bad_steps, numbered_before, on_its_line
from chalicelib.domain.run.resume_point import mark_abandoned
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import Mailbox, Scheduler, Schedulers

MAX_JOBS: Final = 4  # earlier ones of a run; each costs a handful of reads


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheckpoints:
    """Reads them. Earlier Jobs are found by what they have left in the Job's mailbox."""

    registry: JobRegistry
    scheduler: Schedulers
    mailbox: Mailbox
    store: IncidentStore

    def read(
        self, job: Job, attempts: Sequence[Attempt], *, seen: Callable[[], Maybe[AttemptView]], near: Sequence[int] = ()
    ) -> tuple[CheckpointView, ...]:
        """Newest first; with a problem those on a line that was left, or that an earlier Job saved with a bad loss.

        `near` as in ports.Mailbox.

        `seen` gives the Job's current attempt; it is asked only where there are earlier Jobs.

        Raises:
            RecoveryError: they cannot be read now.
        """
        found = self.mailbox.checkpoints(job, attempts, near=near).value
        earlier_attempts = self._of_earlier_jobs(job, attempts, found)
        if earlier_attempts:
            view = seen()
            first = first_step_of(attempts, view.value if isinstance(view, Known) else None)
            attempts = (*earlier_attempts, *attempts)
            found = self.mailbox.checkpoints(job, attempts, near=near).value
            found = on_its_line(found, {attempt.name for attempt in earlier_attempts}, first)
            found = marked_bad_steps(found, self._bad_stretches(earlier_attempts))
        return mark_abandoned(found, attempts)

    def _of_earlier_jobs(
        self, job: Job, attempts: Sequence[Attempt], checkpoints: Sequence[CheckpointView]
    ) -> tuple[Attempt, ...]:
        """The attempts of earlier Jobs that wrote some of the checkpoints, before those of the Job in number.

        Only of Jobs with the same mailbox on the same platform and cluster, and of the same user: what another's run
        has saved is none of this one's, and a user that is not known is another one.
        """
        own = {attempt.name for attempt in attempts}
        strangers = dict.fromkeys(
            checkpoint.attempt for checkpoint in checkpoints if checkpoint.attempt and checkpoint.attempt not in own
        )
        owners = (self.registry.job_of_attempt(name) for name in strangers)
        names = [name for name in dict.fromkeys(owners) if name is not None and name != job.job_id][:MAX_JOBS]
        earlier = (
            [other for other in self.registry.known(names).values() if _is_earlier_job(other, job)] if names else []
        )
        if not earlier:
            return ()
        scheduler = self.scheduler.of(job.platform)
        user = _user(job, scheduler)
        return numbered_before(
            [
                attempt
                for incident in earlier
                if user is not None and _user(incident, scheduler) == user
                for attempt in self.registry.attempts(incident.job_id)
            ]
        )

    def _bad_stretches(self, earlier_attempts: Sequence[Attempt]) -> tuple[Stretch, ...]:
        """What the newest Incident of each earlier Job knows; it has taken over what those before it knew."""
        jobs = dict.fromkeys(attempt.job_id for attempt in earlier_attempts)
        newest = (incident for job_id in jobs for incident in self.store.list_for_job(job_id, limit=1))
        return tuple(stretch for incident in newest for stretch in incident.loss.stretches)


def _is_earlier_job(other: Job, job: Job) -> bool:
    return bool(job.mailbox) and other.created_at <= job.created_at and other.place == job.place


def _user(job: Job, scheduler: Scheduler) -> str | None:
    """Who submitted the Job; None where that cannot be read now."""
    try:
        found = scheduler.find(job.current_attempt)
    except RecoveryError:
        return None
    return found.user if found is not None and found.user else None
