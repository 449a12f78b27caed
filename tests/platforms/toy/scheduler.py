"""ports.Scheduler of the toy cluster."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from chalicelib.domain.model.action import ActionResult, Done, ResubmitJob
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.policy.document import Policy
from chalicelib.ports.platforms import DiscoveredJob
from tests.platforms.toy.cluster import ToyCluster
from tests.platforms.toy.platform import TOY


class ToyScheduler:
    platform = TOY

    def __init__(self, cluster: ToyCluster) -> None:
        self.cluster = cluster

    def owns(self, attempt: str) -> bool:
        return attempt in self.cluster.runs

    def restarts_between(self, earlier: str, later: str) -> int | None:
        return None

    def earlier_starts(self, attempt: str) -> tuple[str, ...]:
        return ()

    def describe(self, attempt: str) -> AttemptView:
        run = self.cluster.runs.get(attempt)
        return run.view if run is not None else AttemptView(name=attempt, status=AttemptStatus.GONE)

    def discover(self, attempt: str) -> DiscoveredJob | None:
        return self.find(attempt)

    def find(self, attempt: str) -> DiscoveredJob | None:
        run = self.cluster.runs.get(attempt)
        return run.found if run is not None else None

    def stop(self, attempt: str, *, hold: bool = False, incident_id: str | None = None) -> ActionResult:
        assert not hold, "it has no queue to hold anything in"
        run = self.cluster.runs[attempt]
        if run.view.status.has_ended or run.view.status is AttemptStatus.STOPPING:
            return ActionResult(action="StopJob", done=Done.ALREADY)
        run.view = replace(run.view, status=AttemptStatus.STOPPING)
        return ActionResult(action="StopJob", done=Done.DONE)

    def siblings(self, job: Job, *, besides: Collection[str], reported: Sequence[str] = ()) -> tuple[str, ...]:
        runs = self.cluster.runs.items()
        return tuple(name for name, run in runs if name not in besides and not run.view.status.has_ended)

    def missed(self, job: Job, *, besides: Collection[str]) -> str | None:
        return None

    def resubmit(self, action: ResubmitJob, *, job: Job, policy: Policy, incident_id: str) -> ActionResult:
        if action.name in self.cluster.runs:
            return ActionResult(action="ResubmitJob", done=Done.ALREADY)
        run = self.cluster.start(
            action.name, mailbox=job.mailbox, policy=job.policy_name, avoid=action.exclude, action=action
        )
        return ActionResult(action="ResubmitJob", done=Done.DONE if run is not None else Done.CAPACITY)
