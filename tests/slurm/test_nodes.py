"""Nodes of a HyperPod cluster on the embedded cloud that are real: its API takes them away and brings them back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.aws.clock import RealClock
from localcloud.cloud import Cloud
from tests.slurm.lab.hyperpod import HyperPodLab
from tests.slurm.lab.processes import is_alive


@pytest.fixture(scope="module")
def pod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HyperPodLab]:
    with (
        Cloud(http=True, clock=RealClock(), store=tmp_path_factory.mktemp("store")) as cloud,
        HyperPodLab(cloud, name="hpc", workers=2) as raised,
    ):
        yield raised


def ids(pod: HyperPodLab) -> dict[str, str]:
    """Node name to instance id, as the head node can see it."""
    config = json.loads(Path(pod.resource_config).read_text())
    return {
        f"ip-{instance['CustomerIpAddress'].replace('.', '-')}": instance["InstanceId"]
        for group in config["InstanceGroups"]
        for instance in group["Instances"]
        if group["Name"] == "workers"
    }


def status(pod: HyperPodLab, instance: str) -> str | None:
    nodes = pod.cloud.client("sagemaker").list_cluster_nodes(ClusterName="hpc")["ClusterNodeSummaries"]
    return next((node["InstanceStatus"]["Status"] for node in nodes if node["InstanceId"] == instance), None)


def test_every_worker_is_a_slurmd_named_after_its_address(pod: HyperPodLab) -> None:
    assert set(ids(pod)) == set(pod.lab.nodes) == set(pod.lab.node_states())
    assert all(status(pod, instance) == "Running" for instance in ids(pod).values())
    assert {node: pod.instance_of(node) for node in pod.lab.nodes} == ids(pod)


def test_a_replaced_node_keeps_its_name_and_has_another_instance(pod: HyperPodLab) -> None:
    node, other = pod.lab.nodes
    before, daemons = ids(pod), [process.pid for process in pod.lab.processes(node)]
    assert daemons

    pod.cloud.client("sagemaker").batch_replace_cluster_nodes(ClusterName="hpc", NodeIds=[before[node]])

    pod.lab.wait(lambda: not any(is_alive(pid) for pid in daemons), "the old machine to be gone")
    pod.lab.wait(lambda: ids(pod)[node] != before[node], "the fresh instance")
    pod.lab.wait(lambda: status(pod, ids(pod)[node]) == "Running", "the fresh instance to run")
    pod.lab.wait(lambda: pod.lab.is_running(f"slurmd-{node}"), "its slurmd")
    pod.lab.wait(lambda: pod.lab.node_states().get(node) == "idle", "Slurm to have it back")
    assert ids(pod)[other] == before[other]
    assert status(pod, before[node]) is None


def test_a_rebooted_node_is_the_same_instance(pod: HyperPodLab) -> None:
    node = pod.lab.nodes[0]
    before, daemons = ids(pod), [process.pid for process in pod.lab.processes(node)]

    pod.cloud.client("sagemaker").batch_reboot_cluster_nodes(ClusterName="hpc", NodeIds=[before[node]])

    assert not any(is_alive(pid) for pid in daemons)
    pod.lab.wait(lambda: status(pod, before[node]) == "Running", "the instance to be back")
    pod.lab.wait(lambda: pod.lab.node_states().get(node) == "idle", "Slurm to have it back")
    assert ids(pod) == before
