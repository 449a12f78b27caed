"""The truth: four machines, and runs that have two of them each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from chalicelib.domain.model.action import ResubmitJob
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.start_view import StartState, StartView
from chalicelib.ports.clock import Clock
from chalicelib.ports.platforms import DiscoveredJob
from tests.platforms.toy.platform import TOY

CLUSTER = "shelf"
NODES = ("red", "green", "blue", "grey")
WIDTH = 2


@dataclass
class ToyRun:
    view: AttemptView
    found: DiscoveredJob
    nodes: tuple[str, ...]
    action: ResubmitJob | None = None


@dataclass
class ToyCluster:
    clock: Clock
    runs: dict[str, ToyRun] = field(default_factory=dict)
    cordoned: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)

    def start(
        self, name: str, *, mailbox: str, policy: str, avoid: Collection[str] = (), action: ResubmitJob | None = None
    ) -> ToyRun | None:
        """The run on the first machines that are free; None where there are too few."""
        busy = {node for run in self.runs.values() if not run.view.status.has_ended for node in run.nodes}
        free = [node for node in NODES if node not in busy | self.cordoned | set(avoid)]
        if len(free) < WIDTH:
            return None
        nodes = tuple(free[:WIDTH])
        found = DiscoveredJob(
            name=name,
            policy_name=policy,
            job_id=None,
            mailbox=mailbox,
            instance_count=WIDTH,
            created_at=self.clock.now(),
            platform=TOY.name,
            cluster=CLUSTER,
        )
        status = AttemptStatus.RUNNING if action is None else AttemptStatus.STARTING
        start = StartView(handle=name, state=StartState.RUNNING, nodes=nodes, node_count=WIDTH)
        self.runs[name] = ToyRun(AttemptView(name=name, status=status, start=start), found, nodes, action)
        return self.runs[name]

    def put(self, name: str, status: AttemptStatus, *, failure_reason: str = "") -> None:
        """Set what becomes of a run."""
        run = self.runs[name]
        ended_at = self.clock.now() if status.has_ended else None
        run.view = replace(run.view, status=status, failure_reason=failure_reason, ended_at=ended_at)
