"""`--live` against the embedded cloud over HTTP: the same calls that the operator's own credentials would make."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from localcloud.cloud import Cloud
from rekindle.doctor.base.facts import Missing, NodeFacts, NotInspected
from rekindle.doctor.base.findings import Finding
from rekindle.doctor.base.subject import Subject, from_described, from_request
from rekindle.doctor.cluster.live import agent_findings, cluster_findings, difference_findings
from rekindle.protocol.cluster import documents, names
from rekindle.protocol.cluster.queue_place import QueueFact
from tests.doctor.conftest import Doctor
from tests.doctor.given import FOLDER, ROLE, continuous

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
BUCKET = "rekindle-mailbox"


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    with Cloud(http=True) as cloud:
        yield cloud


def network(cloud: Cloud) -> dict[str, list[str]]:
    """A private subnet with a way to S3, and a group that refers to itself both ways."""
    ec2 = cloud.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20", AvailabilityZone="us-west-2a")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)["GroupId"]
    itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
    tables = ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"]
    ec2.create_vpc_endpoint(
        VpcId=vpc, ServiceName="com.amazonaws.us-west-2.s3", RouteTableIds=[tables[0]["RouteTableId"]]
    )
    return {"SecurityGroupIds": [group], "Subnets": [subnet]}


def prepare(cloud: Cloud) -> dict[str, Any]:
    """Everything that the request of `given` names, and the request."""
    trust = {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}
    cloud.client("iam").create_role(RoleName="node", AssumeRolePolicyDocument=json.dumps({"Statement": [trust]}))
    bucket, _, prefix = FOLDER.removeprefix("s3://").partition("/")
    cloud.create_bucket(bucket)
    cloud.client("s3").put_object(Bucket=bucket, Key=f"{prefix}/on_create.sh", Body=b"#!/bin/bash\n")
    request = continuous()
    request["VpcConfig"] = network(cloud)
    return request


def start(cloud: Cloud, request: dict[str, Any]) -> None:
    cloud.client("sagemaker").create_cluster(**request)
    cloud.clock.run_for(timedelta(minutes=30))
    cloud.client("sagemaker").update_cluster_software(ClusterName="pretrain")
    cloud.clock.run_for(timedelta(hours=2))


def heartbeat(cloud: Cloud, at: datetime, **more: Any) -> None:
    doc = documents.AgentDoc(cluster="pretrain", agent_id="a1", at=at, started_at=at, read_at=at, **more)
    cloud.client("s3").put_object(Bucket=BUCKET, Key=names.agent_key("pretrain"), Body=doc.to_json())


@pytest.mark.process
def test_a_live_cluster_is_looked_at_from_end_to_end(doctor: Doctor, cloud: Cloud) -> None:
    request = prepare(cloud)
    start(cloud, request)
    heartbeat(cloud, datetime.now(UTC))
    node = documents.NodeFacts(name="ip-10-0-0-1", state="down", flags=("drain",), reason="Action:Replace")
    nodes = documents.NodesDoc(cluster="pretrain", seen_at=datetime.now(UTC), nodes=(node,))
    cloud.client("s3").put_object(Bucket=BUCKET, Key=names.nodes_key("pretrain"), Body=nodes.to_json())
    cloud.client("sqs").create_queue(QueueName=names.queue_name("rekindle", "pretrain"))
    said = doctor("--live", "pretrain", "--bucket", BUCKET, config=request)
    assert said.errors == []
    assert said.code == 0
    warnings = [finding["check"] for finding in said.findings if finding["severity"] == "warning"]
    assert warnings == ["agent-nodes"]
    unread = {finding["check"] for finding in said.findings if finding["severity"] == "unknown"}
    assert unread == {"role-actions", "quota"}  # moto knows neither call

    next(iter(cloud.clusters.clusters["pretrain"].nodes.values())).status = "Failure"
    heartbeat(cloud, datetime.now(UTC) - timedelta(minutes=10))
    request["InstanceGroups"][2]["InstanceCount"] = 5
    said = doctor("--live", "pretrain", "--bucket", BUCKET, config=request)
    assert [error["check"] for error in said.errors] == ["cluster-nodes", "agent-heartbeat"]
    assert said.of("cluster-matches-config", "warning")
    assert said.code == 1


@pytest.mark.process
def test_a_cluster_that_is_not_there_is_an_error(doctor: Doctor, cloud: Cloud) -> None:
    said = doctor("--live", "pretrian", "--bucket", BUCKET)
    assert [(finding["check"], finding["severity"]) for finding in said.findings] == [("cluster-exists", "error")]
    assert said.code == 1


@pytest.mark.parametrize(
    "name", ["pre_train", "-a", "a" * 64, "arn:aws:sagemaker:us-west-2:1:cluster/x", "a b", "\x1b"]
)
def test_what_is_no_clusters_name_is_an_error(doctor: Doctor, name: str) -> None:
    said = doctor(f"--live={name}")
    assert [(finding["check"], finding["severity"]) for finding in said.findings] == [("cluster-exists", "error")]


# ---- what is said of facts ------------------------------------------------------------------------------------------


def described(**changes: Any) -> Subject:
    groups = [
        {"InstanceGroupName": name, "CurrentCount": 2, "TargetCount": 2, "Status": "InService"}
        | {"SoftwareUpdateStatus": "Succeeded", "ExecutionRole": ROLE}
        for name in ("head", "gpu")
    ]
    wire = {"ClusterName": "pretrain", "ClusterStatus": "InService", "NodeRecovery": "Automatic"}
    return from_described(wire | {"InstanceGroups": groups} | changes, "cluster pretrain")


def with_group(**changes: Any) -> Subject:
    subject = described()
    return replace(subject, groups=(subject.groups[0], replace(subject.groups[1], **changes)))


def node(status: str = "Running") -> NodeFacts:
    return NodeFacts(id="i-0a", group="gpu", status=status, message="We currently do not have sufficient capacity")


def briefly(findings: Any) -> list[tuple[str, str]]:
    every: list[Finding] = list(findings)
    return [(finding.check, finding.severity.value) for finding in every]


CLUSTERS: list[tuple[str, Subject, list[NodeFacts] | NotInspected, list[tuple[str, str]]]] = [
    ("all is well", described(), [node()], []),
    ("failed", described(ClusterStatus="Failed", FailureMessage="x"), [], [("cluster-status", "error")]),
    ("rolling back", described(ClusterStatus="RollingBack"), [], [("cluster-status", "error")]),
    ("updating", described(ClusterStatus="Updating"), [], [("cluster-status", "warning")]),
    ("no status", described(ClusterStatus=None), [], [("cluster-status", "warning")]),
    ("a group degraded", with_group(status="Degraded"), [], [("cluster-status", "error")]),
    ("too few", with_group(current=1), [], [("cluster-counts", "warning")]),
    ("too many", with_group(current=3), [], [("cluster-counts", "warning")]),
    ("never patched", with_group(software=None), [], [("cluster-software", "warning")]),
    ("patching failed", with_group(software="Failed"), [], [("cluster-software", "error")]),
    ("patching", with_group(software="InProgress"), [], [("cluster-software", "warning")]),
    ("a node failed", described(), [node(), node("Failure")], [("cluster-nodes", "error")]),
    ("nodes to come", described(), [node("Pending"), node("Pending")], [("cluster-nodes", "warning")]),
    ("nodes unread", described(), NotInspected("no"), [("cluster-nodes", "unknown")]),
]


@pytest.mark.parametrize(
    ("subject", "nodes", "expected"), [row[1:] for row in CLUSTERS], ids=[row[0].replace(" ", "-") for row in CLUSTERS]
)
def test_what_a_cluster_says_of_itself(
    subject: Subject, nodes: list[NodeFacts] | NotInspected, expected: list[tuple[str, str]]
) -> None:
    assert briefly(cluster_findings(subject, nodes)) == expected


def test_only_instances_that_are_missing_need_addresses() -> None:
    subject = described(InstanceGroups=[{"InstanceGroupName": "gpu", "CurrentCount": 3, "TargetCount": 4}])
    assert subject.groups[0].to_start == 1


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"count": 3}, "InstanceCount"),
        ({"types": ("ml.p4d.24xlarge",)}, "InstanceType"),
        ({"role": ROLE + "x"}, "ExecutionRole"),
        ({"plan": "arn"}, "TrainingPlanArn"),
        ({"name": "other"}, ""),
    ],
)
def test_what_differs_from_the_request_is_told(change: dict[str, Any], where: str) -> None:
    request = from_request(
        {
            "NodeRecovery": "Automatic",
            "InstanceGroups": [
                {"InstanceGroupName": name, "InstanceCount": 2, "ExecutionRole": ROLE} for name in ("head", "gpu")
            ],
        },
        "c.json",
    )
    assert briefly(difference_findings(request, described())) == []
    found = list(difference_findings(request, with_group(**change)))
    assert {finding.check for finding in found} == {"cluster-matches-config"}
    assert any(where in one.path for one in found)
    assert briefly(difference_findings(request, replace(described(), recovery="None"))) == [
        ("cluster-matches-config", "warning")
    ]


def agent(**changes: Any) -> documents.AgentDoc:
    usual = documents.AgentDoc(cluster="pretrain", agent_id="a", at=NOW, started_at=NOW, read_at=NOW)
    return replace(usual, **changes)


LONG_AGO = NOW - timedelta(seconds=181)
AGENTS: list[tuple[str, Any, Any, list[tuple[str, str]]]] = [
    ("alive", agent(), "url", []),
    ("just now", agent(at=NOW - timedelta(seconds=180), read_at=NOW - timedelta(seconds=180)), "url", []),
    ("silent", agent(at=LONG_AGO), "url", [("agent-heartbeat", "error")]),
    ("without Slurm", agent(read_at=LONG_AGO), "url", [("agent-heartbeat", "error")]),
    ("without Slurm yet", agent(read_at=None), "url", [("agent-heartbeat", "error")]),
    ("in trouble", agent(problems=("disk full",)), "url", [("agent-heartbeat", "warning")]),
    ("loses age", agent(queue_losses=(QueueFact.WAITING_SINCE,)), "url", [("agent-queue-losses", "warning")]),
    ("never there", Missing(), Missing(), [("agent-heartbeat", "warning"), ("agent-queue", "warning")]),
    ("without a queue", agent(), Missing(), [("agent-queue", "error")]),
    ("unread", NotInspected("no"), NotInspected("no"), [("agent-heartbeat", "unknown"), ("agent-queue", "unknown")]),
]


@pytest.mark.parametrize(
    ("doc", "queue", "expected"), [row[1:] for row in AGENTS], ids=[row[0].replace(" ", "-") for row in AGENTS]
)
def test_the_agent_and_its_queue(doc: Any, queue: Any, expected: list[tuple[str, str]]) -> None:
    assert briefly(agent_findings("c", doc, queue, Missing(), now=NOW)) == expected
