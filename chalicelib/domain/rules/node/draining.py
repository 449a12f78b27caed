"""A node's Incident, DRAINING: out of scheduling, until no job is on it. No job is ever stopped from here."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, result, span_word
from chalicelib.domain.model.action import CordonNode, Done
from chalicelib.domain.model.node import (
    InstanceState,
    NodeRecovery,
    is_empty,
    is_marked,
    is_ours,
)
from chalicelib.domain.model.node_actions import MoveRuns
from chalicelib.domain.model.node_findings import FindingKind
from chalicelib.domain.node.memory import (
    findings_about_now,
    instance_seen,
    is_down_by_the_cluster_alone,
    is_out_of_scheduling,
    repair_of,
    slurm_state,
    state_of_the_node,
    view_of,
    wait,
    waiting_order,
    with_repair,
)
from chalicelib.domain.rules.node.ladder import begin_repair
from chalicelib.domain.rules.node.node import node_held_by_other, node_theirs, node_unread, node_untouched
from chalicelib.domain.rules.node.orders import listed, ordered_again

DOWN_SETTLES = timedelta(minutes=2)


@rule("drain.cordon", "drain.cordon_refused", "drain.cordon_limit")
def drain_cordon(context: RuleContext) -> Decision | None:
    """Our drain does not show yet: repeated; a person if it is refused twice, or after 75 minutes."""
    facts = listed(context)
    # The health agent's mark keeps jobs away as well, where nothing else acts on it.
    is_marked_only = is_marked(facts) and view_of(context).recovery is NodeRecovery.NONE
    if is_ours(facts) or (is_marked_only and is_out_of_scheduling(facts)):
        return None
    action = CordonNode(
        cluster=context.incident.cluster or "", node=context.incident.node or "", why=context.incident.fault_rule
    )
    return ordered_again(context, action, "drain.cordon", "it is not cordoned yet")


@rule("drain.limit")
def drain_limit(context: RuleContext) -> Decision | None:
    """Jobs are still on it after `nodes.drain_limit_s`: a person; it stays cordoned."""
    if is_empty(listed(context)) or context.in_phase < context.policy.nodes.drain_limit:
        return None
    return context.hand_over(
        "drain.limit",
        f"jobs are still on it after {span_word(context.in_phase)}, and none is ever killed for a repair."
        f" {state_of_the_node(context)}",
    )


@rule("drain.waiting", "drain.move")
def drain_waiting(context: RuleContext) -> Decision | None:
    """Jobs are on it, or completing: wait. Where a person ordered the repair, its protected runs save and move."""
    facts = listed(context)
    if is_empty(facts):
        return None
    context, moves = _moved_off(context)
    name = "drain.move" if moves else "drain.waiting"
    return wait(context, name, f"it is cordoned, and jobs are still on it: {slurm_state(facts)}", *moves)


@rule("drain.settling")
def drain_settling(context: RuleContext) -> Decision | None:
    """It is empty, and out of Slurm's reach for less than two minutes: wait, since a switch may restart."""
    found, instance = findings_about_now(context), instance_seen(context)
    if not is_down_by_the_cluster_alone(context) or (instance is not None and instance.state is InstanceState.FAILURE):
        return None
    left = DOWN_SETTLES - (context.now - min(finding.at for finding in found if finding.kind is FindingKind.DOWN))
    if left <= timedelta(0):
        return None
    text = f"it is cordoned and empty; Slurm has not reached it for less than {span_word(DOWN_SETTLES)}"
    return wait(context, "drain.settling", text, soon=left)


@rule()
def drain_repair(context: RuleContext) -> Decision:
    """It is empty: [repaired](#a-repair-of-a-node)."""
    return begin_repair(context, findings_about_now(context))


DRAINING: Final = (
    node_theirs,
    node_untouched,
    node_unread,
    node_held_by_other,
    drain_cordon,
    drain_limit,
    drain_waiting,
    drain_settling,
    drain_repair,
)


def _moved_off(context: RuleContext) -> tuple[RuleContext, tuple[MoveRuns, ...]]:
    """Protected runs are asked, once, to save and go on elsewhere, where a person has ordered the repair.

    Where hardware has failed, each run's own Incident does that. Only now that the node is cordoned: before,
    they could be given it again.
    """
    order, repair = waiting_order(context), repair_of(context)
    is_lost = result(context, "MoveRuns", Done.UNAVAILABLE) is not None
    if order is None or ("drain.move" in repair.notified and not is_lost):
        return context, ()
    move = MoveRuns(
        cluster=context.incident.cluster or "",
        node=context.incident.node or "",
        number=int(order.at.timestamp()),
        who=order.who,
        why=order.text,
    )
    return with_repair(context, notified=tuple(dict.fromkeys((*repair.notified, "drain.move")))), (move,)
