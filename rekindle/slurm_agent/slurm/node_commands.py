"""Slurm's commands about nodes, as the orders need them."""

from __future__ import annotations

from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.cluster.node_states import StateMeaning, meanings_of, words_of
from rekindle.protocol.cluster.orders import Repair, check_node
from rekindle.protocol.wire import MAX_TEXT_CHARS, MailboxError
from rekindle.slurm_agent.base.ports import NodeNow, SlurmRefused
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.privileged.changes import Change, ChangeKind
from rekindle.slurm_agent.privileged.gate import Gate, is_own
from rekindle.slurm_agent.privileged.remote import RemoteGate, RemoteNodeMap
from rekindle.slurm_agent.reading.nodemap import NodeMap, gpus_of, serial_of
from rekindle.slurm_agent.reading.nodes import Node


class NodeCommands:
    """See `Commands`."""

    def __init__(self, reads: CopyReads, gate: Gate | RemoteGate, node_map: NodeMap | RemoteNodeMap) -> None:
        self._reads = reads
        self._gate = gate
        self._map = node_map

    def nodes_out_by_us(self) -> tuple[NodeFacts, ...]:
        """The nodes that are out of service with a reason of ours."""
        ours = [node.name for node in self._reads.nodes() if _is_out_by_us(node)]
        return tuple(now.facts for name in ours if (now := self.node(name)) is not None)

    def node(self, name: str) -> NodeNow | None:
        """None: no such node."""
        found = self._reads.node(name)
        if found is None:
            return None
        place = self._map.read().place_of(found)
        return NodeNow(
            facts=NodeFacts(
                name=found.name,
                state=found.state,
                flags=found.flags,
                reason=found.reason,
                instance_id=place.instance_id if place else None,
                group=place.group if place else None,
                jobs=self._reads.jobs_on(found.name),
                gpus=gpus_of(found, place.instance_id if place else None),
                serial=serial_of(found, place.instance_id if place else None),
                booted_at=found.booted,
            ),
            booted_at=found.booted,
            reason_at=found.reason_at,
        )

    def drain(self, node: str, reason: str) -> None:
        """scontrol update state=drain."""
        self._gate.make(Change(kind=ChangeKind.DRAIN, node=node_name(node), text=_reason(reason)))

    def resume(self, node: str) -> None:
        """scontrol update state=resume."""
        self._gate.make(Change(kind=ChangeKind.RESUME, node=node_name(node)))

    def mark(self, node: str, repair: Repair) -> None:
        """scontrol update state=fail, with the reason that is exactly `repair`."""
        self._gate.make(Change(kind=ChangeKind.MARK, node=node_name(node), repair=repair))

    def reboot(self, node: str, reason: str) -> None:
        """scontrol reboot ASAP. A node that was drained before comes back drained."""
        self._gate.make(Change(kind=ChangeKind.REBOOT, node=node_name(node), text=_reason(reason)))


def _is_out_by_us(node: Node) -> bool:
    return is_own(node) and bool(
        meanings_of(words_of(node.state, node.flags)) & {StateMeaning.DRAINED, StateMeaning.FAILING}
    )


def node_name(name: str) -> str:
    try:
        return check_node(name)
    except MailboxError as err:
        raise SlurmRefused(str(err)) from err


def _reason(reason: str) -> str:
    if not 0 < len(reason) <= MAX_TEXT_CHARS or not reason.isprintable():
        raise SlurmRefused("a node's reason must be one line of text")
    return reason
