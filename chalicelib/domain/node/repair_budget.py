"""How much of a cluster, and of one instance group, may be in repair: at once by share, in a day by number. Pure.

A group is the smaller of the two bounds: an image or a driver that is wrong takes one group, and its nodes fail alike.
A node whose group is unknown (no instance behind it) has the cluster's bounds alone. Both are counted from the
Incidents themselves (services.nodes), so that nothing has to be given back after a crash.
"""

from __future__ import annotations

from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.model.node import InstanceState, Load
from chalicelib.domain.model.node_findings import FindingKind
from chalicelib.domain.model.repair import leading_finding
from chalicelib.domain.node.memory import findings_about_now, instance_seen, repair_of, view_of, waiting_order
from chalicelib.domain.policy.document import Policy

MANY_DOWN = 2  # one may well be down by chance


def room_for(total: int, percent: float) -> int:
    """How many of so many nodes may be in repair at once: the share, rounded down, but always one."""
    return max(1, int(total * percent / 100))


def day_spent(context: RuleContext, load: Load) -> str | None:
    """The reason, where so many were repaired within 24 hours that a person is to look."""
    policy, group = context.policy, repair_of(context).group
    if load.last_day >= policy.budgets.max_repairs_per_day:
        return f"{load.last_day} repairs in this cluster within 24 h: something else is wrong there."
    if load.group_last_day is not None and load.group_last_day >= policy.budgets.max_group_repairs_per_day:
        return f"{load.group_last_day} repairs in group {group} within 24 h: something else is wrong with it."
    return None


def no_room(context: RuleContext, load: Load) -> tuple[str, str] | None:
    """The rule and the reason, while as many are in repair, or wanted to be before this one, as the policy allows."""
    policy, view, group = context.policy, view_of(context), repair_of(context).group
    room = room_for(view.total, policy.budgets.max_nodes_in_repair_percent)
    if load.ahead >= room:
        reason = f"{load.ahead} nodes are before it, and the policy allows {room} of {view.total} at once"
        return "node.full", reason
    if load.last_day + load.booked >= policy.budgets.max_repairs_per_day:
        reason = f"{load.last_day} repairs in this cluster within 24 h, and {load.booked} are booked before it"
        return "node.full", f"{reason}: the policy allows {policy.budgets.max_repairs_per_day}"
    if load.group_ahead is None or view.group_total is None:
        return None
    room = room_for(view.group_total, policy.budgets.max_nodes_in_repair_percent)
    if load.group_ahead < room:
        if (load.group_last_day or 0) + load.group_booked < policy.budgets.max_group_repairs_per_day:
            return None
        reason = (
            f"{load.group_last_day} repairs in group {group} within 24 h, and {load.group_booked} are booked before"
        )
        return "node.group_full", f"{reason} it: the policy allows {policy.budgets.max_group_repairs_per_day}"
    reason = f"{load.group_ahead} nodes of group {group} are before it, and the policy allows {room} of "
    return "node.group_full", f"{reason}{view.group_total} at once"


def are_many(down: int, total: int, policy: Policy) -> bool:
    """More of a cluster's nodes are down for the cluster at once than may be in repair at once."""
    return down >= MANY_DOWN and down > room_for(total, policy.budgets.max_nodes_in_repair_percent)


def are_many_down(context: RuleContext) -> bool:
    """The same, of a node's Incident."""
    view = view_of(context)
    return are_many(view.down, view.total, context.policy)


def many_down(context: RuleContext) -> str | None:
    """The cluster cannot reach a good part of its nodes at once: the network, or the controller, is at fault until
    HyperPod says the same of this one. The reason why nothing is done about it; None where something may be.
    """
    view, instance = view_of(context), instance_seen(context)
    lead = leading_finding(findings_about_now(context))
    if lead is None or lead.kind is not FindingKind.DOWN or waiting_order(context) is not None:
        return None
    if not are_many_down(context):
        return None
    if lead.by_platform or (instance is not None and instance.state is InstanceState.FAILURE):
        return None
    return (
        f"{view.down} of {view.total} nodes are down for it at once: the network or the controller is suspected, "
        "and no single node before HyperPod says the same of it"
    )
