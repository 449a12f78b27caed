"""Parses the three HyperPod events (aws.sagemaker, best effort, duplicated, unordered) into Signals.

`ingest/dispatch.py` calls the `parse_` functions; `enrich` adds what DescribeClusterEvent says.

    SageMaker HyperPod Cluster State Change
    "detail": {"ClusterArn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/k3v9m2x7q1ab", "ClusterName": "pretrain",
     "ClusterStatus": "Updating", "FailureMessage": "", "NodeRecovery": "Automatic",
     "InstanceGroups": [{"InstanceGroupName": "gpu", "CurrentCount": 15, "TargetCount": 16, "Status": "Updating"}]}

    SageMaker HyperPod Cluster Node Health Event      (no level, no group: look the group up with DescribeClusterNode)
    "detail": {"ClusterName": "pretrain", "ClusterArn": "…", "InstanceId": "i-0a1b2c3d4e5f60718",
     "HealthSummary": {"HealthStatus": "Unhealthy", "RepairAction": "None", "Recommendation": "…",
      "HealthStatusReason": "… has detected fault type NvidiaErrorTerminate on this node and is unhealthy."}}

    SageMaker HyperPod Cluster Event                  (Continuous mode only; metadata subtrees are JSON null)
    "detail": {"EventDetails": {"EventId": "0b7d4c52-…", "ClusterArn": "…", "ClusterName": "pretrain",
     "InstanceGroupName": "gpu", "InstanceId": "i-0a1b2c3d4e5f60718", "ResourceType": "Instance",
     "EventTime": 1795168800000, "EventLevel": "Error", "Description": "Instance creation in Cluster pretrain …",
     "EventDetails": {"EventMetadata": {"Cluster": null, "Instance": null}}}}

One fault gives two Error events about a second apart, so the dedupe key joins events of one meaning on (cluster, group,
instance or logical id, minute). A pair that straddles a full minute stays two Signals of one Incident.

Source: SageMaker developer guide, sagemaker-hyperpod-eventbridge and sagemaker-hyperpod-cluster-events-reference;
botocore; awslabs/awsome-distributed-ai, hyperpod-mental-model.md (nulls, pairs, noise).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from chalicelib.domain.model.errors import Noise
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ingest.envelope import Envelope
from chalicelib.ingest.evidence import bounded, dedupe_key, digest, minute, one_line
from chalicelib.ingest.fields import GROUP_NAME, INSTANCE_ID, RESOURCE_NAME, Fields
from chalicelib.ingest.hyperpod_catalogue import ParsedDescription, Told, read_description
from rekindle.protocol.signals import FaultClass

# Source: botocore, sagemaker ClusterStatus
CLUSTER_STATUSES: Final = ("Creating", "Deleting", "Failed", "InService", "RollingBack", "SystemUpdating", "Updating")
_BAD_CLUSTER: Final = frozenset({"Failed", "RollingBack"})
_BAD_GROUP: Final = frozenset({"Failed", "Degraded"})
_LEVELS: Final = ("Info", "Warn", "Error")
_CLUSTER_ARN: Final = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]{1,32}:[0-9]{12}:cluster/[a-z0-9]{12}")
_FAULT_TYPE: Final = re.compile(r"fault type (.{1,128}?) on this node")
# The repair the health agent wants; "None" is the documented sample. The full list is not documented.
_REPAIRS: Final = frozenset({"Replace", "Reboot"})


def parse_cluster_state(envelope: Envelope) -> Signal:
    """A state of the cluster. A bad state, of it or of a group, is UNCLEAR, since no run is named; InService is news.

    Raises:
        MalformedEvent: names the field.
        Noise: the cluster is being created or scaled, and nothing in it has failed.
    """
    detail = envelope.detail
    cluster, arn = _cluster(detail)
    status = detail.word("ClusterStatus", CLUSTER_STATUSES)
    message = detail.optional_text("FailureMessage")
    groups = [_group(group) for group in detail.children("InstanceGroups")]
    bad_groups = [group["name"] for group in groups if group["status"] in _BAD_GROUP]
    is_scaling = any(_is_scaling(group) for group in groups)
    is_bad = status in _BAD_CLUSTER or bool(bad_groups)
    # InService alone does not mean idle: in Continuous mode only the counts say so.
    if not is_bad and (status in ("Creating", "Updating") or (status == "InService" and is_scaling)):
        raise Noise("scaling")
    about = f", groups {', '.join(bad_groups)} in trouble" if bad_groups else ""
    return Signal(
        kind=SignalKind.CLUSTER_STATE,
        source=SignalSource.SAGEMAKER,
        occurred_at=envelope.time,
        dedupe_key=dedupe_key("hyperpod-state", arn, status, digest([groups, message]), minute(envelope.time)),
        summary=one_line(f"cluster {cluster} is {status}{about}{f': {message}' if message else ''}"),
        cluster=cluster,
        fault=FaultClass.UNCLEAR if is_bad else None,
        triggers=is_bad,
        evidence=bounded(
            {
                "status": status,
                "failure_message": message,
                "bad_groups": bad_groups or None,
                "node_recovery": detail.optional_text("NodeRecovery", limit=32),
                "groups": groups,
            }
        ),
    )


def _is_scaling(group: Mapping[str, Any]) -> bool:
    current, target = group["current"], group["target"]
    return current is not None and target is not None and current != target


def _group(group: Fields) -> dict[str, Any]:
    return {
        "name": group.optional_text("InstanceGroupName", limit=63, pattern=GROUP_NAME) or "not named",
        "status": group.optional_text("Status", limit=64),
        "current": group.optional_whole("CurrentCount", high=10**6),
        "target": group.optional_whole("TargetCount", high=10**6),
    }


def parse_node_health(envelope: Envelope) -> Signal:
    """The health agent's report about one node. Its `RepairAction` outranks any table of ours.

    The list of `HealthStatus` values is not documented beyond Healthy and Unhealthy: another one is UNCLEAR, which is
    neither healthy nor a reason to act alone.

    Raises:
        MalformedEvent: names the field.
    """
    detail = envelope.detail
    cluster, arn = _cluster(detail)
    node = detail.text("InstanceId", pattern=INSTANCE_ID)
    health = detail.child("HealthSummary")
    status = health.text("HealthStatus", limit=128)
    repair = health.optional_text("RepairAction", limit=128)
    reason = health.optional_text("HealthStatusReason") or ""
    named = _FAULT_TYPE.search(reason)
    fault_type = named[1] if named else None
    fault = _health_fault(status, repair)
    return Signal(
        kind=SignalKind.NODE_HEALTH,
        source=SignalSource.SAGEMAKER,
        occurred_at=envelope.time,
        dedupe_key=dedupe_key("hyperpod-health", arn, node, status, repair, fault_type, minute(envelope.time)),
        summary=one_line(
            f"{node} is {status}{f' ({fault_type})' if fault_type else ''}, repair {repair or 'not named'}"
        ),
        cluster=cluster,
        node=node,
        fault=fault,
        triggers=fault is FaultClass.NODE_HARDWARE,
        evidence=bounded(
            {
                "health_status": status,
                "repair_action": repair,
                "fault_type": fault_type,
                "needs_group": True,
                "reason": reason or None,
                "recommendation": health.optional_text("Recommendation"),
            }
        ),
    )


def _health_fault(status: object, repair: object) -> FaultClass | None:
    if status == "Unhealthy" or repair in _REPAIRS:
        return FaultClass.NODE_HARDWARE
    return None if status == "Healthy" else FaultClass.UNCLEAR


def parse_cluster_event(envelope: Envelope, *, groups_in_motion: bool | None = None) -> Signal:
    """A cluster event, read through its description.

    `groups_in_motion` says whether any group's CurrentCount differs from its TargetCount; None means that was not read.
    Only an Error triggers; an unknown description is UNCLEAR at Error and news below. `evidence` holds `known`,
    and `needs_enrichment` where the reason is only in DescribeClusterEvent (see `enrich`).

    Raises:
        MalformedEvent: names the field.
        Noise: an Info event, or an event of scaling while a group is in motion.
    """
    event = envelope.detail.child("EventDetails")
    event_id = event.text("EventId", limit=128)
    cluster, arn = _cluster(event)
    occurred_at = event.optional_moment("EventTime") or envelope.time
    description = event.optional_text("Description")
    level = _level(event, description)
    group = event.optional_text("InstanceGroupName", limit=63, pattern=GROUP_NAME)
    instance = event.optional_text("InstanceId", pattern=INSTANCE_ID)
    metadata = event.optional_child("EventDetails").optional_child("EventMetadata")
    logical_id = metadata.optional_child("Instance").optional_text("NodeLogicalId", limit=128)
    if level == "Info":
        raise Noise("info event")
    meaning = read_description(description)
    if meaning.told is Told.SCALING and groups_in_motion:
        raise Noise("scaling")
    fault = _event_fault(meaning, level, groups_in_motion)
    node = instance or meaning.instance
    what = digest(meaning.pattern or description or event_id)
    signal = Signal(
        kind=SignalKind.CLUSTER_EVENT,
        source=SignalSource.SAGEMAKER,
        occurred_at=occurred_at,
        dedupe_key=dedupe_key("hyperpod-event", arn, group, node or logical_id, what, minute(occurred_at)),
        summary=one_line(description or f"cluster {cluster}: {level} event without a description"),
        cluster=cluster,
        node=node,
        fault=fault,
        triggers=fault is not None and (level == "Error" or fault is FaultClass.NODE_LOST),
        evidence=bounded(
            {
                "event_id": event_id,
                "level": level,
                "known": meaning.told is not Told.UNKNOWN,
                "group": group,
                "logical_id": logical_id,
                "needs_groups": True if meaning.told is Told.SCALING and groups_in_motion is None else None,
                "needs_enrichment": True if _is_bare(metadata) else None,
                "operation_id": event.optional_text("OperationId", limit=128),
                "cluster_arn": arn,
                "description": description,
            }
        ),
    )
    return signal if _is_bare(metadata) else _with_metadata(signal, metadata.body)


def _level(event: Fields, description: str | None) -> str:
    """The event's level; where it names none, Error if its description says that something failed, else Warn."""
    level = event.optional_word("EventLevel", _LEVELS)
    if level is not None:
        return level
    return "Error" if read_description(description).told in (Told.LOST, Told.PLATFORM, Told.FAILED) else "Warn"


