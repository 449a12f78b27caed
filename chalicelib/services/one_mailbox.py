"""Two Jobs in one mailbox: links of a chain (`--dependency=afterany`), of which one may train at a time."""

from __future__ import annotations

from chalicelib.domain.jobs import Job
from chalicelib.domain.observations import AttemptStatus, AttemptView
from chalicelib.ports import JobRegistry, Scheduler
from rekindle.headnode.names import is_slurm


def next_link(job: Job, name: str, *, registry: JobRegistry, scheduler: Scheduler) -> str | None:
    """The attempt of another Job that trains, or is about to, in the mailbox that `job` would be started into as `name`.

    None where there is none, or where that start is ordered, or there, already. Costs one description for each other
    Job of the same mailbox. Raises: Retryable.
    """
    if not is_slurm(name) or not job.mailbox:
        return None
    others = [
        other
        for other in registry.active()
        if other.job_id != job.job_id and other.mailbox.rstrip("/") == job.mailbox.rstrip("/")
    ]
    if not others:
        return None
    ours = scheduler.describe(name)
    if ours.status is not AttemptStatus.GONE and not (ours.slurm is not None and ours.slurm.held):
        return None
    return next((one.current_attempt for one in others if _trains(scheduler.describe(one.current_attempt))), None)


def _trains(view: AttemptView) -> bool:
    """A link that still waits for the one before it, or is held, begins no sooner than we let it."""
    if view.status.has_ended:
        return False
    slurm = view.slurm
    waits = slurm is not None and slurm.is_queued and (slurm.held or slurm.pending_reason.startswith("Dependency"))
    return not waits
