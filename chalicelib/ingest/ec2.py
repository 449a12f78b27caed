"""Five EC2 events (aws.ec2, best effort). They reach only self-managed EC2, EKS, ParallelCluster and PCS nodes: the
instances of HyperPod and of training jobs live in a service account.

    {"detail-type": "EC2 Spot Instance Interruption Warning", "source": "aws.ec2", "time": "2026-11-20T10:00:00Z",
     "resources": ["arn:aws:ec2:us-west-2a:instance/i-0a1b2c3d4e5f60718"],
     "detail": {"instance-id": "i-0a1b2c3d4e5f60718", "instance-action": "terminate"}}
    EC2 Instance Rebalance Recommendation                 instance-id
    EC2 Instance State-change Notification                instance-id, state
    Capacity Block [Reservation] Expiration Warning       capacity-reservation-id, end-date (40 minutes ahead)
    EC2 Capacity Reservation Instance Interruption Warning  instance-id, instance-action, instance-termination-time,
                                                          availability-zone-id, instance-lifecycle

Source: EC2 user guide, spot-instance-termination-notices, rebalance-recommendations, capacity-blocks-monitor (instances
begin to end 30 minutes before the block does); EventBridge events reference, EC2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from chalicelib.domain.model.errors import Noise
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ingest.envelope import Envelope
from chalicelib.ingest.evidence import bounded, dedupe_key, minute, one_line
from chalicelib.ingest.fields import INSTANCE_ID
from rekindle.protocol.signals import FaultClass

SPOT: Final = "EC2 Spot Instance Interruption Warning"
REBALANCE: Final = "EC2 Instance Rebalance Recommendation"
STATE: Final = "EC2 Instance State-change Notification"
BLOCK_ENDING: Final = "Capacity Block Expiration Warning"
# AWS's own page has both names, by language and partition (EC2 user guide, capacity-blocks-monitor).
BLOCK_RESERVATION_ENDING: Final = "Capacity Block Reservation Expiration Warning"
RESERVATION_INTERRUPTION: Final = "EC2 Capacity Reservation Instance Interruption Warning"

SPOT_NOTICE_S: Final = 120  # about two minutes, not guaranteed; Source: EC2 user guide

_RESERVATION_ID: Final = re.compile(r"cr-[a-f0-9]{8}(?:[a-f0-9]{9})?")
_LOST: Final = frozenset({"stopping", "stopped", "shutting-down", "terminated"})
_STATES: Final = ("pending", "running", *sorted(_LOST))


def parse(envelope: Envelope) -> Signal:
    """One Signal per event.

    Raises:
        MalformedEvent: names the field.
        Noise: an instance that is just starting.
    """
    return PARSERS[envelope.detail_type](envelope)


def _spot(envelope: Envelope) -> Signal:
    detail = envelope.detail
    node = detail.text("instance-id", pattern=INSTANCE_ID)
    action = detail.word("instance-action", ("hibernate", "stop", "terminate"))
    return _signal(
        envelope,
        SignalKind.SPOT_INTERRUPTION,
        f"Spot takes {node} away ({action}) in about {SPOT_NOTICE_S} s",
        node=node,
        fault=FaultClass.PLANNED_END,
        triggers=True,
        facts=(node, action, minute(envelope.time)),
        evidence={"action": action, "notice_s": SPOT_NOTICE_S},
    )


def _rebalance(envelope: Envelope) -> Signal:
    node = envelope.detail.text("instance-id", pattern=INSTANCE_ID)
    # A recommendation is a raised risk, not an end: a run is not stopped for it.
    return _signal(
        envelope,
        SignalKind.REBALANCE,
        f"EC2 recommends leaving {node}: a Spot interruption has become likelier",
        node=node,
        fault=FaultClass.PLANNED_END,
        triggers=False,
        facts=(node, minute(envelope.time)),
        evidence={},
    )


def _state(envelope: Envelope) -> Signal:
    node = envelope.detail.text("instance-id", pattern=INSTANCE_ID)
    state = envelope.detail.word("state", _STATES)
    if state == "pending":
        raise Noise("instance starting")
    is_lost = state in _LOST
    return _signal(
        envelope,
        SignalKind.INSTANCE_STATE,
        f"{node} is {state}",
        node=node,
        fault=FaultClass.NODE_LOST if is_lost else None,
        triggers=is_lost,
        facts=(node, state, minute(envelope.time)),
        evidence={"state": state},
    )


def _block_ending(envelope: Envelope) -> Signal:
    reservation = envelope.detail.text("capacity-reservation-id", pattern=_RESERVATION_ID)
    ends = envelope.detail.text("end-date", limit=64)
    ends_at = envelope.detail.moment("end-date")
    return _signal(
        envelope,
        SignalKind.CAPACITY_ENDING,
        f"Capacity Block {reservation} ends at {ends}; its instances begin to end 30 minutes before",
        node=None,
        fault=FaultClass.PLANNED_END,
        triggers=True,
        facts=(reservation, ends_at),
        evidence={"reservation": reservation, "ends_at": ends_at.isoformat()},
    )


def _reservation_interruption(envelope: Envelope) -> Signal:
    detail = envelope.detail
    node = detail.text("instance-id", pattern=INSTANCE_ID)
    action = detail.text("instance-action", limit=32)
    ends_at = detail.moment("instance-termination-time")
    return _signal(
        envelope,
        SignalKind.CAPACITY_ENDING,
        f"{node} ends with its capacity reservation at {ends_at.isoformat()} ({action})",
        node=node,
        fault=FaultClass.PLANNED_END,
        triggers=True,
        facts=(node, action, ends_at),
        evidence={
            "action": action,
            "ends_at": ends_at.isoformat(),
            "lifecycle": detail.optional_text("instance-lifecycle", limit=64),
            "zone": detail.optional_text("availability-zone-id", limit=64),
        },
    )


def _signal(
    envelope: Envelope,
    kind: SignalKind,
    summary: str,
    *,
    node: str | None,
    fault: FaultClass | None,
    triggers: bool,
    facts: tuple[object, ...],
    evidence: dict[str, Any],
) -> Signal:
    return Signal(
        kind=kind,
        source=SignalSource.EC2,
        occurred_at=envelope.time,
        dedupe_key=dedupe_key("ec2", kind, *facts),
        summary=one_line(summary),
        node=node,
        fault=fault,
        triggers=triggers,
        evidence=bounded(evidence),
    )


PARSERS: Final[dict[str, Callable[[Envelope], Signal]]] = {
    SPOT: _spot,
    REBALANCE: _rebalance,
    STATE: _state,
    BLOCK_ENDING: _block_ending,
    BLOCK_RESERVATION_ENDING: _block_ending,
    RESERVATION_INTERRUPTION: _reservation_interruption,
}
