"""What a Signal reports of a node's hardware, and what people order about the node. Pure.

The tables behind the findings are rekindle.signatures' own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.signal import Signal, SignalKind
from rekindle.protocol.cluster.node_states import ACTION
from rekindle.protocol.signals import FaultClass
from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.xids import first_response

INSTANCE_ID: Final = re.compile(r"i-[a-f0-9]{8}(?:[a-f0-9]{9})?")  # Source: botocore, ClusterNodeId
# In the evidence of a run's report of a node:
OF_PLATFORM: Final = "of_platform"  # HyperPod's own agents reported it
REPORTED_AT: Final = "reported_at"  # when what it rests on was reported or seen
CLEARED_AT: Final = "cleared_at"  # when HyperPod's agents took it back
PLATFORM_KINDS: Final = frozenset({SignalKind.NODE_HEALTH, SignalKind.AGENT_LOG_FAULT, SignalKind.CLUSTER_EVENT})


class FindingKind(StrEnum):
    """What is known against a node. Closed: each kind has a row in `repair.FIRST_RUNGS`."""

    AGENT_REPLACE = "agent_replace"  # the health agent recommends it
    AGENT_REBOOT = "agent_reboot"
    SUSPECT_HARDWARE = "suspect_hardware"  # its hardware has had faults again and again, wherever it stood
    INSTANCE_FAILED = "instance_failed"
    XID_REPLACE = "xid_replace"
    XID_REBOOT = "xid_reboot"
    HARDWARE = "hardware"  # a hardware fault without a recommended repair
    DOWN = "down"  # the cluster cannot reach it
    SUSPECTED = "suspected"  # by a run's own evidence
    CLUSTER_TROUBLE = "cluster_trouble"  # it drained it for a defect, or cannot end a job on it
    OMEN = "omen"  # worth a line, no node action

    @property
    def is_agents(self) -> bool:
        """The health agent's own verdict, on which HyperPod may act."""
        return self in (FindingKind.AGENT_REPLACE, FindingKind.AGENT_REBOOT)

    @property
    def is_over_by_a_boot(self) -> bool:
        """A reboot is all that is asked for: once the machine has booted, nothing of it is left."""
        return self in (
            FindingKind.AGENT_REBOOT,
            FindingKind.XID_REBOOT,
            FindingKind.SUSPECTED,
            FindingKind.CLUSTER_TROUBLE,
        )

    @property
    def is_of_the_hardware(self) -> bool:
        """It stays true until a repair; a node that is away for its repair is down too."""
        return self.is_agents or self in (FindingKind.XID_REPLACE, FindingKind.XID_REBOOT, FindingKind.HARDWARE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Record):
    """One thing against the node. `instance_id` is the hardware it is about, where that was named.

    `key` tells two faults apart, as an Xid's number does. `by_platform`: HyperPod's own agents saw it, too.
    """

    kind: FindingKind
    at: datetime
    text: str
    key: str = ""
    instance_id: str | None = None
    by_platform: bool = False


def finding_of(signal: Signal) -> Finding | None:
    """What the Signal says against the node; None for news, and for the word that a fault is over."""
    kind = _kind(signal)
    if kind is None:
        return None
    evidence = signal.evidence
    is_report = signal.kind is SignalKind.NODE_SUSPECT
    is_passed_on = is_report and evidence.get(OF_PLATFORM) is True
    key = evidence.get("xid") or evidence.get("fault_type") or evidence.get("reason") or kind.value
    return Finding(
        kind=kind,
        at=datetime.fromisoformat(evidence[REPORTED_AT])
        if is_report and REPORTED_AT in evidence
        else signal.occurred_at,
        text=signal.summary[:300],
        key=str(key)[:100],
        instance_id=instance_of(signal),
        by_platform=signal.kind in PLATFORM_KINDS or is_passed_on,
    )


def is_all_clear(signal: Signal) -> bool:
    """The health agent takes its word back: the node is healthy."""
    if signal.kind is SignalKind.NODE_HEALTH:
        return signal.evidence.get("health_status") == "Healthy"
    return signal.kind is SignalKind.AGENT_LOG_FAULT and bool(signal.evidence.get("is_over"))


