"""The checkpoints from which a run may resume: its Job's own, and those of earlier Jobs of the same run.

A user may continue a run under a new Job, in the mailbox of the earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.evidence import Stretch
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.model.observation import AttemptView, CheckpointView
from chalicelib.domain.resume.checkpoint_choice import marked_ahead_of_its_run
from chalicelib.domain.resume.earlier_jobs import (
    Lived,
    begun_from,
    dated_by_its_begin,
    first_step_of,
    is_before,
    lived_at_once,
    marked_bad_steps,
    marked_shared,
    numbered_before,
    on_its_line,
    shared,
)
from chalicelib.domain.resume.resume_point import mark_abandoned
from chalicelib.ports.incidents import IncidentStore
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import Mailbox, Scheduler, Schedulers

MAX_EARLIER_JOBS: Final = 4  # of a run; each takes several reads of the registry and the store
MAX_HEARTBEATS: Final = 16  # the newest of a mailbox; each takes one read


@dataclass(frozen=True, slots=True)
class _Earlier:
    """The attempts of a run's earlier Jobs, numbered before the Job's `own`. `of_others`: the Jobs that may be another
    run's, because they lived at once. `continued_at`: by Job, the first step of what continues it.
    """

    attempts: tuple[Attempt, ...] = ()
    own: tuple[Attempt, ...] = ()
    of_others: frozenset[str] = frozenset()
    continued_at: Mapping[str, Maybe[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheckpoints:
    """Reads the checkpoints of a run. Earlier Jobs are found by the checkpoints that they left in the Job's mailbox."""

    registry: JobRegistry
    scheduler: Schedulers
    mailbox: Mailbox
    store: IncidentStore

    def read(
        self, job: Job, attempts: Sequence[Attempt], *, seen: Callable[[], Maybe[AttemptView]], near: Sequence[int] = ()
    ) -> tuple[CheckpointView, ...]:
        """The checkpoints, newest first, each with its problem where it must not be used.

        A checkpoint has a problem if the run was rolled back to before it, or if an earlier Job saved it while its
        loss was bad. `near`: see ports.platforms.Mailbox.checkpoints. `seen` returns the current attempt's view; it is
        called only where there are other Jobs of its mailbox.

        Raises:
            RecoveryError: the checkpoints, or the earlier Jobs, cannot be read now.
        """
        found = self.mailbox.checkpoints(job, attempts, near=near).value
        earlier = self._of_earlier_jobs(job, attempts, found, seen)
        if earlier.attempts:
            attempts = (*earlier.attempts, *earlier.own)
            found = self.mailbox.checkpoints(job, attempts, near=near).value
            found = on_its_line(found, {item.name: earlier.continued_at[item.job_id] for item in earlier.attempts})
            found = marked_bad_steps(found, self._bad_stretches(earlier.attempts))
            of_others = {item.name for item in earlier.attempts if item.job_id in earlier.of_others}
            found = marked_shared(found, of_others)
        return mark_abandoned(marked_ahead_of_its_run(found), attempts)

    def _of_earlier_jobs(
        self,
        job: Job,
        attempts: Sequence[Attempt],
        checkpoints: Sequence[CheckpointView],
        seen: Callable[[], Maybe[AttemptView]],
    ) -> _Earlier:
        """The earlier Jobs that wrote some of the checkpoints.

        Only Jobs of the same user, with the same mailbox on the same platform and cluster, are earlier Jobs of the run:
        another user's checkpoints are never resumed from. A user that is not known counts as another user. One that had
        not ended as this Job began is another run, unless the Job's owner has continued from it since, and one that
        began after it is no earlier one.
        """
        others = self._other_jobs(job, attempts, checkpoints)
        if not others:
            return _Earlier()
        scheduler = self.scheduler.of(job.platform)
        user = _user(job, scheduler)
        of_user = [other for other in others if user is not None and _user(other, scheduler) == user]
        if not of_user:
            return _Earlier()
        by_job = {other.job_id: self.registry.attempts(other.job_id) for other in of_user}
        own_life = _lived(attempts, checkpoints, scheduler)
        all_lived = {job_id: _lived(its, checkpoints, scheduler) for job_id, its in by_job.items()}
        created_before = {other.job_id for other in of_user if other.created_at <= job.created_at}
        lived = {
            job_id: life
            for job_id, life in all_lived.items()
            if not lived_at_once(life, own_life)
            and is_before(life, own_life, was_created_before=job_id in created_before)
        }
        of_others = shared(lived)
        shown = seen()
        view = shown.value if isinstance(shown, Known) else None
        continued_at = dict.fromkeys(lived, first_step_of(attempts, view))
        continued = self._continued_job(attempts, checkpoints, view, all_lived)
        if continued is not None and continued[0] not in lived:
            job_id, first_step = continued
            lived[job_id] = all_lived[job_id]
            continued_at[job_id] = Known(first_step)
        own = tuple(attempts)
        if scheduler.platform.holds_own_queue:
            own = dated_by_its_begin(own, own_life)
            by_job = {job_id: dated_by_its_begin(by_job[job_id], life) for job_id, life in lived.items()}
        earlier = [attempt for job_id in lived for attempt in by_job[job_id]]
        return _Earlier(numbered_before(earlier, lived), own, of_others, continued_at)

    def _continued_job(
        self,
        attempts: Sequence[Attempt],
        checkpoints: Sequence[CheckpointView],
        view: AttemptView | None,
        all_lived: Mapping[str, Lived],
    ) -> tuple[str, int] | None:
        """The Job from whose checkpoint an attempt of this one began, and the step that it began with.

        None where no attempt is known to have begun so, or where that Job was not over by then.
        """
        begun = begun_from(attempts, checkpoints, view)
        if begun is None:
            return None
        attempt, checkpoint = begun
        owner = self.registry.job_of_attempt(checkpoint.attempt) or ""
        life = all_lived.get(owner)
        if life is None or life.ended_at is None or life.ended_at > attempt.submitted_at:
            return None
        return owner, checkpoint.step + 1

    def _other_jobs(self, job: Job, attempts: Sequence[Attempt], checkpoints: Sequence[CheckpointView]) -> list[Job]:
        """Other Jobs in the same place, of whichever user, whose attempts wrote some of the checkpoints, or may have:
        one without a manifest may be of any attempt that has sent heartbeats into this mailbox.
        """
        own = {attempt.name for attempt in attempts}
        names = [checkpoint.attempt for checkpoint in checkpoints if checkpoint.attempt]
        if not all(checkpoint.manifest for checkpoint in checkpoints):
            times = self.mailbox.heartbeat_times(job)
            names += sorted(times, key=lambda name: times[name], reverse=True)[:MAX_HEARTBEATS]
        owners = (self.registry.job_of_attempt(name) for name in dict.fromkeys(names) if name not in own)
        job_ids = [job_id for job_id in dict.fromkeys(owners) if job_id is not None and job_id != job.job_id]
        known = self.registry.known(job_ids[:MAX_EARLIER_JOBS]).values() if job_ids else ()
        return [other for other in known if job.mailbox and other.place == job.place]

    def _bad_stretches(self, earlier_attempts: Sequence[Attempt]) -> tuple[Stretch, ...]:
        """The stretches of bad loss in the newest Incident of each earlier Job, which includes older ones."""
        jobs = dict.fromkeys(attempt.job_id for attempt in earlier_attempts)
        newest = (incident for job_id in jobs for incident in self.store.list_for_job(job_id, limit=1))
        return tuple(stretch for incident in newest for stretch in incident.loss.stretches)


