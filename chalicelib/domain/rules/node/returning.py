"""A node's Incident, CHECKING and RETURNING: a deep health check, and our drain is lifted. Only ours ever is."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, result
from chalicelib.domain.model.action import CordonNode, Done, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.node import (
    InstanceState,
)
from chalicelib.domain.model.node_actions import CheckNode, UncordonNode
from chalicelib.domain.node.memory import (
    current_id,
    has_our_drain,
    instance_seen,
    is_back_in_service,
    is_well,
    repair_of,
    slurm_state,
    state_of_the_node,
    unchanged_for,
    wait,
    waiting_order,
    with_repair,
)
from chalicelib.domain.rules.node.ladder import DONE, escalate
from chalicelib.domain.rules.node.node import node_held_by_other, node_unread
from chalicelib.domain.rules.node.orders import listed, ordered_again, ordered_step, repeated


@rule("node.misplaced")
def check_misplaced(context: RuleContext) -> Decision | None:
    """Nothing was repaired, which cannot happen: a person."""
    if repair_of(context).step is not None:
        return None
    return context.hand_over("node.misplaced", "nothing was repaired, and yet it is checked")


@rule()
def check_ordered(context: RuleContext) -> Decision | None:
    """A person orders a repair meanwhile: [the next rung](#the-next-rung)."""
    order = waiting_order(context)
    return escalate(context, order.text) if order is not None else None


@rule()
def check_failed(context: RuleContext) -> Decision | None:
    """The check failed, or the fault is seen again: [the next rung](#the-next-rung)."""
    instance = instance_seen(context)
    if instance is not None and instance.state is InstanceState.FAILURE:
        return escalate(context, f"the health check failed: {instance.message}")
    return escalate(context, "it was seen again") if repeated(context, ordered_step(context)) is not None else None


@rule("check.limit")
def check_limit(context: RuleContext) -> Decision | None:
    """The check takes longer than four hours: a person."""
    if context.in_phase < context.policy.nodes.health_check_limit:
        return None
    return context.hand_over("check.limit", f"the health check has not ended. {state_of_the_node(context)}")


@rule("return.uncordon", "return.done")
def check_refused(context: RuleContext) -> Decision | None:
    """The check is refused, and both views say that it is well: given back."""
    refused = result(context, "CheckNode", Done.REFUSED)
    if refused is None or not is_well(context, after_reboot=True):
        return None
    return uncordon(context, f"the deep health check was refused ({refused.detail}); HyperPod and Slurm say it is well")


@rule("check.begin")
def check_begin(context: RuleContext) -> Decision | None:
    """No check could be begun: asked for again."""
    busy = result(context, "CheckNode", Done.CAPACITY, Done.UNAVAILABLE)
    if busy is None or repair_of(context).check_seen:
        return None
    return begin_check(context, f"no check could be begun: {busy.detail}")


@rule("return.uncordon", "return.done")
def check_passed(context: RuleContext) -> Decision | None:
    """The check is over, and both views say that it is well: given back."""
    is_over = repair_of(context).check_seen or context.in_phase >= 2 * context.policy.nodes.settle
    if not is_over or not is_well(context, after_reboot=True):
        return None
    return uncordon(context, "the deep health check has found nothing")


@rule("check.waiting")
def check_waiting(context: RuleContext) -> Decision:
    """The check is under way, or waits until another of the cluster is over: wait."""
    return wait(context, "check.waiting", f"the deep health check is under way: {state_of_the_node(context)}")


CHECKING: Final = (
    check_misplaced,
    check_ordered,
    check_failed,
    check_limit,
    check_refused,
    check_begin,
    check_passed,
    check_waiting,
)


def begin_check(context: RuleContext, reason: str) -> Decision:
    """Ask for a deep health check; of an instance that is not seen any more there can be none: given back."""
    instance = instance_seen(context)
    if instance is None:
        raise ValueError("a deep health check is asked for where an instance is seen")
    number = repair_of(context).health_check + 1
    action = CheckNode(
        cluster=context.incident.cluster or "",
        node=context.incident.node or "",
        instance_id=instance.instance_id,
        group=instance.group,
        number=number,
    )
    context = with_repair(context, health_check=number, check_seen=False)
    phase = None if context.incident.phase is Phase.CHECKING else Phase.CHECKING
    return wait(context, "check.begin", f"{reason}; a deep health check is asked for", action, phase=phase)


@rule("return.ordered")
def return_ordered(context: RuleContext) -> Decision | None:
    """A person orders a repair: cordoned again, and carried out. What others have just done is not done once more."""
    order = waiting_order(context)
    if order is None or repair_of(context).theirs:
        return None
    return _cordoned_again(
        context, "return.ordered", "ordered", f"{order.text}; it gets no jobs again until that is done"
    )


@rule("return.seen_again")
def return_seen_again(context: RuleContext) -> Decision | None:
    """It fails again: cordoned again; the next rung."""
    step = repair_of(context).step
    again = repeated(context, step) if step is not None and step.back_at is not None else None
    if again is None:
        return None
    reason = f"it was seen again: {again.text}; it is cordoned again"
    return _cordoned_again(context, "return.seen_again", again.kind.value, reason)


@rule("return.done")
def return_done(context: RuleContext) -> Decision | None:
    """In service by both views: recovered."""
    return _returned(context, "it is back in service") if is_back_in_service(context) else None


@rule("return.uncordon", "return.uncordon_refused", "return.uncordon_limit")
def return_uncordon(context: RuleContext) -> Decision | None:
    """Our drain is not lifted yet: again; a person if the agent refuses twice, or after 75 minutes."""
    if not has_our_drain(context):
        return None
    action = UncordonNode(cluster=context.incident.cluster or "", node=context.incident.node or "", why="repaired")
    return ordered_again(context, action, "return.uncordon", "our drain is not lifted yet")


@rule("return.stuck")
def return_stuck(context: RuleContext) -> Decision | None:
    """Slurm does not show it in service for 75 minutes: a person."""
    if unchanged_for(context) < context.policy.nodes.stuck_limit:
        return None
    return context.hand_over("return.stuck", f"it does not come back into service. {state_of_the_node(context)}")


@rule("return.waiting")
def return_waiting(context: RuleContext) -> Decision:
    """Lifted, and Slurm does not show it in service yet: wait."""
    state = slurm_state(listed(context))
    return wait(context, "return.waiting", f"the drain is lifted; waiting for Slurm: {state}")


RETURNING: Final = (
    node_unread,
    return_ordered,
    return_seen_again,
    return_done,
    node_held_by_other,
    return_uncordon,
    return_stuck,
    return_waiting,
)


def uncordon(context: RuleContext, reason: str) -> Decision:
    """Give it back: our drain is lifted, or it is in service already."""
    if is_back_in_service(context):
        return _returned(context, reason)
    action = UncordonNode(cluster=context.incident.cluster or "", node=context.incident.node or "", why="repaired")
    context = with_repair(context, serial=repair_of(context).serial + 1, refusals=0)
    return wait(
        context,
        "return.uncordon",
        f"{reason}; our drain is lifted",
        action,
        phase=Phase.RETURNING,
        soon=context.policy.timing.look_min,
    )


def _cordoned_again(context: RuleContext, name: str, why: str, reason: str) -> Decision:
    cordon = CordonNode(cluster=context.incident.cluster or "", node=context.incident.node or "", why=why)
    context = with_repair(context, serial=repair_of(context).serial + 1, refusals=0)
    return wait(context, name, reason, cordon, phase=Phase.DRAINING)


def _returned(context: RuleContext, reason: str) -> Decision:
    repair = repair_of(context)
    done = [f"{DONE[step.rung]} {step.instance_id or ''}".strip() for step in repair.steps if step.back_at is not None]
    now_id = current_id(context)
    what = f"{', then '.join(done)}; " if done else f"{repair.theirs.what}, not by us; " if repair.theirs else ""
    instance = f" as {now_id}" if now_id and now_id != repair.instance_id else ""
    text = f"{what}{reason}{instance}. {state_of_the_node(context)}"
    return context.close("return.done", text, Phase.RECOVERED, severity=Severity.INFO)
