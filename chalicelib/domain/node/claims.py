"""Whether what a Signal says against a node still holds by what the cluster shows of the node now. Pure.

Events come late, and may describe a time before the node was repaired. They wake the Incident; the newest reading
decides.
"""

from __future__ import annotations

from collections.abc import Iterable

from chalicelib.domain.model.node import is_in_service, is_marked
from chalicelib.domain.model.node_findings import PLATFORM_KINDS, finding_of, instance_of, is_all_clear
from chalicelib.domain.model.signal import Signal, SignalKind
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.signals import FaultClass


def is_over(signal: Signal, facts: NodeFacts | None, heard: Iterable[Signal] = ()) -> bool:
    """True where the node has been repaired, or is seen well, since. False while what the cluster shows is not known.

    - HyperPod's agents have taken it back, by what was `heard`.
    - Another instance stands there than the one that is accused.
    - A reboot is recommended, and the node has booted since.
    - The cluster's own view accuses it (its state, or the reason on it), and a later reading is clean.
    """
    finding = finding_of(signal)
    if is_taken_back(signal, heard):
        return True
    if facts is None or finding is None:
        return False
    if finding.instance_id is not None and facts.instance_id not in (None, finding.instance_id):
        return True
    if finding.kind.is_over_by_a_boot and facts.booted_at is not None and finding.at < facts.booted_at:
        return True
    is_of_its_state = signal.kind is SignalKind.NODE_STATE or signal.fault is FaultClass.NODE_LOST
    is_newer = facts.seen_at is not None and facts.seen_at >= finding.at
    return is_of_its_state and is_newer and is_in_service(facts) and not is_marked(facts)


def is_taken_back(signal: Signal, heard: Iterable[Signal]) -> bool:
    """HyperPod's own agents reported the node, and have since reported it healthy."""
    if signal.kind not in PLATFORM_KINDS:
        return False
    return any(
        is_all_clear(other) and other.occurred_at > signal.occurred_at and _is_same(other, signal) for other in heard
    )


def _is_same(signal: Signal, other: Signal) -> bool:
    """By the instance where both name one: a node's name outlives its instances."""
    first, second = instance_of(signal), instance_of(other)
    if first is not None and second is not None:
        return first == second
    return signal.node is not None and (signal.cluster, signal.node) == (other.cluster, other.node)