def _event_fault(meaning: ParsedDescription, level: str, groups_in_motion: bool | None) -> FaultClass | None:
    if meaning.told is Told.UNKNOWN:
        return FaultClass.UNCLEAR if level == "Error" else None
    if meaning.told is Told.SCALING:
        # Whether nodes were lost or are merely being added cannot be told without the counts.
        return FaultClass.NODE_LOST if groups_in_motion is False else None
    if meaning.told is Told.LOST and level != "Error":
        return FaultClass.UNCLEAR
    return meaning.told.fault


def _is_bare(metadata: Fields) -> bool:
    return all(subtree is None for subtree in metadata.body.values())


def _cluster(fields: Fields) -> tuple[str, str]:
    return fields.text("ClusterName", limit=63, pattern=RESOURCE_NAME), fields.text("ClusterArn", pattern=_CLUSTER_ARN)


# What a FailureMessage says, by its words. Source: field notes, hyperpod-mental-model.md (capacity is not cured by
# retrying, EFA is often transient); the meaningless text belongs to the scaling noise.
MESSAGE_REASONS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"sufficient capacity|InsufficientInstanceCapacity|insufficient capacity", re.IGNORECASE), "capacity"),
    (re.compile(r"EFA health checks? did not run", re.IGNORECASE), "efa"),
    (re.compile(r"lifecycle script", re.IGNORECASE), "lifecycle_script"),
    (re.compile(r"Request to service failed\. If failure persists", re.IGNORECASE), "meaningless"),
)
_MAX_NODES_WALKED: Final = 2000  # bounds the walk over a foreign answer