def _user(job: Job, scheduler: Scheduler) -> str | None:
    """Who submitted the Job; None where that cannot be read now."""
    try:
        found = scheduler.find(job.current_attempt)
    except RecoveryError:
        return None
    return found.user if found is not None and found.user else None


def _lived(attempts: Sequence[Attempt], checkpoints: Sequence[CheckpointView], scheduler: Scheduler) -> Lived:
    """What was never begun counts for nothing; what has saved had begun, though its platform dates a later start of it,
    as after a Spot interruption. Raises: RecoveryError: that cannot be read now.
    """
    first, oldest = attempts[0], scheduler.describe(attempts[0].name)
    names = {attempt.name for attempt in attempts}
    # A manifest names its attempt; whose a file without one is, is a guess.
    saves = [checkpoint.saved_at for checkpoint in checkpoints if checkpoint.manifest and checkpoint.attempt in names]
    began_at = min((at for at in (oldest.training_since, *saves) if at is not None), default=None)
    for attempt in reversed(attempts[1:]):
        seen = scheduler.describe(attempt.name)
        if not seen.status.has_ended:
            return Lived(began_at=began_at, ended_at=None)
        if seen.training_since is not None or attempt.began:
            return Lived(began_at=began_at, ended_at=seen.ended_at or attempt.ended_at)
    ended_at = (oldest.ended_at or first.ended_at) if oldest.status.has_ended else None
    return Lived(began_at=began_at, ended_at=ended_at)
