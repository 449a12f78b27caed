"""What a HyperPod cluster is made of on the embedded cloud: groups, nodes, and its record of events.

Source: docs/facts-sagemaker.md; botocore sagemaker model.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from localcloud.aws.authorization import ACCOUNT_ID, REGION

# Members of a group's specification that its details carry on unchanged. Source: botocore, both shapes.
_KEPT = (
    "InstanceType",
    "LifeCycleConfig",
    "ExecutionRole",
    "ThreadsPerCore",
    "InstanceStorageConfigs",
    "OnStartDeepHealthChecks",
    "TrainingPlanArn",
    "OverrideVpcConfig",
    "ScheduledUpdateConfig",
    "SlurmConfig",
    "CapacityRequirements",
)
_KEPT_EVENTS = 500  # Source: docs/facts-sagemaker.md#hyperpod-events


@dataclass(slots=True, kw_only=True)
class Node:
    """One instance. `message` is sticky, as in AWS: it may tell of an earlier attempt."""

    instance_id: str
    logical_id: str
    group: str
    ip: str
    launched_at: datetime
    status: str = "Pending"
    message: str = ""
    busy_with: str | None = None

    @property
    def host_name(self) -> str:
        return f"ip-{self.ip.replace('.', '-')}.us-west-2.compute.internal"

    def status_details(self) -> dict[str, Any]:
        return {"Status": self.status} | ({"Message": self.message} if self.message else {})


@dataclass(slots=True, kw_only=True)
class Group:
    """An instance group, as it was asked for."""

    spec: dict[str, Any]
    status: str = "Creating"
    software_status: str | None = None

    @property
    def name(self) -> str:
        return str(self.spec["InstanceGroupName"])

    @property
    def target(self) -> int:
        return int(self.spec["InstanceCount"])

    @property
    def instance_type(self) -> str:
        return str(self.spec.get("InstanceType", "ml.p5.48xlarge"))

    @property
    def is_controller(self) -> bool:
        return bool((self.spec.get("SlurmConfig") or {}).get("NodeType") == "Controller")


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A cluster with its nodes; `events` are (answer of DescribeClusterEvent), oldest first."""

    name: str
    arn: str
    request: dict[str, Any]
    tags: dict[str, str]
    created_at: datetime
    status: str = "Creating"
    groups: dict[str, Group] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    launches: int = 0

    @property
    def is_continuous(self) -> bool:
        return bool(self.request.get("NodeProvisioningMode") == "Continuous")

    @property
    def node_recovery(self) -> str:
        return str(self.request.get("NodeRecovery", "Automatic"))

    def add_node(self, group: str, *, now: datetime, ip: str | None = None, logical_id: str | None = None) -> Node:
        """A new instance, still pending. Its id is new; address and logical id may be a predecessor's."""
        self.launches += 1
        digest = hashlib.sha256(f"{self.arn}/{self.launches}".encode()).hexdigest()
        node = Node(
            instance_id=f"i-0{digest[:16]}",
            logical_id=logical_id or f"{group}-{self.launches:05d}",
            group=group,
            ip=ip or f"10.1.{self.launches // 250}.{self.launches % 250 + 1}",
            launched_at=now,
        )
        self.nodes[node.instance_id] = node
        return node

    def record(self, event: dict[str, Any]) -> None:
        """Keep an event; only the latest are kept."""
        self.events.append(event)
        del self.events[:-_KEPT_EVENTS]

    def find(self, node_id: str | None, logical_id: str | None) -> Node | None:
        """A node by either of its ids."""
        if node_id is not None:
            return self.nodes.get(node_id)
        return next((node for node in self.nodes.values() if node.logical_id == logical_id), None)

    def current_count(self, group: str) -> int:
        """Nodes that are there, dying ones not counted (the list drops them first)."""
        return sum(
            node.group == group and node.status not in ("ShuttingDown", "Pending") for node in self.nodes.values()
        )

    def describe(self) -> dict[str, Any]:
        """The answer of DescribeCluster."""
        answer: dict[str, Any] = {
            "ClusterArn": self.arn,
            "ClusterName": self.name,
            "ClusterStatus": self.status,
            "CreationTime": self.created_at,
            "FailureMessage": "",
            "InstanceGroups": [self.describe_group(group) for group in self.groups.values()],
            "NodeRecovery": self.node_recovery,
        }
        for name in ("VpcConfig", "Orchestrator", "NodeProvisioningMode", "ClusterRole"):
            if self.request.get(name) is not None:
                answer[name] = self.request[name]
        return answer

    def describe_group(self, group: Group) -> dict[str, Any]:
        """One entry of InstanceGroups."""
        details = {key: group.spec[key] for key in _KEPT if key in group.spec}
        details |= {
            "InstanceGroupName": group.name,
            "CurrentCount": self.current_count(group.name),
            "TargetCount": group.target,
            "Status": group.status,
        }
        if "MinInstanceCount" in group.spec:
            details["MinCount"] = group.spec["MinInstanceCount"]
        if group.software_status is not None:
            details["SoftwareUpdateStatus"] = group.software_status
        return details

    def describe_node(self, node: Node) -> dict[str, Any]:
        """NodeDetails of DescribeClusterNode."""
        group = self.groups[node.group]
        details: dict[str, Any] = {
            "InstanceGroupName": node.group,
            "InstanceId": node.instance_id,
            "NodeLogicalId": node.logical_id,
            "InstanceStatus": node.status_details(),
            "InstanceType": group.instance_type,
            "LaunchTime": node.launched_at,
            "Placement": {"AvailabilityZone": "us-west-2a", "AvailabilityZoneId": "usw2-az1"},
        }
        if node.status != "Pending":
            details |= {"PrivatePrimaryIp": node.ip, "PrivateDnsHostname": node.host_name}
        for key in ("LifeCycleConfig", "ThreadsPerCore"):
            if key in group.spec:
                details[key] = group.spec[key]
        return details

    def node_summary(self, node: Node, *, with_logical_id: bool) -> dict[str, Any]:
        """One entry of ListClusterNodes."""
        entry: dict[str, Any] = {
            "InstanceGroupName": node.group,
            "InstanceId": node.instance_id,
            "InstanceType": self.groups[node.group].instance_type,
            "LaunchTime": node.launched_at,
            "InstanceStatus": node.status_details(),
        }
        if node.status != "Pending":
            entry["PrivateDnsHostname"] = node.host_name
        return entry | ({"NodeLogicalId": node.logical_id} if with_logical_id else {})

    def state_change_detail(self) -> dict[str, Any]:
        """Detail of `SageMaker HyperPod Cluster State Change`; its CreationTime is epoch milliseconds."""
        detail = self.describe()
        detail["CreationTime"] = int(self.created_at.timestamp() * 1000)
        return detail


