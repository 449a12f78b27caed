"""The HyperPod cluster that a story's runs on Slurm share, as it is asked for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from localcloud.platforms.hyperpod import Timings
from localcloud.platforms.hyperpod_cluster import Node
from localcloud.slurm.hyperpod import instance_group
from simulation.stories.story import Story

NAME: Final = "ml"
WORKERS: Final = "workers"
TIMINGS: Final = Timings(
    provision=timedelta(0),
    reboot=timedelta(minutes=2),
    replace=timedelta(minutes=8),
    shut_down=timedelta(minutes=1),
)


def cluster_request(story: Story) -> dict[str, Any]:
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
