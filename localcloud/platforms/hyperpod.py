"""SageMaker HyperPod as AWS shows it: clusters, nodes, repairs that fail in part, and the events about them.

Source: docs/facts-sagemaker.md, also for durations unless changed; botocore sagemaker model.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from localcloud.aws.answers import AwsError, paged
from localcloud.aws.authorization import ACCOUNT_ID, REGION
from localcloud.aws.clock import Clock
from localcloud.aws.sagemaker import Publish
from localcloud.platforms.hyperpod_cluster import Cluster, Group, Node, cluster_id, event_detail, event_record

OPERATIONS = (
    "CreateCluster",
    "DescribeCluster",
    "ListClusters",
    "UpdateClusterSoftware",
    "ListClusterNodes",
    "DescribeClusterNode",
    "BatchRebootClusterNodes",
    "BatchReplaceClusterNodes",
    "StartClusterHealthCheck",
    "DescribeClusterEvent",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long things take. Source: docs/facts-sagemaker.md#durations."""

    provision: timedelta = timedelta(minutes=20)
    reboot: timedelta = timedelta(minutes=2)
    replace: timedelta = timedelta(minutes=25)
    shut_down: timedelta = timedelta(minutes=2)
    software: timedelta = timedelta(minutes=45)
    health_check: timedelta = timedelta(hours=2)
    recovery: timedelta = timedelta(seconds=33)  # from the health agent's mark to HyperPod's own repair


