"""What a Signal can be about: the closed vocabularies that the training side, the service, and what people read share.

`FaultClass` names what is wrong with a run, `SignalKind` what was observed, `EventType` the events that the monitor
sends. A report of the monitor that carries no more than a reason is one row of `PLAIN_REPORTS`: its parser needs
nothing else. chalicelib/ingest/monitor.py states what the other events carry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rekindle.compat import StrEnum

MONITOR_SOURCE: Final = "rekindle.monitor"  # the `source` of the monitor's events on the bus


class FaultClass(StrEnum):
    """What is wrong with a run. docs/playbooks.md tells the response to each."""

    NODE_HARDWARE = "node_hardware"
    NODE_LOST = "node_lost"
    PLATFORM_ERROR = "platform_error"
    SOFTWARE_CRASH = "software_crash"
    OUT_OF_MEMORY = "out_of_memory"
    HANG = "hang"
    NON_FINITE = "non_finite"
    LOSS_SPIKE = "loss_spike"
    DIVERGENCE = "divergence"
    THROUGHPUT_DROP = "throughput_drop"
    PLANNED_END = "planned_end"
    BAD_CHECKPOINT = "bad_checkpoint"
    NO_PROGRESS = "no_progress"
    JOB_MISSING = "job_missing"
    TWO_LIVE = "two_live"
    OPERATOR_ORDER = "operator_order"
    UNCLEAR = "unclear"


class SignalKind(StrEnum):
    """What was observed. Closed: a new kind needs a row in the playbook tables."""

    # SageMaker
    ATTEMPT_STATE = "attempt_state"  # whatever tells of it: AWS, an agent, the sweep
    CLUSTER_STATE = "cluster_state"
    NODE_HEALTH = "node_health"
    CLUSTER_EVENT = "cluster_event"
    # CloudWatch, logs, health, EC2
    ALARM = "alarm"
    AGENT_LOG_FAULT = "health_agent_log"
    TRAINING_LOG = "training_log"
    HEALTH_NOTICE = "health_notice"
    SPOT_INTERRUPTION = "spot_interruption"
    REBALANCE = "rebalance_recommendation"
    INSTANCE_STATE = "instance_state"
    CAPACITY_ENDING = "capacity_ending"
    # the monitor in the training process
    MONITOR_STARTED = "monitor_started"
    NON_FINITE = "non_finite"
    LOSS_SPIKE = "loss_spike"
    DIVERGENCE = "divergence"
    LOSS_RECOVERED = "loss_recovered"
    THROUGHPUT = "throughput"
    STALL = "stall"
    PROGRESS_RESUMED = "progress_resumed"
    SAVE_FAILED = "save_failed"
    CHECKPOINT_REPLY = "checkpoint_reply"
    MONITOR_FINISHED = "monitor_finished"
    # the agent in a cluster
    NODE_STATE = "node_state"
    AGENT_NEWS = "agent_news"
    ORDER_ANSWERED = "order_answered"
    # an Incident, about a node that it suspects
    NODE_SUSPECT = "node_suspect"
    # another attempt of the same run lives beside the current one: evidence `beside` names it
    TWO_LIVE = "two_live"
    # the sweep
    STATE_REREAD = "state_reread"
    JOB_MISSING = "job_missing"
    SILENT = "silent"
    # people
    ORDER_CHECKPOINT = "order_checkpoint"
    ORDER_RESUBMIT = "order_resubmit"
    ORDER_CANCEL = "order_cancel"
    ORDER_STOP = "order_stop"
    ORDER_NODE = "order_node"  # reboot or replace a node: evidence `do`
    ORDER_APPROVAL = "order_approval"  # an answer to an Approval: evidence `approval_id`, `answer`, `who`, `comment`
    # other people's monitoring, over a webhook
    EXTERNAL_ALERT = "external_alert"


class EventType(StrEnum):
    """The detail-type of an event of the monitor."""

    STARTED = "Rekindle Monitor Started"
    NON_FINITE = "Rekindle Non-Finite Loss"
    STALL = "Rekindle Stall"
    RESUMED = "Rekindle Progress Resumed"
    SAVE_FAILED = "Rekindle Save Failed"
    REPLY = "Rekindle Checkpoint Reply"
    FINISHED = "Rekindle Monitor Finished"
    LOSS_SPIKE = "Rekindle Loss Spike"
    DIVERGENCE = "Rekindle Loss Divergence"
    LOSS_RECOVERED = "Rekindle Loss Recovered"
    THROUGHPUT_DROP = "Rekindle Throughput Drop"
    STRAGGLER = "Rekindle Straggler"


@dataclass(frozen=True)
class PlainReport:
    """How a report that carries only a reason (`why`) becomes a Signal.

    `text` is the Signal's summary behind the attempt's name, with the fields {rank}, {at_step} and {why}. `fault` is
    what the report alone suggests; None where it is only news.
    """

    kind: SignalKind
    text: str
    fault: FaultClass | None = None


PLAIN_REPORTS: Final[Mapping[EventType, PlainReport]] = {
    EventType.SAVE_FAILED: PlainReport(SignalKind.SAVE_FAILED, "a save {at_step} failed: {why}"),
    EventType.FINISHED: PlainReport(
        SignalKind.MONITOR_FINISHED, "the monitor of rank {rank} finished {at_step}: {why}"
    ),
}