def enrich(signal: Signal, response: Mapping[str, Any]) -> Signal:
    """The Signal with what DescribeClusterEvent says: every FailureMessage, and the node's health where it is given.

    `response` is the operation's answer; the metadata sits at EventDetails.EventDetails.EventMetadata. An answer
    without metadata leaves the fault as it is. The dedupe key never changes.

    Raises:
        MalformedEvent: the answer's outer objects are not objects.
    """
    event = Fields("", response).optional_child("EventDetails")
    metadata = event.optional_child("EventDetails").optional_child("EventMetadata")
    return _with_metadata(signal, metadata.body)


def _with_metadata(signal: Signal, metadata: Mapping[str, Any]) -> Signal:
    messages, health = _failures_and_health(metadata)
    reasons = [_message_reason(message) for message in messages]
    telling = [reason for reason in reasons if reason != "meaningless"]
    status, repair = health.get("HealthStatus"), health.get("RepairAction")
    is_unhealthy = _health_fault(status, repair) is FaultClass.NODE_HARDWARE
    fault = FaultClass.NODE_HARDWARE if is_unhealthy else _fault_with_reasons(signal.fault, telling)
    evidence = {
        name: value for name, value in signal.evidence.items() if name not in ("needs_enrichment", "description")
    }
    text = messages[reasons.index(telling[0])] if telling else None
    return dataclasses.replace(
        signal,
        fault=fault,
        triggers=signal.triggers or is_unhealthy,
        summary=one_line(f"{signal.summary}: {text}") if text else signal.summary,
        evidence=bounded(
            {
                **evidence,
                "reason": next((reason for reason in telling if reason != "other"), None),
                "failure_messages": messages or None,
                "health_status": status if isinstance(status, str) else None,
                "repair_action": repair if isinstance(repair, str) else None,
                "health_reason": health.get("HealthStatusReason"),
                "description": signal.evidence.get("description"),
            }
        ),
    )


