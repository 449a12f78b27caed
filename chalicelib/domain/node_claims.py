"""Whether what a Signal says against a node still holds by what Slurm shows of the node now. Pure.

Events come late, and may tell of a time before somebody repaired the node. They wake; the newest reading decides.
"""

from __future__ import annotations

from chalicelib.domain.faults import FaultClass
from chalicelib.domain.node_findings import finding_of
from chalicelib.domain.nodes import is_in_service, is_marked
from chalicelib.domain.signals import Signal, SignalKind
from rekindle.headnode.documents import NodeFacts


def is_over(signal: Signal, facts: NodeFacts | None) -> bool:
    """True where the node has been repaired, or is seen well, since. False while what Slurm shows is not known.

    - Another instance stands there than the one that is accused.
    - A reboot is recommended, and the node has booted since.
    - Slurm's own view accuses it (its state, or the reason on it), and a later reading is clean.
    """
    finding = finding_of(signal)
    if facts is None or finding is None:
        return False
    if finding.instance_id is not None and facts.instance_id not in (None, finding.instance_id):
        return True
    if finding.kind.is_over_by_a_boot and facts.booted_at is not None and finding.at < facts.booted_at:
        return True
    is_of_its_state = signal.kind is SignalKind.NODE_STATE or signal.fault is FaultClass.NODE_LOST
    is_newer = facts.seen_at is not None and facts.seen_at >= finding.at
    return is_of_its_state and is_newer and is_in_service(facts) and not is_marked(facts)
