"""A HyperPod cluster on the embedded cloud whose nodes are real: each is a slurmd of a lab on this machine.

Replacing a node through the API takes its slurmd and everything on it away, and brings a fresh one under the same name
once the new instance runs; rebooting one ends everything on it and starts its slurmd again. What the head node can see
of it is resource_config.json, with the ids of the instances as they are now. Source: docs/facts-sagemaker.md.
"""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from typing import Final

from localcloud.cloud import Cloud
from localcloud.platforms.hyperpod import Timings
from localcloud.platforms.hyperpod_cluster import Node, instance_group
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab

CONTROLLERS: Final = "controller-machine"
WORKERS: Final = "workers"
# What takes minutes on HyperPod takes seconds here.
BRISK: Final = Timings(
    provision=timedelta(seconds=0.2),
    reboot=timedelta(seconds=2),
    replace=timedelta(seconds=3),
    shut_down=timedelta(seconds=1),
    software=timedelta(seconds=2),
    health_check=timedelta(seconds=2),
)


class HyperPodLab:
    """Open it inside an open Cloud: it makes the cluster there and raises the lab.

    The lab's nodes are named as HyperPod names them, after their addresses; these stay when an instance is replaced.
    """

    def __init__(
        self,
        cloud: Cloud,
        *,
        name: str,
        workers: int,
        node_recovery: str = "None",
        timers: Timers | None = None,
        with_auto_resume: bool = False,
        with_backup: bool = False,
    ) -> None:
        self.name = name
        self.cloud = cloud
        self._lock = threading.Lock()
        self._is_open = True
        cloud.clusters.timings = BRISK
        self._create(workers, node_recovery)
        self.lab = SlurmLab(
            nodes=[_node_name(worker.ip) for worker in self._workers()],
            name=name,
            timers=timers,
            with_auto_resume=with_auto_resume,
            with_backup=with_backup,
        )

    def __enter__(self) -> HyperPodLab:
        self.lab.start()
        self.write_resource_config()
        clusters = self.cloud.clusters
        clusters.on_gone, clusters.on_reboot, clusters.on_replace = self._gone, self._rebooted, self._replaced
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            clusters = self.cloud.clusters
            clusters.on_gone = clusters.on_reboot = clusters.on_replace = None
            self._is_open = False
        self.lab.stop()

    # ---- what tests see --------------------------------------------------------------------------------------------

    @property
    def resource_config(self) -> str:
        """Where resource_config.json stands on this cluster's head node."""
        return str(self.lab.folder / "etc/resource_config.json")

    def instance_of(self, node: str) -> str:
        """The instance behind a node's name now. Raises: KeyError."""
        for worker in self._workers():
            if _node_name(worker.ip) == node and worker.status != "ShuttingDown":
                return worker.instance_id
        raise KeyError(node)

    # ---- what the cluster's API does to its machines ---------------------------------------------------------------

    def _gone(self, cluster: str, node: Node) -> None:
        if self._is_mine(cluster, node):
            self.lab.take_node(_node_name(node.ip))

    def _rebooted(self, cluster: str, node: Node) -> None:
        with self._lock:
            if self._is_open and self._is_mine(cluster, node):
                self.lab.start_node(_node_name(node.ip))

    def _replaced(self, cluster: str, old_id: str, new_id: str, node: Node) -> None:
        with self._lock:
            if self._is_open and self._is_mine(cluster, node):
                self.write_resource_config()
                self.lab.start_node(_node_name(node.ip))

    def _is_mine(self, cluster: str, node: Node) -> bool:
        return cluster == self.name and node.group == WORKERS

    # ---- how it works inside ---------------------------------------------------------------------------------------

    def write_resource_config(self) -> None:
        """As HyperPod keeps it on the controller: whole at any moment."""
        place = self.lab.folder / "etc/resource_config.json"
        beside = place.with_suffix(".new")
        beside.write_text(json.dumps(self.cloud.clusters.resource_config(self.name)))
        beside.replace(place)

    def _create(self, workers: int, node_recovery: str) -> None:
        self.cloud.client("sagemaker").create_cluster(
            ClusterName=self.name,
            NodeRecovery=node_recovery,
            NodeProvisioningMode="Continuous",
            InstanceGroups=[
                instance_group(CONTROLLERS, 1, {"NodeType": "Controller"}),
                instance_group(WORKERS, workers, {"NodeType": "Compute", "PartitionNames": ["main"]}),
            ],
        )
        pause = threading.Event()
        while self.cloud.clusters.clusters[self.name].status != "InService":
            pause.wait(0.05)

    def _workers(self) -> list[Node]:
        cluster = self.cloud.clusters.clusters[self.name]
        return [node for node in list(cluster.nodes.values()) if node.group == WORKERS]


def _node_name(address: str) -> str:
    """Slurm's name of a node. It derives from CustomerIpAddress: docs/facts-sagemaker.md#cluster-requests."""
    return f"ip-{address.replace('.', '-')}"