def instance_group(name: str, count: int, slurm: dict[str, Any]) -> dict[str, Any]:
    """One instance group of CreateCluster; `slurm` is its SlurmConfig."""
    return {
        "InstanceGroupName": name,
        "InstanceType": "ml.p5.48xlarge",
        "InstanceCount": count,
        "LifeCycleConfig": {"SourceS3Uri": "s3://sagemaker-lifecycle/src", "OnCreate": "on_create.sh"},
        "ExecutionRole": "arn:aws:iam::123456789012:role/hyperpod",
        "SlurmConfig": slurm,
    }


def cluster_id(name: str) -> str:
    """The 12 characters at the end of a cluster's ARN, which are not its name."""
    digest = int(hashlib.sha256(f"{ACCOUNT_ID}/{REGION}/{name}".encode()).hexdigest(), 16)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    return "".join(letters[(digest // 36**place) % 36] for place in range(12))


def event_record(
    cluster: Cluster,
    node: Node,
    *,
    level: str,
    description: str,
    at: datetime,
    failure: str | None = None,
    operation_id: str | None = None,
) -> dict[str, Any]:
    """One event of a cluster's about a node, as DescribeClusterEvent gives it."""
    metadata = {"NodeLogicalId": node.logical_id}
    if failure is not None:
        metadata["FailureMessage"] = failure
    return {
        "EventId": str(uuid.uuid4()),
        "ClusterArn": cluster.arn,
        "ClusterName": cluster.name,
        "ResourceType": "Instance",
        "EventTime": at,
        "EventLevel": level,
        "Description": description,
        "OperationId": operation_id or str(uuid.uuid4()),
        "EventDetails": {"EventMetadata": {"Instance": metadata}},
        "InstanceId": node.instance_id,
        "InstanceGroupName": node.group,
    }


# The envelope's copy carries its metadata as nulls; these are the subtrees it shows.
_NULL_METADATA = ("Cluster", "Instance", "InstanceGroup", "InstanceGroupScaling", "InstanceMonitor", "InstanceHealth")


def event_detail(record: dict[str, Any]) -> dict[str, Any]:
    """Detail of the EventBridge event that announces a cluster event."""
    reported = {key: value for key, value in record.items() if key != "EventDetails"}
    reported["EventTime"] = int(record["EventTime"].timestamp() * 1000)
    reported["EventDetails"] = {"EventMetadata": dict.fromkeys(_NULL_METADATA)}
    return {"EventDetails": reported}
