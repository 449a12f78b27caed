"""HyperPod's nodes through the real wire: boto3 against the embedded cloud, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from chalicelib.aws.sagemaker.cluster_nodes import BATCH, SageMakerClusterNodes
from chalicelib.domain.model.action import Done
from chalicelib.domain.model.errors import NotAuthorized, Throttled
from chalicelib.domain.model.node import GroupRole, InstanceState, NodeRecovery
from localcloud.cloud import Cloud

MINUTE = timedelta(minutes=1)


def group(name: str, count: int, node_type: str) -> dict[str, Any]:
    slurm: dict[str, Any] = {"NodeType": node_type}
    if node_type == "Compute":
        slurm["PartitionNames"] = ["train"]
    return {
        "InstanceGroupName": name,
        "InstanceType": "ml.p5.48xlarge",
        "InstanceCount": count,
        "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-lcs", "OnCreate": "on_create.sh"},
        "ExecutionRole": "arn:aws:iam::123456789012:role/node",
        "SlurmConfig": slurm,
    }


class Pod:
    """A cluster on the embedded cloud, and the adapter over it."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.client = cloud.client("sagemaker")
        self.nodes = SageMakerClusterNodes(self.client)
        created = self.client.create_cluster(
            ClusterName="pretrain",
            InstanceGroups=[group("head", 1, "Controller"), group("gpu", 30, "Compute")],
            NodeProvisioningMode="Continuous",
            NodeRecovery="None",
        )
        self.arn = created["ClusterArn"]
        cloud.clock.run_for(21 * MINUTE)
        self.ids = [machine.instance_id for machine in self.machines() if machine.group == "gpu"]
        self.head = next(machine.instance_id for machine in self.machines() if machine.group == "head")

    def machines(self) -> list[Any]:
        return list(self.cloud.clusters.clusters["pretrain"].nodes.values())

    def name(self, instance_id: str) -> str:
        """The node's name in Slurm."""
        return next(machine.host_name for machine in self.machines() if machine.instance_id == instance_id).partition(
            "."
        )[0]


@pytest.fixture
def pod() -> Iterator[Pod]:
    with Cloud() as cloud:
        yield Pod(cloud)


def test_a_cluster_is_read_with_the_roles_of_its_groups(pod: Pod) -> None:
    for reference in ("pretrain", pod.arn):
        seen = pod.nodes.cluster(reference)
        assert seen is not None
        assert (seen.status, seen.recovery) == ("InService", NodeRecovery.NONE)
        assert (seen.role("head"), seen.role("gpu")) == (GroupRole.CONTROLLER, GroupRole.COMPUTE)
        assert seen.role("other") is GroupRole.UNKNOWN
    assert pod.nodes.cluster("nothing-there") is None


def test_a_node_is_followed_through_its_replacement_by_its_name(pod: Pod) -> None:
    old, name = pod.ids[0], pod.name(pod.ids[0])

    def look(instance_id: str | None = old, logical_id: str | None = None) -> Any:
        return pod.nodes.instance("pretrain", node=name, instance_id=instance_id, logical_id=logical_id)

    first = look()
    assert (first.instance_id, first.state, first.group) == (old, InstanceState.RUNNING, "gpu")
    assert look(None).instance_id == old  # without an id the list tells
    assert pod.nodes.replace("pretrain", [old])[old].done is Done.DONE
    assert look().state is InstanceState.SHUTTING_DOWN
    assert pod.nodes.replace("pretrain", [old])[old].done is Done.ALREADY  # InstanceIdInUse
    pod.cloud.clock.run_for(5 * MINUTE)
    assert look() is None  # the new one is Pending, and its name is not known yet
    pending = look(logical_id=first.logical_id)
    assert (pending.state, pending.instance_id == old) == (InstanceState.PENDING, False)
    assert pod.nodes.replace("pretrain", [old])[old].done is Done.ALREADY  # InstanceIdNotFound
    pod.cloud.clock.run_for(25 * MINUTE)
    for seen in (look(), look(pending.instance_id)):
        assert (seen.instance_id, seen.state) == (pending.instance_id, InstanceState.RUNNING)


def test_more_ids_than_one_call_takes_go_out_in_batches_with_an_answer_each(pod: Pod) -> None:
    answers = pod.nodes.reboot("pretrain", [*pod.ids, pod.head, "i-0123456789abcdef0"])
    assert len(pod.ids) > BATCH
    assert pod.cloud.wire.calls["sagemaker.BatchRebootClusterNodes"] == 2
    assert {answers[identifier].done for identifier in pod.ids} == {Done.DONE}
    assert answers["i-0123456789abcdef0"].done is Done.ALREADY
    assert answers[pod.head].done is Done.REFUSED
    assert "UpdateClusterSoftware" in answers[pod.head].detail
    assert pod.nodes.reboot("pretrain", []) == {}


