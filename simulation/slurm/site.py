"""What the nodes, the head node and the jobs of a story's cluster share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from localcloud.aws.clock import Clock
from localcloud.aws.sagemaker import Publish
from localcloud.platforms.hyperpod import Clusters, Timings
from localcloud.platforms.hyperpod_cluster import Node, instance_group
from localcloud.slurm.job import SimJob
from localcloud.slurm.model import SlurmModel
from simulation.cloud.store import MemoryObjects
from simulation.runs.memory import Watcher
from simulation.runs.training import Training
from simulation.runs.truth import TrueNode, TrueRun
from simulation.stories.source_faults import SourceFaults
from simulation.stories.story import Story

NAME: Final = "ml"
WORKERS: Final = "workers"
TIMINGS: Final = Timings(
    provision=timedelta(0),
    reboot=timedelta(minutes=2),
    replace=timedelta(minutes=8),
    shut_down=timedelta(minutes=1),
)


class Site:
    """`watcher` sees what the service does to it; `pods` is the cluster's API, `model` its Slurm.

    repairing: reboot or replace, while the service's own client asks for it. soon: has Slurm's scheduler pass and the
    agent read it, a moment from now; the head node sets it.
    """

    def __init__(
        self,
        story: Story,
        *,
        clock: Clock,
        source_faults: SourceFaults,
        objects: MemoryObjects,
        training: Training,
        runs: dict[str, TrueRun],
        publish: Publish,
        watcher: Callable[[], Watcher],
    ) -> None:
        self.clock, self.source_faults, self.objects = clock, source_faults, objects
        self.training, self.runs, self.publish, self.watcher = training, runs, publish, watcher
        self.pods = Clusters(clock=clock, publish=publish)
        self.pods.timings = TIMINGS
        self.arn = str(self.pods.create_cluster(cluster_request(story))["ClusterArn"])
        self.workers = [node for node in self.pods.clusters[NAME].nodes.values() if node.group == WORKERS]
        self.nodes = {
            name_of(node): TrueNode(name=name_of(node), instance_id=node.instance_id) for node in self.workers
        }
        self.model = SlurmModel(cluster=NAME, nodes=tuple(self.nodes), now=clock.now)
        self.repairing = ""
        self.soon: Callable[[], None] = lambda: None

    def run_of(self, job: SimJob) -> TrueRun:
        return next(run for run in self.runs.values() if job.base.name in run.job_ids)


def cluster_request(story: Story) -> dict[str, Any]:
    """The cluster that a story's runs on Slurm share, as it is asked for."""
    return {
        "ClusterName": NAME,
        "NodeRecovery": story.recovery,
        "NodeProvisioningMode": "Continuous",
        "Tags": [{"Key": "rekindle:policy", "Value": "default"}],
        "InstanceGroups": [
            instance_group("controller-machine", 1, {"NodeType": "Controller"}),
            instance_group(WORKERS, story.nodes, {"NodeType": "Compute", "PartitionNames": ["main"]}),
        ],
    }


def name_of(machine: Node) -> str:
    """Slurm's name of a node on HyperPod, after its address, which stays when the instance is replaced."""
    return machine.host_name.partition(".")[0]
