"""`tests.services.world.World` with the toy cluster in the place of training jobs; the services are the real ones."""

from __future__ import annotations

from chalicelib.domain.model.signal import SignalKind
from chalicelib.platforms.schedulers import Schedulers
from rekindle.protocol.signals import FaultClass
from tests.fakes.world import FakeClock
from tests.platforms.toy.agent import ToyAgent
from tests.platforms.toy.cluster import CLUSTER, ToyCluster
from tests.platforms.toy.scheduler import ToyScheduler
from tests.services.slurm_world import TakenNodes
from tests.services.world import JOB, World


class ToyWorld(World):
    def __init__(self) -> None:
        clock = FakeClock()
        self.cluster = ToyCluster(clock)
        self.handed_on = TakenNodes()
        self.cluster.start(JOB, mailbox="s3://box/lm", policy="default")
        super().__init__(
            clock=clock,
            platform=self.cluster,
            schedulers=Schedulers(ToyScheduler(self.cluster)),
            head_nodes=ToyAgent(self.cluster),
            takes_nodes=self.handed_on,
        )

    def nodes_of(self, name: str) -> tuple[str, ...]:
        """Where the run is."""
        return self.cluster.runs[name].nodes

    def break_node(self, node: str, *, of: str) -> None:
        """The node's hardware is found to be faulty, while the run on it still trains."""
        self.cluster.broken.add(node)
        signal = self.say(SignalKind.NODE_HEALTH, of, FaultClass.NODE_HARDWARE, cluster=CLUSTER, node=node)
        assert signal.node == node
