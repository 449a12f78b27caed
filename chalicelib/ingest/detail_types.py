"""The detail-types that Rekindle reads, apart from the parsers: a rule or a table need not import them all.

Source: EventBridge events reference for AWS's own; `rekindle/monitor` and `rekindle/slurm_agent` for ours.
"""

from __future__ import annotations

from typing import Final

from rekindle.protocol.signals import MONITOR_SOURCE as MONITOR_SOURCE
from rekindle.protocol.signals import EventType

CLUSTER_STATE: Final = "SageMaker HyperPod Cluster State Change"
NODE_HEALTH: Final = "SageMaker HyperPod Cluster Node Health Event"
CLUSTER_EVENT: Final = "SageMaker HyperPod Cluster Event"
TRAINING_JOB: Final = "SageMaker Training Job State Change"
ALARM: Final = "CloudWatch Alarm State Change"
ALARM_CONTRIBUTOR: Final = "CloudWatch Alarm Contributor State Change"
HEALTH: Final = "AWS Health Event"
AGENT_SOURCE: Final = "rekindle.agent"
NOTICE_SOURCE: Final = "rekindle"
NOTICE: Final = "Rekindle Notice"

EC2: Final = (
    "EC2 Spot Instance Interruption Warning",
    "EC2 Instance Rebalance Recommendation",
    "EC2 Instance State-change Notification",
    "Capacity Block Expiration Warning",
    "Capacity Block Reservation Expiration Warning",
    "EC2 Capacity Reservation Instance Interruption Warning",
)
MONITOR: Final = tuple(event.value for event in EventType)
AGENT: Final = (
    "Rekindle Agent Started",
    "Rekindle Slurm Job",
    "Rekindle Slurm Node",
    "Rekindle Order Answered",
)

NAMES_NO_RUN: Final = "alarm names no run"  # why an alarm is passed over, unless its tags say whose it is
