"""HyperPod on the embedded cloud: states, repairs that fail in part, events as they really look."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from localcloud.aws.events import Rule
from localcloud.cloud import Cloud

ROLE = "arn:aws:iam::123456789012:role/node"
LIFECYCLE = {"SourceS3Uri": "s3://sagemaker-lcs", "OnCreate": "on_create.sh"}


def group(name: str, count: int, node_type: str) -> dict[str, Any]:
    slurm: dict[str, Any] = {"NodeType": node_type}
    if node_type == "Compute":
        slurm["PartitionNames"] = ["train"]
    return {
        "InstanceGroupName": name,
        "InstanceType": "ml.p5.48xlarge",
        "InstanceCount": count,
        "LifeCycleConfig": LIFECYCLE,
        "ExecutionRole": ROLE,
        "ThreadsPerCore": 1,
        "SlurmConfig": slurm,
    }


def create(cloud: Cloud, **changes: Any) -> str:
    request = {
        "ClusterName": "pretrain",
        "InstanceGroups": [group("head", 1, "Controller"), group("gpu", 4, "Compute")],
        "Orchestrator": {"Slurm": {}},
        "NodeProvisioningMode": "Continuous",
        "NodeRecovery": "None",
        "Tags": [{"Key": "team", "Value": "nlp"}],
    } | changes
    arn = cloud.client("sagemaker").create_cluster(**{k: v for k, v in request.items() if v is not None})["ClusterArn"]
    cloud.clock.run_for(timedelta(minutes=21))
    return str(arn)


def nodes(cloud: Cloud, name: str = "gpu") -> list[dict[str, Any]]:
    answer = cloud.client("sagemaker").list_cluster_nodes(ClusterName="pretrain", InstanceGroupNameContains=name)
    return list(answer["ClusterNodeSummaries"])


def watch(cloud: Cloud) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    pattern = {"source": ["aws.sagemaker"], "detail-type": [{"prefix": "SageMaker HyperPod"}]}
    cloud.deploy(
        {"note": lambda event, _: seen.append(event)}, rules=[Rule(function="note", bus="default", pattern=pattern)]
    )
    return seen


def error_of(call: Any, **request: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**request)
    return str(caught.value.response["Error"]["Code"])


def test_a_cluster_is_created_with_an_id_that_is_not_its_name(cloud: Cloud) -> None:
    seen = watch(cloud)
    arn = create(cloud)
    described = cloud.client("sagemaker").describe_cluster(ClusterName=arn)
    assert described["ClusterStatus"] == "InService"
    assert described["NodeRecovery"] == "None"
    assert described["Orchestrator"] == {"Slurm": {}}
    assert len(arn.rpartition("/")[2]) == 12
    assert [(g["CurrentCount"], g["TargetCount"]) for g in described["InstanceGroups"]] == [(1, 1), (4, 4)]
    assert [event["detail"]["ClusterStatus"] for event in seen] == ["Creating", "InService"]
    assert cloud.client("sagemaker").list_tags(ResourceArn=arn)["Tags"] == [{"Key": "team", "Value": "nlp"}]
    assert [c["ClusterName"] for c in cloud.client("sagemaker").list_clusters()["ClusterSummaries"]] == ["pretrain"]
    again = {"ClusterName": "pretrain", "InstanceGroups": [group("head", 1, "Controller")]}
    assert error_of(cloud.client("sagemaker").create_cluster, **again) == "ResourceInUse"


def test_a_batch_repair_may_fail_in_part_although_the_call_succeeds(cloud: Cloud) -> None:
    create(cloud)
    good, broken, *_ = (node["InstanceId"] for node in nodes(cloud))
    head = nodes(cloud, "head")[0]["InstanceId"]
    cloud.clusters.break_node("pretrain", broken, "EFA health checks did not run successfully")
    client = cloud.client("sagemaker")
    absent = "i-0ffffffffffffff01"
    answer = client.batch_replace_cluster_nodes(ClusterName="pretrain", NodeIds=[broken, head, absent])
    assert answer["Successful"] == [broken]
    codes = {failure["NodeId"]: failure["ErrorCode"] for failure in answer["Failed"]}
    assert codes == {head: "InvalidInstanceStatus", absent: "InstanceIdNotFound"}
    again = client.batch_reboot_cluster_nodes(ClusterName="pretrain", NodeIds=[broken, good])
    assert again["Successful"] == [good]
    assert again["Failed"][0]["ErrorCode"] == "InstanceIdInUse"


def test_a_reboot_keeps_the_instance_and_a_replacement_only_its_address(cloud: Cloud) -> None:
    create(cloud)
    one, two, *_ = nodes(cloud)
    client = cloud.client("sagemaker")
    client.batch_reboot_cluster_nodes(ClusterName="pretrain", NodeIds=[one["InstanceId"]])
    client.batch_replace_cluster_nodes(ClusterName="pretrain", NodeIds=[two["InstanceId"]])
    assert two["InstanceId"] not in {node["InstanceId"] for node in nodes(cloud)}
    cloud.clock.run_for(timedelta(minutes=26))
    now = {node["InstanceId"]: node for node in nodes(cloud)}
    assert now[one["InstanceId"]]["InstanceStatus"]["Status"] == "Running"
    assert two["InstanceId"] not in now
    assert {node["PrivateDnsHostname"] for node in now.values()} >= {two["PrivateDnsHostname"]}
    assert len(now) == 4


def test_a_legacy_cluster_has_no_events_and_no_logical_ids(cloud: Cloud) -> None:
    seen = watch(cloud)
    create(cloud, NodeProvisioningMode=None)
    client = cloud.client("sagemaker")
    node = nodes(cloud)[0]["InstanceId"]
    client.batch_reboot_cluster_nodes(ClusterName="pretrain", NodeIds=[node])
    cloud.clock.run_for(timedelta(minutes=3))
    assert {event["detail-type"] for event in seen} == {"SageMaker HyperPod Cluster State Change"}
    assert error_of(client.describe_cluster_event, ClusterName="pretrain", EventId="e") == "ValidationException"
    asked = {"ClusterName": "pretrain", "NodeLogicalIds": ["gpu-00002"]}
    assert error_of(client.batch_replace_cluster_nodes, **asked) == "ValidationException"


def test_a_health_check_runs_once_at_a_time(cloud: Cloud) -> None:
    create(cloud)
    client = cloud.client("sagemaker")
    checks = [{"InstanceGroupName": "gpu", "DeepHealthChecks": ["InstanceStress"]}]
    client.start_cluster_health_check(ClusterName="pretrain", DeepHealthCheckConfigurations=checks)
    detail = client.describe_cluster_node(ClusterName="pretrain", NodeId=nodes(cloud)[0]["InstanceId"])["NodeDetails"]
    assert detail["InstanceStatus"]["Status"] == "DeepHealthCheckInProgress"
    asked = {"ClusterName": "pretrain", "DeepHealthCheckConfigurations": checks}
    assert error_of(client.start_cluster_health_check, **asked) == "ValidationException"
    cloud.clock.run_for(timedelta(hours=3))
    assert {node["InstanceStatus"]["Status"] for node in nodes(cloud)} == {"Running"}


def test_the_health_agent_speaks_by_node_health_events(cloud: Cloud) -> None:
    create(cloud)
    seen = watch(cloud)
    victim = nodes(cloud)[0]["InstanceId"]
    cloud.clusters.report_health("pretrain", victim, fault="NvidiaErrorTerminate")
    cloud.clock.run_for(timedelta(seconds=5))
    summary = seen[0]["detail"]["HealthSummary"]
    assert "fault type NvidiaErrorTerminate on this node" in summary["HealthStatusReason"]


def test_hyperpods_own_recovery_acts_on_the_exact_words_and_only_where_it_is_automatic(cloud: Cloud) -> None:
    create(cloud)
    first, second = (node["InstanceId"] for node in nodes(cloud)[:2])
    names = {node["InstanceId"]: node["PrivateDnsHostname"].partition(".")[0] for node in nodes(cloud)}
    assert not cloud.clusters.slurm_marked("pretrain", names[first], "Action:Replace")  # NodeRecovery None
    cloud.clusters.clusters["pretrain"].request["NodeRecovery"] = "Automatic"
    for near in ("action:replace", "Action: Replace", "Action:Replace "):
        assert not cloud.clusters.slurm_marked("pretrain", names[first], near)
    seen: list[tuple[str, ...]] = []
    cloud.clusters.on_gone = lambda name, node: seen.append((name, node.instance_id))
    cloud.clusters.on_replace = lambda name, old, new, node: seen.append((name, old, new, node.ip))
    assert cloud.clusters.slurm_marked("pretrain", names[first], "Action:Replace")
    assert cloud.clusters.slurm_marked("pretrain", names[second], "Action:Reboot")
    cloud.clock.run_for(timedelta(minutes=40))
    there = {node["InstanceId"]: node["InstanceStatus"]["Status"] for node in nodes(cloud)}
    assert first not in there
    assert there[second] == "Running"
    replaced = next(one for one in seen if len(one) == 4)
    assert replaced[1] == first
    assert there[replaced[2]] == "Running"
    config = cloud.clusters.resource_config("pretrain")
    listed = {
        instance["InstanceId"]: instance["CustomerIpAddress"]
        for part in config["InstanceGroups"]
        for instance in part["Instances"]
    }
    assert config["ClusterConfig"]["ClusterName"] == "pretrain"
    assert listed[replaced[2]] == replaced[3]
    assert len(listed) == 5