def test_an_instance_in_transition_and_a_busy_cluster_are_not_now(pod: Pod) -> None:
    one = pod.ids[0]
    pod.client.update_cluster_software(ClusterName="pretrain")
    busy = pod.nodes.replace("pretrain", [one])[one]
    assert (busy.done, "busy" in busy.detail) == (Done.UNAVAILABLE, True)
    pod.cloud.clock.run_for(60 * MINUTE)
    next(node for node in pod.machines() if node.instance_id == one).status = "Pending"
    assert pod.nodes.replace("pretrain", [one])[one].done is Done.UNAVAILABLE  # InvalidInstanceStatus


def test_a_deep_health_check_runs_once_in_a_cluster(pod: Pod) -> None:
    first, second = pod.ids[:2]
    assert pod.nodes.check("pretrain", group="gpu", instance_ids=[first]).done is Done.DONE
    seen = pod.nodes.instance("pretrain", node=pod.name(first), instance_id=first, logical_id=None)
    assert seen is not None
    assert seen.state is InstanceState.CHECKING
    assert pod.nodes.check("pretrain", group="gpu", instance_ids=[second]).done is Done.CAPACITY


class Refuses:
    """A client whose every operation answers with one error, as botocore raises it."""

    def __init__(self, code: str, message: str = "no") -> None:
        self.error = ClientError({"Error": {"Code": code, "Message": message}}, "BatchReplaceClusterNodes")

    def __getattr__(self, name: str) -> Any:
        def refuse(**_: object) -> None:
            raise self.error

        return refuse


def test_errors_that_no_model_holds_are_told_in_words() -> None:
    old = "Cluster must be updated with UpdateClusterSoftware before using this API"
    answer = SageMakerClusterNodes(Refuses("ValidationException", old)).replace("c", ["i-1", "i-2"])
    assert {one.done for one in answer.values()} == {Done.REFUSED}
    assert "patched with UpdateClusterSoftware at least once" in answer["i-1"].detail
    assert SageMakerClusterNodes(Refuses("ConflictException")).reboot("c", ["i-1"])["i-1"].done is Done.UNAVAILABLE
    gone = SageMakerClusterNodes(Refuses("ResourceNotFound", "Cluster c not found"))
    assert gone.replace("c", ["i-1"])["i-1"].done is Done.REFUSED
    assert gone.cluster("c") is None
    assert gone.instance("c", node="n", instance_id="i-1", logical_id=None) is None
    for code, error in (("AccessDeniedException", NotAuthorized), ("ThrottlingException", Throttled)):
        refuses = SageMakerClusterNodes(Refuses(code))
        for ask in (
            lambda it=refuses: it.cluster("c"),
            lambda it=refuses: it.instance("c", node="n", instance_id="i-1", logical_id=None),
            lambda it=refuses: it.replace("c", ["i-1"]),
            lambda it=refuses: it.check("c", group="g", instance_ids=["i-1"]),
        ):
            with pytest.raises(error):
                ask()


class Answers:
    """A client that gives one answer to a batch call."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer

    def batch_replace_cluster_nodes(self, **_: object) -> dict[str, Any]:
        return self.answer


@pytest.mark.parametrize(
    ("code", "message", "done"),
    [
        ("InstanceIdNotFound", "", Done.ALREADY),
        ("InstanceIdInUse", "", Done.ALREADY),
        ("InternalServerError", "", Done.UNAVAILABLE),
        ("InvalidInstanceStatus", "The instance is in status Pending.", Done.UNAVAILABLE),
        ("InvalidInstanceStatus", "not supported on Slurm controller nodes", Done.REFUSED),
        ("SomethingNew", "", Done.UNAVAILABLE),
    ],
)
def test_each_entry_of_failed_is_read_by_its_own_code(code: str, message: str, done: Done) -> None:
    failed = [{"NodeId": "i-2", "ErrorCode": code, "Message": message}]
    answers = SageMakerClusterNodes(Answers(Successful=["i-1"], Failed=failed)).replace("c", ["i-1", "i-2", "i-3"])
    assert [answers[one].done for one in ("i-1", "i-2", "i-3")] == [Done.DONE, done, Done.UNAVAILABLE]
    assert code in answers["i-2"].detail
