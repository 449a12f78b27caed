"""One Scheduler over all platforms: an attempt's name tells whose it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from chalicelib.domain.model.action import ActionResult, ResubmitJob
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.observation import AttemptView
from chalicelib.domain.policy.document import Policy
from chalicelib.ports import Discovered, Scheduler
from rekindle.protocol.cluster.names import is_slurm


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedulers:
    """ports.Scheduler."""

    training: Scheduler
    slurm: Scheduler

    def _of(self, attempt: str) -> Scheduler:
        return self.slurm if is_slurm(attempt) else self.training

    def describe(self, attempt: str) -> AttemptView:
        """See ports.Scheduler."""
        return self._of(attempt).describe(attempt)

    def discover(self, attempt: str) -> Discovered | None:
        """See ports.Scheduler."""
        return self._of(attempt).discover(attempt)

    def find(self, attempt: str) -> Discovered | None:
        """See ports.Scheduler."""
        return self._of(attempt).find(attempt)

    def stop(self, attempt: str, *, hold: bool = False, incident_id: str | None = None) -> ActionResult:
        """See ports.Scheduler."""
        return self._of(attempt).stop(attempt, hold=hold, incident_id=incident_id)

    def siblings(self, job: Job, *, besides: Collection[str], told: Sequence[str] = ()) -> tuple[str, ...]:
        """See ports.Scheduler."""
        return self._of(job.current_attempt).siblings(job, besides=besides, told=told)

    def missed(self, job: Job, *, besides: Collection[str]) -> str | None:
        """See ports.Scheduler."""
        return self._of(job.current_attempt).missed(job, besides=besides)

    def resubmit(self, action: ResubmitJob, *, job: Job, policy: Policy, incident_id: str) -> ActionResult:
        """See ports.Scheduler."""
        return self._of(action.clone_of).resubmit(action, job=job, policy=policy, incident_id=incident_id)