def cleared_at(signal: Signal) -> datetime | None:
    """When the health agent took its report back, by its own all-clear or by a run's report that knows of it."""
    if is_all_clear(signal):
        return signal.occurred_at
    passed_on = signal.evidence.get(CLEARED_AT) if signal.kind is SignalKind.NODE_SUSPECT else None
    return datetime.fromisoformat(passed_on) if isinstance(passed_on, str) else None


def instance_of(signal: Signal) -> str | None:
    """The instance that a Signal is about; a node's name in the cluster outlives its instances."""
    for name in (signal.evidence.get("instance_id"), signal.node):
        if isinstance(name, str) and INSTANCE_ID.fullmatch(name):
            return name
    return None


def _kind(signal: Signal) -> FindingKind | None:
    if signal.kind is SignalKind.NODE_STATE and signal.fault is None and signal.evidence.get("trouble"):
        return FindingKind.CLUSTER_TROUBLE
    if is_all_clear(signal) or signal.fault is None or signal.kind is SignalKind.ORDER_NODE:
        return None  # an order says nothing against the hardware
    if signal.evidence.get("suspect_hardware") is True:
        return FindingKind.SUSPECT_HARDWARE
    found = _kind_by_agent(signal.evidence) or _kind_by_xid(signal.evidence)
    if found is not None:
        return found
    if signal.kind is SignalKind.NODE_SUSPECT:
        return FindingKind.DOWN if signal.fault is FaultClass.NODE_LOST else FindingKind.SUSPECTED
    if signal.fault is FaultClass.NODE_LOST:
        return FindingKind.DOWN
    return FindingKind.HARDWARE if signal.fault is FaultClass.NODE_HARDWARE else FindingKind.OMEN


def _kind_by_agent(evidence: Mapping[str, Any]) -> FindingKind | None:
    """What HyperPod's agent asks for."""
    # The agent's word: in an event RepairAction, in a log record its recommendation, in the cluster its mark.
    # Where none names an action, the fault's own name does.
    marked = str(evidence.get("reason") or "")
    asked = (evidence.get("repair_action"), evidence.get("recommended"), marked if marked.startswith(ACTION) else None)
    action = " ".join(str(word) for word in asked if word).lower()
    for words in (action, str(evidence.get("fault_type") or "").lower()):
        if "replace" in words or "terminate" in words:
            return FindingKind.AGENT_REPLACE
        if "reboot" in words or "reset" in words:
            return FindingKind.AGENT_REBOOT
    return None


def _kind_by_xid(evidence: Mapping[str, Any]) -> FindingKind | None:
    response = _response(evidence)
    if response is FirstResponse.REPLACE:
        return FindingKind.XID_REPLACE
    return FindingKind.XID_REBOOT if response is not None and response.needs_node_action else None


def _response(evidence: Mapping[str, Any]) -> FirstResponse | None:
    name, xid = evidence.get("first_response"), evidence.get("xid")
    if isinstance(name, str) and name in FirstResponse.__members__.values():
        return FirstResponse(name)
    return first_response(xid) if isinstance(xid, int) and not isinstance(xid, bool) else None


class Rung(StrEnum):
    """One step of the ladder, in this order; above it stands a person."""

    REBOOT = "reboot"
    REPLACE = "replace"

    def covers(self, other: Rung) -> bool:
        """This one covers `other`: a replaced node needs no reboot."""
        return self is other or self is Rung.REPLACE


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrder(Record):
    """An order to repair a node, given by `who` at `at`. `force` passes over the budgets of repairs, and over nothing
    else.
    """

    rung: Rung
    who: str
    at: datetime
    why: str = ""
    force: bool = False

    @property
    def text(self) -> str:
        """For people: what, who, why."""
        return f"a {_NOUNS[self.rung]} was ordered by {self.who}" + (f" ({self.why})" if self.why else "")


_NOUNS = {Rung.REBOOT: "reboot", Rung.REPLACE: "replacement"}


def node_order_of(signal: Signal) -> NodeOrder | None:
    """The order in a Signal; None for any other Signal, and for an order that names no rung."""
    stated = signal.evidence
    if signal.kind is not SignalKind.ORDER_NODE or stated.get("do") not in list(Rung):
        return None
    return NodeOrder(
        rung=Rung(str(stated["do"])),
        who=str(stated.get("who") or "an operator")[:128],
        at=signal.occurred_at,
        why=str(stated.get("why") or "")[:300],
        force=stated.get("force") is True,
    )
