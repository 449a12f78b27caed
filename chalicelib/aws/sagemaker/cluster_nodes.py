"""HyperPod's nodes through SageMaker's API: read, rebooted, replaced, checked.

Source: docs/facts-sagemaker.md#node-repair. HTTP 200 may carry `Failed[]`: each instance has its own answer. The
calls take no client token; services.nodes looks before it orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.aws.sagemaker.tags import tags_of
from chalicelib.domain.model.action import ActionResult, Done
from chalicelib.domain.model.errors import Permanent
from chalicelib.domain.model.node import ClusterView, GroupRole, InstanceState, InstanceView, NodeRecovery

BATCH: Final = 25  # Source: botocore, BatchReplaceClusterNodes and BatchRebootClusterNodes, NodeIds
TAG_CLUSTER: Final = "rekindle:cluster"  # on a HyperPod cluster whose head nodes go by another name than its own
CHECKS: Final = ("InstanceStress", "InstanceConnectivity")
_ABSENT: Final = ("ResourceNotFound", "ResourceNotFoundException")
# ValidationException and ConflictException are in no model of these calls, and come all the same.
_REFUSALS: Final = (*_ABSENT, "ValidationException", "ConflictException")
_PREREQUISITE: Final = (
    "HyperPod repairs nodes through its API only in a cluster that is InService and has been patched with"
    " UpdateClusterSoftware at least once (a cluster made before the API came needs that), and never a Slurm controller"
)

# What a per-instance ErrorCode means to the node's Incident. Source: botocore, BatchReplaceClusterNodesErrorCode.
_CODES: Final[Mapping[str, Done]] = {
    "InstanceIdNotFound": Done.ALREADY,  # no longer the node's: replaced, or being replaced
    "InstanceIdInUse": Done.ALREADY,  # another operation is at work on it
    "InvalidInstanceStatus": Done.UNAVAILABLE,  # not now: the next look sees why
    "InternalServerError": Done.UNAVAILABLE,
}


class SageMakerClusterNodes:
    """ports.ClusterNodes; `client` is a boto3 SageMaker client. `cluster` is a name or an ARN throughout."""

    def __init__(self, client: Any) -> None:
        self._client = client

    # ---- reading ---------------------------------------------------------------------------------------------------

    def cluster(self, cluster: str) -> ClusterView | None:
        try:
            answer = call(self._client.describe_cluster, expect=_REFUSALS, ClusterName=cluster)
        except AwsRefusal as refusal:
            if refusal.code in _ABSENT:
                return None
            raise Permanent(f"describe_cluster: {refusal}") from refusal
        recovery = str(answer.get("NodeRecovery") or "")
        roles = {
            str(group["InstanceGroupName"]): _role(group)
            for group in answer.get("InstanceGroups") or ()
            if _role(group) is not GroupRole.UNKNOWN
        }
        is_known = recovery in (NodeRecovery.AUTOMATIC, NodeRecovery.NONE)
        return ClusterView(
            status=str(answer.get("ClusterStatus") or ""),
            recovery=NodeRecovery(recovery) if is_known else NodeRecovery.UNKNOWN,
            roles=roles,
            name=str(answer.get("ClusterName") or ""),
        )

    def alias(self, arn: str) -> str:
        return tags_of(self._client, arn, absent=_ABSENT).get(TAG_CLUSTER, "")

    def instance(
        self, cluster: str, *, node: str, instance_id: str | None, logical_id: str | None
    ) -> InstanceView | None:
        """See ports.ClusterNodes. One call while the instance is there; the whole list once it is not."""
        seen = self._describe(cluster, instance_id) if instance_id else None
        is_leaving = seen is None or seen.state in (InstanceState.SHUTTING_DOWN, InstanceState.NOT_FOUND)
        if not is_leaving:
            return seen
        for listed in self._listed(cluster, with_logical_ids=logical_id is not None):
            is_same_name = str(listed.get("PrivateDnsHostname") or "").partition(".")[0] == node
            is_same_place = logical_id is not None and listed.get("NodeLogicalId") == logical_id
            if (is_same_name or is_same_place) and listed.get("InstanceId") != instance_id:
                return _view(listed)
        return seen

    def _describe(self, cluster: str, instance_id: str) -> InstanceView | None:
        try:
            answer = call(self._client.describe_cluster_node, expect=_REFUSALS, ClusterName=cluster, NodeId=instance_id)
        except AwsRefusal as refusal:
            if refusal.code in _ABSENT:
                return None
            raise Permanent(f"describe_cluster_node: {refusal}") from refusal
        return _view(answer["NodeDetails"])

    def _listed(self, cluster: str, *, with_logical_ids: bool) -> Iterator[Mapping[str, Any]]:
        request: dict[str, Any] = {"ClusterName": cluster, "MaxResults": 100}
        if with_logical_ids:
            request["IncludeNodeLogicalIds"] = True
        while True:
            try:
                page = call(self._client.list_cluster_nodes, expect=_ABSENT, **request)
            except AwsRefusal:
                return
            yield from page.get("ClusterNodeSummaries") or ()
            if not page.get("NextToken"):
                return
            request["NextToken"] = page["NextToken"]

    # ---- orders ----------------------------------------------------------------------------------------------------

    def reboot(self, cluster: str, instance_ids: Sequence[str]) -> Mapping[str, ActionResult]:
        return self._batch("RebootNode", self._client.batch_reboot_cluster_nodes, cluster, instance_ids)

    def replace(self, cluster: str, instance_ids: Sequence[str]) -> Mapping[str, ActionResult]:
        return self._batch("ReplaceNode", self._client.batch_replace_cluster_nodes, cluster, instance_ids)

    def _batch(self, action: str, method: Any, cluster: str, instance_ids: Sequence[str]) -> Mapping[str, ActionResult]:
        answers: dict[str, ActionResult] = {}
        rest = iter(dict.fromkeys(instance_ids))
        while ids := list(islice(rest, BATCH)):
            try:
                answer = call(method, expect=_REFUSALS, ClusterName=cluster, NodeIds=ids)
            except AwsRefusal as refusal:
                result = _refused(action, refusal)
                answers |= dict.fromkeys(ids, result)
                continue
            good = set(answer.get("Successful") or ())
            failed = {str(failure["NodeId"]): failure for failure in answer.get("Failed") or ()}
            for node_id in ids:
                answers[node_id] = _answer(action, node_id, is_taken=node_id in good, failure=failed.get(node_id))
        return answers

    def check(self, cluster: str, *, group: str, instance_ids: Sequence[str]) -> ActionResult:
        wanted = {"InstanceGroupName": group, "InstanceIds": list(instance_ids), "DeepHealthChecks": list(CHECKS)}
        try:
            call(
                self._client.start_cluster_health_check,
                expect=_REFUSALS,
                ClusterName=cluster,
                DeepHealthCheckConfigurations=[wanted],
            )
        except AwsRefusal as refusal:
            # Source: SageMaker API reference, StartClusterHealthCheck: one active check per cluster.
            is_busy = refusal.code == "ConflictException" or "in progress" in refusal.message.lower()
            done = Done.CAPACITY if is_busy else Done.REFUSED
            return ActionResult(action="CheckNode", done=done, detail=f"{refusal}"[:400])
        return ActionResult(action="CheckNode", done=Done.DONE, detail=f"{', '.join(CHECKS)} of {instance_ids[0]}")


def _refused(action: str, refusal: AwsRefusal) -> ActionResult:
    """Refused for all of them. A cluster that is being changed takes the same order later."""
    if refusal.code == "ConflictException" or "is in status" in refusal.message:
        return ActionResult(action=action, done=Done.UNAVAILABLE, detail=f"the cluster is busy: {refusal}"[:400])
    text = f"{refusal}" if refusal.code in _ABSENT else f"{refusal}. {_PREREQUISITE}"
    return ActionResult(action=action, done=Done.REFUSED, detail=text[:400])


def _answer(action: str, instance_id: str, *, is_taken: bool, failure: Mapping[str, Any] | None) -> ActionResult:
    if failure is None:
        done = Done.DONE if is_taken else Done.UNAVAILABLE
        text = "" if is_taken else ": named neither as taken nor as failed"
        return ActionResult(action=action, done=done, detail=f"{instance_id}{text}")
    code, message = str(failure.get("ErrorCode") or "Unknown"), str(failure.get("Message") or "")
    done = _CODES.get(code, Done.UNAVAILABLE)
    text = f"{instance_id}: {message} [{code}]"
    if code == "InvalidInstanceStatus" and ("controller" in message.lower() or "UpdateClusterSoftware" in message):
        done, text = Done.REFUSED, f"{text}. {_PREREQUISITE}"
    return ActionResult(action=action, done=done, detail=text[:400])


def _view(details: Mapping[str, Any]) -> InstanceView:
    status = details.get("InstanceStatus") or {}
    word = str(status.get("Status") or "")
    return InstanceView(
        instance_id=str(details["InstanceId"]),
        state=InstanceState(word) if word in InstanceState.__members__.values() else InstanceState.OTHER,
        group=str(details.get("InstanceGroupName") or ""),
        message=str(status.get("Message") or "")[:1000],
        logical_id=details.get("NodeLogicalId"),
        launched_at=details.get("LaunchTime"),
    )


def _role(group: Mapping[str, Any]) -> GroupRole:
    word = str((group.get("SlurmConfig") or {}).get("NodeType") or "")
    return GroupRole(word) if word in GroupRole.__members__.values() else GroupRole.UNKNOWN
