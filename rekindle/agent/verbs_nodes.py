"""Orders about nodes; the table in `verbs` says when each counts as done.

Nobody else's reason is ever undone or written over: not HyperPod's, not an operator's, not a health check's.
"""

from __future__ import annotations

from typing import Final

from rekindle.agent.ports import NodeNow, Slurm
from rekindle.agent.verbs import Result, Turn, done, refused
from rekindle.headnode.documents import NodeFacts
from rekindle.headnode.orders import REASON_PREFIX, Order, Repair

OUT_OF_SERVICE: Final = frozenset({"drain", "drained", "draining", "fail", "failing", "failg"})
FAILED: Final = frozenset({"fail", "failing", "failg"})
REBOOTING: Final = frozenset({"reboot", "reboot_requested", "reboot_issued", "reboot^", "reboot@"})
# What slurmctld itself writes: nobody's decision, so it may be written over.
# Source: SchedMD/slurm src/slurmctld/{node_mgr,ping_nodes,agent}.c at 22.05.
SLURMS_OWN: Final = ("Not responding", "Node unexpectedly rebooted", "none")


class NodeHands:
    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm

    def drain(self, turn: Turn) -> Result:
        node = self._node(turn.order)
        if isinstance(node, Result):
            return node
        facts = node.facts
        if is_out_of_service(facts):
            if is_ours(facts.reason):
                return turn.there(f"{facts.name} is out of service, by us: {facts.reason}")
            return turn.there(f"{facts.name} is out of service, not by us: {facts.reason or 'no reason given'}")
        if is_somebody_elses(facts.reason) and facts.state == "down":
            return turn.there(f"{facts.name} is down, and not by us: {facts.reason}")
        turn.begin()
        self._slurm.drain(facts.name, reason_of(turn.order))
        return done(f"{facts.name} was taken out of service")

    def resume(self, turn: Turn) -> Result:
        node = self._node(turn.order)
        if isinstance(node, Result):
            return node
        facts = node.facts
        if not is_out_of_service(facts) and facts.state != "down":
            return turn.there(f"{facts.name} is in service: {facts.state}")
        if not is_ours(facts.reason):
            return refused(f"{facts.name} was not taken out by us: {facts.reason or 'no reason given'}")
        turn.begin()
        self._slurm.resume(facts.name)
        return done(f"{facts.name} is back in service")

    def mark(self, turn: Turn) -> Result:
        repair = turn.order.repair
        assert repair is not None, "orders.NEEDED"  # noqa: S101
        node = self._node(turn.order)
        if isinstance(node, Result):
            return node
        facts = node.facts
        if facts.reason == repair.value and is_failed(facts):
            return turn.there(f"{facts.name} is marked {repair}")
        if facts.reason in {one.value for one in Repair}:
            return refused(f"{facts.name} is marked {facts.reason}, which is not undone while it may be under way")
        if is_somebody_elses(facts.reason) and (is_out_of_service(facts) or facts.state == "down"):
            return refused(f"{facts.name} was taken out by somebody else: {facts.reason}")
        turn.begin()
        self._slurm.mark(facts.name, repair)
        return done(f"{facts.name} was marked {repair}")

    def reboot(self, turn: Turn) -> Result:
        node = self._node(turn.order)
        if isinstance(node, Result):
            return node
        facts = node.facts
        if has(facts, REBOOTING):
            return turn.there(f"{facts.name} is being rebooted")
        if turn.begun_at and node.booted_at and node.booted_at > turn.begun_at:
            return done(f"{facts.name} booted at {node.booted_at:%H:%M:%S}")
        if is_out_of_service(facts) and is_somebody_elses(facts.reason):
            return refused(f"{facts.name} was taken out by somebody else: {facts.reason}")
        turn.begin()
        self._slurm.reboot(facts.name, reason_of(turn.order))
        return done(f"{facts.name} reboots as soon as no job is on it")

    def _node(self, order: Order) -> NodeNow | Result:
        assert order.node is not None, "orders.NEEDED"  # noqa: S101
        found = self._slurm.node(order.node)
        return refused(f"Slurm knows no node {order.node}") if found is None else found


def reason_of(order: Order) -> str:
    """From constants and ids of ours only; never free text."""
    return f"{REASON_PREFIX}{order.incident_id or order.token}"


def is_ours(reason: str) -> bool:
    return reason.startswith(REASON_PREFIX)


def is_somebody_elses(reason: str) -> bool:
    """A reason that a person, HyperPod or a health check has written."""
    return bool(reason) and not is_ours(reason) and not reason.startswith(SLURMS_OWN)


def has(facts: NodeFacts, words: frozenset[str]) -> bool:
    return bool({facts.state, *facts.flags} & words)


def is_out_of_service(facts: NodeFacts) -> bool:
    return has(facts, OUT_OF_SERVICE)


def is_failed(facts: NodeFacts) -> bool:
    return has(facts, FAILED)
