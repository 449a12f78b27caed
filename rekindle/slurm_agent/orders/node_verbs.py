"""Orders about nodes; the table in `verbs` says when each counts as done.

No one else's reason is ever undone or written over: not HyperPod's, not an operator's, not a health check's.
"""

from __future__ import annotations

from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.cluster.node_states import (
    NodeStanding,
    StateMeaning,
    Writer,
    defect_in,
    held_by,
    is_ours,
    mark_in,
    meanings_of,
    parts_of,
    standing_of,
    words_of,
    writer_of,
)
from rekindle.protocol.cluster.orders import REASON_PREFIX, Order
from rekindle.protocol.wire import MAX_TEXT_CHARS
from rekindle.slurm_agent.base.ports import NodeNow
from rekindle.slurm_agent.orders.verbs import OrderNotReady, OrderTry, Result, done, refused
from rekindle.slurm_agent.slurm.commands import Commands


class NodeVerbs:
    def __init__(self, slurm: Commands) -> None:
        self._slurm = slurm

    def drain(self, order_try: OrderTry) -> Result:
        """Jobs that are on it continue. What slurmctld drained gets our reason before its own, so that it can be given
        back."""
        node = self._meant(order_try)
        if isinstance(node, Result):
            return node
        facts = node.facts
        other = _held_by(facts)
        if _says(facts, StateMeaning.DRAINED, StateMeaning.FAILING):
            if is_ours(facts.reason):
                return order_try.there(f"{facts.name} is out of service, by us: {facts.reason}")
            if not _is_slurms_alone(facts.reason):
                return order_try.there(
                    f"{facts.name} is out of service, not by us: {facts.reason or 'no reason given'}"
                )
        elif other is not None:
            return order_try.there(f"{facts.name} is down, and not by us: {other}")
        elif away := _away(facts):
            return order_try.there(away)
        order_try.begin()
        ours = reason_of(order_try.order)
        is_slurms = _says(facts, StateMeaning.DRAINED, StateMeaning.FAILING)
        self._slurm.drain(facts.name, beside(ours, facts.reason) if is_slurms else ours)
        return done(f"{facts.name} was taken out of service{_with_jobs(facts)}")

    def resume(self, order_try: OrderTry) -> Result:
        node = self._node(order_try.order)
        if isinstance(node, Result):
            return node
        facts = node.facts
        if not _says(facts, StateMeaning.DRAINED, StateMeaning.FAILING, StateMeaning.DOWN):
            return order_try.there(f"{facts.name} is in service: {facts.state}")
        if not is_ours(facts.reason):
            return refused(f"{facts.name} was not taken out by us: {facts.reason or 'no reason given'}")
        if _says(facts, StateMeaning.INVALID):
            return refused(f"{facts.name} has less than slurm.conf says, so slurmctld keeps it out: {facts.reason}")
        if (defect := defect_in(facts.reason)) and not _was_rebooted(node):
            return refused(f"{facts.name} was drained by Slurm itself, and not rebooted since: {defect}")
        order_try.begin()
        self._slurm.resume(facts.name)
        return done(f"{facts.name} is back in service")

    def mark(self, order_try: OrderTry) -> Result:
        repair = order_try.order.repair
        assert repair is not None, "orders.NEEDED"  # noqa: S101
        node = self._meant(order_try)
        if isinstance(node, Result):
            return node
        facts = node.facts
        marked = mark_in(facts.reason)
        if marked is repair and _says(facts, StateMeaning.FAILING):
            return order_try.there(f"{facts.name} is marked {repair}")
        if marked is not None:
            return refused(f"{facts.name} is marked {marked}, which is not undone while it may be under way")
        not_ours = _not_ours(facts)
        if not_ours:
            return refused(not_ours)
        if not _is_drained_by_us(facts):  # no job may land between this look and the mark
            return refused(f"{facts.name} is not drained by us: only a node that our drain has emptied is marked")
        if facts.jobs:  # HyperPod may act on the mark at once
            raise OrderNotReady(f"{facts.name} is not marked yet{_with_jobs(facts)}")
        order_try.begin()
        self._slurm.mark(facts.name, repair)
        return done(f"{facts.name} was marked {repair}")

    def reboot(self, order_try: OrderTry) -> Result:
        node = self._meant(order_try)
        if isinstance(node, Result):
            return node
        facts = node.facts
        if _says(facts, StateMeaning.REBOOT):
            return order_try.there(f"{facts.name} is being rebooted")
        if order_try.begun_at and node.booted_at and node.booted_at > order_try.begun_at:
            return done(f"{facts.name} booted at {node.booted_at:%H:%M:%S}")
        not_ours = _not_ours(facts)
        if not_ours:
            return refused(not_ours)
        order_try.begin()
        self._slurm.reboot(facts.name, reason_of(order_try.order))
        return done(f"{facts.name} reboots as soon as no job is on it")

    def _node(self, order: Order) -> NodeNow | Result:
        assert order.node is not None, "orders.NEEDED"  # noqa: S101
        found = self._slurm.node(order.node)
        return refused(f"Slurm knows no node {order.node}") if found is None else found

    def _meant(self, order_try: OrderTry) -> NodeNow | Result:
        """Also where HyperPod has put another machine under the name since: what was wanted of the one before is
        over."""
        node, meant = self._node(order_try.order), order_try.order.instance_id
        if isinstance(node, Result) or meant is None or node.facts.instance_id in (None, meant):
            return node
        name, now = node.facts.name, node.facts.instance_id
        return order_try.there(f"{name} is {now} by now, and no longer {meant}: nothing was done to it")


def reason_of(order: Order) -> str:
    """From constants and ids of ours only; never free text."""
    return f"{REASON_PREFIX}{order.incident_id or order.token}"


def _was_rebooted(node: NodeNow) -> bool:
    """Its operating system has started since its reason was given."""
    return node.booted_at is not None and node.reason_at is not None and node.booted_at > node.reason_at


def beside(ours: str, theirs: str) -> str:
    """Both reasons, as slurmctld itself adds one to another."""
    whole = f"{ours} : {theirs}"
    return whole if theirs and len(whole) <= MAX_TEXT_CHARS and whole.isprintable() else ours


def _held_by(facts: NodeFacts) -> str | None:
    return held_by(facts.state, facts.flags, facts.reason)


def _not_ours(facts: NodeFacts) -> str:
    """Why the node is not repaired by us; "" where nothing speaks against it."""
    other = _held_by(facts)
    if other is not None:
        return f"{facts.name} was taken out by someone else: {other}"
    return _away(facts)


def _away(facts: NodeFacts) -> str:
    """That the node is away on purpose; "" where it is not."""
    if standing_of(facts.state, facts.flags, facts.reason) is not NodeStanding.AWAY:
        return ""
    return f"{facts.name} is away on purpose: {'+'.join((facts.state, *facts.flags))}"


def _is_slurms_alone(reason: str) -> bool:
    writers = {writer_of(part) for part in parts_of(reason)}
    return bool(writers) and writers <= {Writer.SLURM, Writer.HARDWARE}


def _is_drained_by_us(facts: NodeFacts) -> bool:
    return is_ours(facts.reason) and _says(facts, StateMeaning.DRAINED, StateMeaning.FAILING)


def _says(facts: NodeFacts, *says: StateMeaning) -> bool:
    return bool(meanings_of(words_of(facts.state, facts.flags)) & set(says))


def _with_jobs(facts: NodeFacts) -> str:
    listed = ", ".join(str(job) for job in facts.jobs[:8])
    return f"; jobs {listed} go on there until they end" if facts.jobs else ""
