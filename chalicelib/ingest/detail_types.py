"""The detail-types that Rekindle reads, and which events reach which function: data apart from the parsers, so that a
rule or a table need not import them all.

Source: EventBridge events reference for AWS's own; `rekindle/monitor` and `rekindle/slurm_agent` for ours.
"""

from __future__ import annotations

from typing import Any, Final

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

Pattern = dict[str, Any]

# The EventBridge rules, for app.py's decorators and the template. Each function has one rule. Those of `monitor_event`
# and `agent_event` stand on our own bus, the others on the account's default bus.
PATTERNS: Final[dict[str, Pattern]] = {
    "hyperpod_event": {
        "source": ["aws.sagemaker"],
        "detail-type": [CLUSTER_STATE, NODE_HEALTH, CLUSTER_EVENT],
    },
    "training_job_event": {"source": ["aws.sagemaker"], "detail-type": [TRAINING_JOB]},
    "alarm_event": {"source": ["aws.cloudwatch"], "detail-type": [ALARM, ALARM_CONTRIBUTOR]},
    "health_event": {"source": ["aws.health"], "detail-type": [HEALTH]},
    "ec2_event": {"source": ["aws.ec2"], "detail-type": list(EC2)},
    "monitor_event": {"source": [MONITOR_SOURCE], "detail-type": list(MONITOR)},
    "agent_event": {"source": [AGENT_SOURCE], "detail-type": list(AGENT)},
}

# Our own notices on their way out over our own bus (chalicelib/channels/bus.py): nothing is parsed into a Signal.
NOTICES: Final[Pattern] = {"source": [NOTICE_SOURCE], "detail-type": [NOTICE]}