def _failures_and_health(metadata: Mapping[str, Any]) -> tuple[list[str], Mapping[str, Any]]:
    """Each failure message once, in order, and the last health of the node, wherever in the tree they stand."""
    messages: dict[str, None] = {}
    health: Mapping[str, Any] = {}
    for subtree in _objects(metadata):
        message, info = subtree.get("FailureMessage"), subtree.get("NodeHealthInfo")
        if isinstance(message, str) and message:
            messages[message] = None
        if isinstance(info, Mapping):
            health = info
    return list(messages), health


def _fault_with_reasons(fault: FaultClass | None, reasons: list[str]) -> FaultClass | None:
    """What the failure messages add to the event's own fault."""
    if fault in (None, FaultClass.UNCLEAR) and ("capacity" in reasons or "efa" in reasons):
        return FaultClass.PLATFORM_ERROR
    return FaultClass.UNCLEAR if reasons and fault is None else fault


def _message_reason(message: str) -> str:
    return next((reason for pattern, reason in MESSAGE_REASONS if pattern.search(message[:4096])), "other")


def _objects(root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every object in a JSON tree, the root first, breadth first, at most _MAX_NODES_WALKED of them."""
    queue: list[Any] = [root]
    for index in range(_MAX_NODES_WALKED):
        if index >= len(queue):
            return
        item = queue[index]
        if isinstance(item, Mapping):
            yield item
            queue.extend(value for value in item.values() if isinstance(value, Mapping | list))
        else:
            queue.extend(value for value in item if isinstance(value, Mapping | list))
