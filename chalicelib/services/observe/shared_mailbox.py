"""Two Jobs in one mailbox: links of a chain (`--dependency=afterany`), of which one may train at a time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.model.errors import DependencyUnavailable
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import Mailbox, Scheduler

# A queue looks at dependencies in its next pass only, a minute later at most.
LINK_SETTLES: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class NextLink:
    """An attempt of another Job. `takes_over`: it began after the attempt in whose mailbox it trains had ended, so that
    it continues the same run; otherwise two runs have one mailbox.
    """

    name: str
    takes_over: bool


def next_link(
    job: Job,
    name: str | None,
    *,
    after: str,
    registry: JobRegistry,
    scheduler: Scheduler,
    mailbox: Mailbox,
    now: datetime,
) -> NextLink | None:
    """The attempt of another Job that trains, or is about to, in the mailbox that `job` would start in as `name`,
    where `after` was the Job's newest attempt. `name`: None where no start is ordered.

    None where there is none, or where that start is ordered, or there, already. Costs one description for each other
    Job of the same mailbox; for a Job whose mailbox only its script's Python names, one listing for each other Job of
    its cluster, in whose mailbox its monitor may have written.

    Raises: Retryable, also while `after` has just ended and the platform does not show yet whether a link begins.
    """
    if not scheduler.platform.holds_own_queue:
        return None
    others = _others_in_its_mailbox(job, after, registry, mailbox)
    if not others:
        return None
    ours = scheduler.describe(name) if name is not None else None
    if ours is not None and ours.status is not AttemptStatus.GONE and not (ours.start is not None and ours.start.held):
        return None
    views = [scheduler.describe(other.current_attempt) for other in others]
    training = next((view for view in views if view.will_train), None)
    if training is not None:
        return NextLink(training.name, _began_after(training, scheduler.describe(after)))
    waiting = next((view.name for view in views if view.waits_for_jobs), None)
    old = scheduler.describe(after) if waiting is not None else None
    if old is not None and old.successor is None and old.ended_at is not None and now - old.ended_at < LINK_SETTLES:
        raise DependencyUnavailable(f"{waiting}, which shares its mailbox, may begin now that {after} has ended")
    return None


def _others_in_its_mailbox(job: Job, after: str, registry: JobRegistry, mailbox: Mailbox) -> list[Job]:
    others = [other for other in registry.active() if other.job_id != job.job_id]
    if job.mailbox:
        return [other for other in others if other.place.mailbox == job.place.mailbox]
    own = {after, job.current_attempt}
    return [other for other in others if other.cluster == job.cluster and own & {*mailbox.heartbeat_times(other)}]


def _began_after(view: AttemptView, old: AttemptView) -> bool:
    start, ended = view.start, old.ended_at
    if ended is None:
        return False
    if start is not None and start.is_queued:
        return True
    submitted = start.submitted_at if start is not None else None
    return any(at is not None and at >= ended for at in (view.training_since, submitted))