class Clusters:
    """The SageMaker API for HyperPod clusters. Methods with an API's name take its request and return its answer."""

    def __init__(self, *, clock: Clock, publish: Publish) -> None:
        self._clock = clock
        self._publish = publish
        self._lock = threading.RLock()
        self.timings = Timings()
        self.clusters: dict[str, Cluster] = {}
        # Called where the nodes are real machines and not only records (tests/slurm/lab/hyperpod.py):
        self.on_gone: Callable[[str, Node], None] | None = None  # (cluster, node): it stops, to be replaced or rebooted
        self.on_reboot: Callable[[str, Node], None] | None = None  # (cluster, node): it is back
        self.on_replace: Callable[[str, str, str, Node], None] | None = None  # (cluster, old id, new id, fresh node)

    # ---- faults and marks that tests cause ---------------------------------------------------------------------------

    def break_node(self, cluster: str, instance_id: str, message: str) -> None:
        """The node's status becomes Failure, and a continuous cluster says so."""
        found = self._find(cluster)
        node = found.nodes[instance_id]
        self._set_status(node, "Failure", message)
        self._add_event(found, node, "Error", f"Instance {instance_id} health check failed", failure=message)

    def report_health(
        self, cluster: str, instance_id: str, *, fault: str, status: str = "Unhealthy", action: str = "None"
    ) -> None:
        """Publish a Node Health Event as the health agent does. Source: sagemaker-hyperpod-eventbridge."""
        found = self._find(cluster)
        reason = (
            f"HyperPod Health Monitoring Agent (HMA) has detected fault type {fault} on this node and is unhealthy."
        )
        summary = {"HealthStatus": status, "RepairAction": action, "Recommendation": "", "HealthStatusReason": reason}
        detail = {
            "ClusterName": found.name,
            "ClusterArn": found.arn,
            "InstanceId": instance_id,
            "Tags": {},
            "HealthSummary": summary,
        }
        self._publish("aws.sagemaker", "SageMaker HyperPod Cluster Node Health Event", detail, [found.arn])

    def slurm_marked(self, cluster: str, node: str, reason: str) -> bool:
        """Tell HyperPod that a Slurm node was set to `fail` with this reason; True if it acts on it.

        It does with NodeRecovery Automatic, on exactly these words: docs/facts-sagemaker.md#health-agent.
        """
        found = self._find(cluster)
        act = {"Action:Replace": self._replace, "Action:Reboot": self._reboot}.get(reason)
        with self._lock:
            machine = next(
                (instance for instance in found.nodes.values() if instance.host_name.partition(".")[0] == node), None
            )
        if act is None or machine is None or found.node_recovery != "Automatic":
            return False

        def recover() -> None:
            if machine.busy_with is None and machine.instance_id in found.nodes:
                act(found, machine)

        self._clock.after(self.timings.recovery, recover, label=f"HyperPod recovers {node}")
        return True

    def resource_config(self, cluster: str) -> dict[str, Any]:
        """What stands in /opt/ml/config/resource_config.json now. Source: sagemaker-hyperpod-ref."""
        found = self._find(cluster)
        groups: dict[str, list[dict[str, str]]] = {name: [] for name in found.groups}
        with self._lock:
            for number, node in enumerate(found.nodes.values(), start=1):
                groups[node.group].append(
                    {
                        "InstanceName": f"{node.group}-{number}",
                        "AgentIpAddress": f"172.16.{number // 250}.{number % 250 + 1}",
                        "CustomerIpAddress": node.ip,
                        "InstanceId": node.instance_id,
                    }
                )
        return {
            "ClusterConfig": {"ClusterArn": found.arn, "ClusterName": found.name},
            "InstanceGroups": [
                {"Name": name, "InstanceType": found.groups[name].instance_type, "Instances": instances}
                for name, instances in groups.items()
            ],
        }

    # ---- clusters --------------------------------------------------------------------------------------------------

    def create_cluster(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["ClusterName"]
        with self._lock:
            if name in self.clusters:
                raise AwsError("ResourceInUse", f"Resource Already Exists: Cluster with name {name} already exists.")
            root = f"arn:aws:sagemaker:{REGION}:{ACCOUNT_ID}:cluster/"
            cluster = Cluster(
                name=name,
                arn=root + cluster_id(name),
                request={key: value for key, value in request.items() if key not in ("Tags", "InstanceGroups")},
                tags={tag["Key"]: tag["Value"] for tag in request.get("Tags") or []},
                created_at=self._clock.now(),
            )
            self.clusters[name] = cluster
            for spec in request.get("InstanceGroups") or []:
                self._add_group(cluster, spec)
        self._change(cluster, "Creating")
        self._clock.after(self.timings.provision, lambda: self._in_service(cluster), label=f"{name} in service")
        return {"ClusterArn": cluster.arn}

    def describe_cluster(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return self._find(request["ClusterName"]).describe()

    def list_clusters(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            page, token = paged(list(self.clusters.values()), request)
        summaries = [
            {
                "ClusterArn": cluster.arn,
                "ClusterName": cluster.name,
                "CreationTime": cluster.created_at,
                "ClusterStatus": cluster.status,
            }
            for cluster in page
        ]
        return {"ClusterSummaries": summaries} | ({"NextToken": token} if token else {})

    def update_cluster_software(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._find_in_service(request["ClusterName"])
        with self._lock:
            for group in cluster.groups.values():
                group.software_status = "InProgress"
            for node in cluster.nodes.values():
                self._set_status(node, "SystemUpdating")
        self._change(cluster, "SystemUpdating")

        def updated() -> None:
            for group in cluster.groups.values():
                group.software_status = "Succeeded"
            self._in_service(cluster)

        self._clock.after(self.timings.software, updated, label=f"{cluster.name} patched")
        return {"ClusterArn": cluster.arn}

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def list_cluster_nodes(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            cluster = self._find(request["ClusterName"])
            wanted = request.get("InstanceGroupNameContains") or ""
            found = [node for node in cluster.nodes.values() if wanted in node.group and node.status != "ShuttingDown"]
            found.sort(key=lambda node: (node.launched_at, node.instance_id))
            page, token = paged(found, request)
            with_logical_id = bool(request.get("IncludeNodeLogicalIds"))
            summaries = [cluster.node_summary(node, with_logical_id=with_logical_id) for node in page]
        return {"ClusterNodeSummaries": summaries} | ({"NextToken": token} if token else {})

    def describe_cluster_node(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            cluster = self._find(request["ClusterName"])
            node = cluster.find(request.get("NodeId"), request.get("NodeLogicalId"))
            if node is None:
                raise AwsError("ResourceNotFound", "The requested node could not be found in the cluster.")
            return {"NodeDetails": cluster.describe_node(node)}

    def batch_reboot_cluster_nodes(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._batch(request, self._reboot)

    def batch_replace_cluster_nodes(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._batch(request, self._replace)

    def start_cluster_health_check(self, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self._find_in_service(request["ClusterName"])
        with self._lock:
            if any(node.busy_with == "health check" for node in cluster.nodes.values()):
                raise AwsError("ValidationException", "A deep health check is already in progress on this cluster.")
            for part in request["DeepHealthCheckConfigurations"]:
                ids = part.get("InstanceIds")
                for node in cluster.nodes.values():
                    if node.group == part["InstanceGroupName"] and (not ids or node.instance_id in ids):
                        node.busy_with = "health check"
                        self._set_status(node, "DeepHealthCheckInProgress")
                        self._finish_later(cluster, node, self.timings.health_check)
        return {"ClusterArn": cluster.arn}

    # ---- events ----------------------------------------------------------------------------------------------------

    def describe_cluster_event(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            cluster = self._find_continuous(request["ClusterName"])
            for event in cluster.events:
                if event["EventId"] == request["EventId"]:
                    return {"EventDetails": event}
        raise AwsError("ResourceNotFound", f"Event {request['EventId']} not found.")

    def tags_of(self, arn: str) -> dict[str, str] | None:
        """The tags of a cluster, to be changed in place; None where the ARN is not a cluster's."""
        if ":cluster/" not in arn:
            return None
        return self._find(arn).tags

    # ---- common to the operations ------------------------------------------------------------------------------------

    def _find(self, name_or_arn: str) -> Cluster:
        with self._lock:
            for cluster in self.clusters.values():
                if name_or_arn in (cluster.name, cluster.arn):
                    return cluster
        raise AwsError("ResourceNotFound", f"Cluster {name_or_arn} not found.")

    def _find_in_service(self, name_or_arn: str) -> Cluster:
        cluster = self._find(name_or_arn)
        if cluster.status != "InService":
            raise AwsError("ConflictException", f"Cluster {cluster.name} is in status {cluster.status}.")
        return cluster

    def _find_continuous(self, name_or_arn: str) -> Cluster:
        cluster = self._find(name_or_arn)
        if not cluster.is_continuous:  # a legacy-mode cluster has no events
            raise AwsError("ValidationException", "Cluster events need NodeProvisioningMode Continuous.")
        return cluster

    def _add_group(self, cluster: Cluster, spec: dict[str, Any]) -> None:
        group = Group(spec=dict(spec))
        cluster.groups[group.name] = group
        for _ in range(group.target):
            cluster.add_node(group.name, now=self._clock.now())

    def _in_service(self, cluster: Cluster) -> None:
        with self._lock:
            for group in cluster.groups.values():
                group.status = "InService"
            for node in cluster.nodes.values():
                if node.busy_with is None and node.status in ("Pending", "SystemUpdating"):
                    self._set_status(node, "Running")
        self._change(cluster, "InService")

    def _change(self, cluster: Cluster, status: str) -> None:
        cluster.status = status
        detail = cluster.state_change_detail()
        self._publish("aws.sagemaker", "SageMaker HyperPod Cluster State Change", detail, [cluster.arn])

    def _set_status(self, node: Node, status: str, message: str | None = None) -> None:
        node.status = status
        if message is not None:
            node.message = message

    def _add_event(self, cluster: Cluster, node: Node, level: str, description: str, **more: Any) -> None:
        if not cluster.is_continuous:
            return
        record = event_record(cluster, node, level=level, description=description, at=self._clock.now(), **more)
        cluster.record(record)
        self._publish("aws.sagemaker", "SageMaker HyperPod Cluster Event", event_detail(record), [cluster.arn])

    def _batch(self, request: dict[str, Any], act: Callable[[Cluster, Node], None]) -> dict[str, Any]:
        cluster = self._find(request["ClusterName"])
        if cluster.status != "InService":
            raise AwsError("ValidationException", f"Cluster {cluster.name} is in status {cluster.status}.")
        logical_ids = request.get("NodeLogicalIds") or []
        if logical_ids and not cluster.is_continuous:
            raise AwsError("ValidationException", "NodeLogicalIds need NodeProvisioningMode Continuous.")
        if not logical_ids and not request.get("NodeIds"):
            raise AwsError("ValidationException", "NodeIds or NodeLogicalIds must be given.")
        answer: dict[str, Any] = {}
        with self._lock:
            for node_id in request.get("NodeIds") or []:
                self._act_on(cluster, cluster.find(node_id, None), act, answer, "NodeId", node_id)
            for node_id in logical_ids:
                node = cluster.find(None, node_id)
                self._act_on(cluster, node, act, answer, "NodeLogicalId", node_id)
        return answer

    def _act_on(
        self,
        cluster: Cluster,
        node: Node | None,
        act: Callable[[Cluster, Node], None],
        answer: dict[str, Any],
        id_name: str,
        node_id: str,
    ) -> None:
        """Begin the action on one node of a batch, or add to the answer why it is refused."""
        succeeded, failed = "Successful", "Failed"
        if id_name == "NodeLogicalId":
            succeeded, failed = "SuccessfulNodeLogicalIds", "FailedNodeLogicalIds"
        code = message = None
        if node is None:
            code, message = "InstanceIdNotFound", "The instance is not part of the cluster."
        elif cluster.groups[node.group].is_controller:
            code, message = "InvalidInstanceStatus", "The operation is not supported on Slurm controller nodes."
        elif node.busy_with is not None:
            code, message = "InstanceIdInUse", f"Another operation is in progress: {node.busy_with}."
        elif node.status not in ("Running", "Failure"):
            code, message = "InvalidInstanceStatus", f"The instance is in status {node.status}."
        if code is not None:
            answer.setdefault(failed, []).append({id_name: node_id, "ErrorCode": code, "Message": message})
        elif node is not None:
            act(cluster, node)
            answer.setdefault(succeeded, []).append(node_id)

    def _reboot(self, cluster: Cluster, node: Node) -> None:
        node.busy_with = "reboot"
        self._set_status(node, "Pending")
        where = f"on Cluster {cluster.name} and IG {node.group}"
        text = f"Reboot of EC2 Instance {node.instance_id} is currently in progress {where}"
        self._add_event(cluster, node, "Info", text)
        if self.on_gone is not None:
            self.on_gone(cluster.name, node)
        self._finish_later(cluster, node, self.timings.reboot)

    def _finish_later(self, cluster: Cluster, node: Node, delay: timedelta) -> None:
        """After `delay` the node's reboot or health check is over, and it is Running."""

        def running() -> None:
            if node.busy_with == "reboot" and self.on_reboot is not None:
                self.on_reboot(cluster.name, node)
            node.busy_with = None
            if node.instance_id in cluster.nodes:
                self._set_status(node, "Running")

        self._clock.after(delay, running, label=f"{node.instance_id} runs again")

    def _replace(self, cluster: Cluster, node: Node) -> None:
        """Terminate the instance and launch another: new instance id, usually the old address."""
        node.busy_with = "replacement"
        self._set_status(node, "ShuttingDown")
        operation_id = str(uuid.uuid4())
        if self.on_gone is not None:
            self.on_gone(cluster.name, node)

        def launch() -> None:
            with self._lock:
                cluster.nodes.pop(node.instance_id, None)
                fresh = cluster.add_node(node.group, now=self._clock.now(), ip=node.ip, logical_id=node.logical_id)
                fresh.busy_with = "replacement"
            text = f"Instance {fresh.instance_id} is starting as part of instance replacement"
            self._add_event(cluster, fresh, "Info", text, operation_id=operation_id)
            self._clock.after(
                self.timings.replace - self.timings.shut_down,
                lambda: self._replaced(cluster, node.instance_id, fresh, operation_id),
                label=f"{fresh.instance_id} replaces {node.instance_id}",
            )

        self._clock.after(self.timings.shut_down, launch, label=f"{node.instance_id} goes")

    def _replaced(self, cluster: Cluster, old_id: str, fresh: Node, operation_id: str) -> None:
        fresh.busy_with = None
        if self.on_replace is not None:
            self.on_replace(cluster.name, old_id, fresh.instance_id, fresh)
        self._set_status(fresh, "Running")
        text = f"Instance {fresh.instance_id} creation completed successfully as part of instance replacement"
        self._add_event(cluster, fresh, "Info", text, operation_id=operation_id)
