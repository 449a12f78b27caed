"""A node's turn to be repaired: so many nodes at once and so many repairs in a day, whatever asks for them.

An Incident that wants a repair notes since when (its ticket), and counts an observation later, so that each sees the
tickets that are older than its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import Decision, RuleContext
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import Load
from chalicelib.domain.model.repair import DAY, AnotherRepair
from chalicelib.domain.node.memory import (
    repair_of,
    state_of_the_node,
    story_of,
    tell_once,
    view_of,
    wait,
    waiting_order,
    with_repair,
)
from chalicelib.domain.node.repair_budget import blocked_by_budget, daily_budget_spent

TICKET_AGE: Final = timedelta(seconds=10)


@rule("node.queue", "node.queue_limit")
def node_queue(context: RuleContext) -> Decision | None:
    """A repair is wanted: it enters the queue; a person if the other repairs cannot be read."""
    repair, load = repair_of(context), view_of(context).load
    if _is_forced(context):
        return None
    if repair.wanted_at is None:
        reason = "a repair is wanted; its turn is looked up next"
        return wait(
            with_repair(context, wanted_at=context.now), "node.queue", reason, phase=Phase.HOLDING, soon=TICKET_AGE
        )
    if context.now - repair.wanted_at < TICKET_AGE:
        return wait(context, "node.queue", "its turn is looked up next", phase=Phase.HOLDING, soon=TICKET_AGE)
    if isinstance(load, Known):
        return None
    if context.now - repair.wanted_at >= context.policy.nodes.stuck_limit:
        return context.hand_over(
            "node.queue_limit", f"{story_of(context)} The other repairs cannot be read: {load.why}"
        )
    return wait(context, "node.queue", f"the other repairs cannot be read: {load.why}", phase=Phase.HOLDING)


@rule("node.day_limit")
def node_day_limit(context: RuleContext) -> Decision | None:
    """`budgets.max_repairs_per_day` or `budgets.max_group_repairs_per_day` reached within 24 h: a person."""
    load = view_of(context).load
    spent = daily_budget_spent(context, load.value) if isinstance(load, Known) and not _is_forced(context) else None
    if spent is None:
        return None
    return context.hand_over("node.day_limit", f"{story_of(context)} {spent} {state_of_the_node(context)}")


@rule("node.full", "node.group_full", "node.queue_limit")
def node_full(context: RuleContext) -> Decision | None:
    """The cluster's or the group's limit is used: wait; notified once; a person after `nodes.drain_limit_s`."""
    load, wanted_at = view_of(context).load, repair_of(context).wanted_at
    full = blocked_by_budget(context, load.value) if isinstance(load, Known) and not _is_forced(context) else None
    if full is None or wanted_at is None:
        return None
    name, reason = full
    if context.now - wanted_at >= context.policy.nodes.drain_limit:
        return context.hand_over("node.queue_limit", f"{story_of(context)} {reason}. {state_of_the_node(context)}")
    context, notices = tell_once(context, name, f"{story_of(context)} {reason}.")
    return wait(context, name, reason, *notices, phase=Phase.HOLDING)


# What keeps the Incident's first repair back.
TURN: Final = (node_queue, node_day_limit, node_full)


def _is_forced(context: RuleContext) -> bool:
    """A person ordered the repair with force, which skips the budget."""
    order = waiting_order(context)
    return order is not None and order.force


def another_turn(context: RuleContext, why: str) -> Decision | None:
    """What keeps one more order for a node that was repaired before from being given; None where it may be.

    It counts in the day's budget like the first one. Its place among the nodes in repair it has already.
    """
    repair, load = repair_of(context), view_of(context).load
    if repair.order is not None:
        return None  # what a person ordered is that person's business
    if repair.another is None:
        reason = f"{why}; whether the day's budget allows another repair is looked up next"
        another = AnotherRepair(at=context.now, why=why[:300])
        return wait(with_repair(context, another=another), "repair.turn", reason, soon=TICKET_AGE)
    since = context.now - repair.another.at
    if since < TICKET_AGE:
        return wait(context, "repair.turn", f"{why}; its turn is looked up next", soon=TICKET_AGE)
    if not isinstance(load, Known):
        if since >= context.policy.nodes.stuck_limit:
            return context.hand_over("repair.turn_limit", f"{why}. The other repairs cannot be read: {load.why}")
        return wait(context, "repair.turn", f"{why}; the other repairs cannot be read: {load.why}")
    own = sum(context.now - step.at < DAY for step in repair.steps)
    spent = daily_budget_spent(context, _with_own(load.value, own))
    if spent is None:
        return None
    return context.hand_over("node.day_limit", f"{why}. {spent} {state_of_the_node(context)}")


def _with_own(load: Load, own: int) -> Load:
    """With what the Incident itself has ordered, and what is booked before it, counted among the day's."""
    group = load.group_last_day
    return Load(
        ahead=load.ahead,
        last_day=load.last_day + load.booked + own,
        group_ahead=load.group_ahead,
        group_last_day=None if group is None else group + load.group_booked + own,
    )
