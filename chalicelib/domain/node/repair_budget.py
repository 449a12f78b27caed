"""The budget of node repairs: how many nodes may be in repair at once, by share, and within 24 hours, by number. Pure.

Both bounds hold for the cluster and for each instance group, because a bad image or driver usually affects a single
group. A node whose group is unknown (no instance was found for it) has only the cluster's bounds. Repairs are counted
from the open Incidents (services.nodes), so a crash leaves no reservation behind that would have to be released.
"""

from __future__ import annotations

from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.model.node import InstanceState, Load
from chalicelib.domain.model.node_findings import FindingKind
from chalicelib.domain.model.repair import leading_finding
from chalicelib.domain.node.memory import findings_about_now, instance_seen, repair_of, view_of, waiting_order
from chalicelib.domain.policy.document import Policy

MIN_MANY_DOWN = 2  # a single node that is down is no outage, however small the cluster


def max_in_repair(total: int, percent: float) -> int:
    """How many of `total` nodes may be in repair at once: `percent` of them, rounded down, but at least one."""
    return max(1, int(total * percent / 100))


def daily_budget_spent(context: RuleContext, load: Load) -> str | None:
    """Why a person must look at the cluster or the group: too many repairs within 24 hours. None below the budget."""
    budgets, group = context.policy.budgets, repair_of(context).group
    if load.last_day >= budgets.max_repairs_per_day:
        return f"{load.last_day} repairs in this cluster within 24 h: something else is wrong there."
    if load.group_last_day is not None and load.group_last_day >= budgets.max_group_repairs_per_day:
        return f"{load.group_last_day} repairs in group {group} within 24 h: something else is wrong with it."
    return None


def blocked_by_budget(context: RuleContext, load: Load) -> tuple[str, str] | None:
    """The rule and the reason why this node's repair must wait for those before it; None where it may begin."""
    reason = _cluster_is_full(context, load)
    if reason is not None:
        return "node.full", reason
    reason = _group_is_full(context, load)
    return None if reason is None else ("node.group_full", reason)


def _cluster_is_full(context: RuleContext, load: Load) -> str | None:
    budgets, total = context.policy.budgets, view_of(context).total
    limit = max_in_repair(total, budgets.max_nodes_in_repair_percent)
    if load.ahead >= limit:
        return f"{load.ahead} nodes are before it, and the policy allows {limit} of {total} at once"
    if load.last_day + load.booked >= budgets.max_repairs_per_day:
        return (
            f"{load.last_day} repairs in this cluster within 24 h, and {load.booked} are booked before it: "
            f"the policy allows {budgets.max_repairs_per_day}"
        )
    return None


def _group_is_full(context: RuleContext, load: Load) -> str | None:
    budgets, total, group = context.policy.budgets, view_of(context).group_total, repair_of(context).group
    if load.group_ahead is None or total is None:
        return None
    limit = max_in_repair(total, budgets.max_nodes_in_repair_percent)
    if load.group_ahead >= limit:
        return (
            f"{load.group_ahead} nodes of group {group} are before it, and the policy allows {limit} of {total} at once"
        )
    if (load.group_last_day or 0) + load.group_booked >= budgets.max_group_repairs_per_day:
        return (
            f"{load.group_last_day} repairs in group {group} within 24 h, and {load.group_booked} are booked before "
            f"it: the policy allows {budgets.max_group_repairs_per_day}"
        )
    return None


def is_mass_outage(down: int, total: int, policy: Policy) -> bool:
    """More nodes of a cluster are down at once than may be in repair at once: a common cause is more likely."""
    return down >= MIN_MANY_DOWN and down > max_in_repair(total, policy.budgets.max_nodes_in_repair_percent)


def cluster_has_mass_outage(context: RuleContext) -> bool:
    """is_mass_outage for the cluster of a node's Incident, as last observed."""
    view = view_of(context)
    return is_mass_outage(view.down, view.total, context.policy)


def mass_outage_reason(context: RuleContext) -> str | None:
    """Why a node that is down is not repaired: in a mass outage the network or the controller is suspected first.

    None where the node may be repaired: there is no mass outage, HyperPod itself reports this node as failed, the node
    is not merely down, or a person has ordered its repair.
    """
    view, instance = view_of(context), instance_seen(context)
    lead = leading_finding(findings_about_now(context))
    if lead is None or lead.kind is not FindingKind.DOWN or waiting_order(context) is not None:
        return None
    if not cluster_has_mass_outage(context):
        return None
    if lead.by_platform or (instance is not None and instance.state is InstanceState.FAILURE):
        return None
    return (
        f"{view.down} of {view.total} nodes are down for it at once: the network or the controller is suspected, "
        "and no single node before HyperPod says the same of it"
    )
