"""Orders to repair a node: the next rung of the ladder, or the same once more.

The first order waits its turn in the queue (queue.py); each further one takes a turn of its own, so that a node that is
not cured by one repair cannot spend more of the day's budget than is left.
"""

from __future__ import annotations

import dataclasses

from chalicelib.domain.decision.verdict import Decision, RuleContext, subject
from chalicelib.domain.model.action import Action, Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.node import GroupRole, InstanceState, Machines, held_by, is_empty
from chalicelib.domain.model.node_actions import RebootNode, ReplaceNode
from chalicelib.domain.model.node_findings import Finding
from chalicelib.domain.model.repair import MAX_ORDERS, Route, Rung, Step, is_allowed, next_rung, route_of
from chalicelib.domain.node.memory import (
    current_id,
    facts_of,
    findings_about_now,
    instance_seen,
    repair_of,
    state_of_the_node,
    unchanged_for,
    view_of,
    wait,
    waiting_order,
    with_repair,
)
from chalicelib.domain.node.repair_budget import many_down
from chalicelib.domain.rules.node.queue import another_turn

DOES = {Rung.REBOOT: "rebooting it", Rung.REPLACE: "replacing it"}
DONE = {Rung.REBOOT: "rebooted", Rung.REPLACE: "replaced"}


def begin_repair(context: RuleContext, findings: tuple[Finding, ...], *, why: str = "") -> Decision:
    """Order the next rung of the ladder, for the node's present instance. `why`: the previous repair did not help."""
    view, instance, repair, facts = view_of(context), instance_seen(context), repair_of(context), facts_of(context)
    other = held_by(facts) if facts is not None else None
    if other is not None:
        reason = f"Someone else has taken it out of service meanwhile: {other}. It is left alone."
        return context.hand_over("repair.held_by_other", reason, severity=Severity.WARNING)
    if view.role in (GroupRole.CONTROLLER, GroupRole.LOGIN):
        return context.hand_over("repair.controller", f"it is a {view.role} node, which no program repairs")
    if (many := many_down(context)) is not None:
        return not_now(context, many)
    rung, cause = next_rung(repair, findings, now=context.now)
    if rung is None:
        return context.hand_over("repair.ladder_end", f"{cause}. {state_of_the_node(context)}")
    # The policy bounds what is done by itself; what a person ordered is that person's business.
    if waiting_order(context) is None and not is_allowed(rung, context.policy.nodes.repair):
        reason = (
            f"it should be {DONE[rung]} ({cause}), which the policy ({context.policy.nodes.repair}) does not allow."
        )
        return context.hand_over("repair.not_allowed", f"{reason} {state_of_the_node(context)}")
    if view.machines is Machines.UNKNOWN:
        return not_now(context, "it is not known what the cluster runs on")
    route = route_of(context.policy.nodes.route, rung, view.machines, view.recovery)
    if route is None:
        reason = f"it should be {DONE[rung]} ({cause}), and nothing on this cluster can do that automatically."
        return context.hand_over("repair.no_way", f"{reason} {state_of_the_node(context)}")
    if route is not Route.SLURM_REBOOT:
        blocked = _api_blocked(context)
        if blocked is not None:
            return blocked
    if repair.steps and (kept_back := another_turn(context, why or cause)) is not None:
        return kept_back
    instance_id = instance.instance_id if instance is not None else current_id(context)
    step = Step(number=len(repair.steps) + 1, rung=rung, route=route, at=context.now, instance_id=instance_id)
    context = with_repair(context, steps=(*repair.steps, step), refusals=0, another=None)
    reason = f"It is cordoned and empty. {DOES[rung]} ({route}): {cause}"
    notice = Notify(severity=Severity.WARNING, title=f"{subject(context)}: {DOES[rung]}", text=reason)
    return wait(context, f"repair.{rung}", reason, order_of(context, step, cause), notice, phase=Phase.REPAIRING)


def escalate(context: RuleContext, why: str) -> Decision:
    """The next rung, for what the last one did not cure."""
    rung, _ = next_rung(repair_of(context), findings_about_now(context), now=context.now)
    if rung is None:
        return context.hand_over("repair.ladder_end", f"{why}. {state_of_the_node(context)}")
    facts = facts_of(context)
    if facts is None or not is_empty(facts):
        return not_now(context, f"{why}; but jobs may be on it")
    another = repair_of(context).another
    why = another.why if another is not None else why
    decision = begin_repair(context, findings_about_now(context), why=why)
    return dataclasses.replace(decision, reason=f"{why[:1].upper()}{why[1:]}. {decision.reason}")


def ask_again(
    context: RuleContext, step: Step, why: str = "nothing shows that the order was taken", *, rule: str = "repair.again"
) -> Decision:
    """Order the same rung once more, for the node's present instance."""
    repair = repair_of(context)
    if sum(one.rung is step.rung for one in repair.steps) >= MAX_ORDERS:
        return context.hand_over("repair.no_effect", f"{why}, {MAX_ORDERS} times. {state_of_the_node(context)}")
    kept_back = another_turn(context, why)
    if kept_back is not None:
        return kept_back
    fresh = Step(
        number=len(repair.steps) + 1, rung=step.rung, route=step.route, at=context.now, instance_id=current_id(context)
    )
    context = with_repair(context, steps=(*repair.steps, fresh), another=None)
    return wait(context, rule, f"{why}; asking once more for the {step.rung}", order_of(context, fresh, why))


def not_now(context: RuleContext, reason: str) -> Decision:
    if (
        context.in_phase >= context.policy.nodes.drain_limit
        or unchanged_for(context) >= context.policy.nodes.stuck_limit
    ):
        return context.hand_over("repair.blocked_limit", f"{reason}, for too long. {state_of_the_node(context)}")
    return wait(context, "repair.blocked", f"not yet: {reason}")


def _api_blocked(context: RuleContext) -> Decision | None:
    """HyperPod accepts such an order only for an instance that it knows, with nothing else in progress there."""
    view = view_of(context)
    if isinstance(view.instance, Unknown):
        return not_now(context, f"its instance cannot be read: {view.instance.why}")
    if view.instance.value is None:
        return not_now(context, "HyperPod names no instance for it")
    if view.instance.value.state not in (InstanceState.RUNNING, InstanceState.FAILURE):
        return not_now(context, f"its instance is {view.instance.value.state}")
    if not isinstance(view.cluster, Known) or view.cluster.value is None:
        return not_now(context, "the HyperPod cluster cannot be read")
    if view.cluster.value.status != "InService":
        return not_now(context, f"the cluster is {view.cluster.value.status}, and repairs only while it is InService")
    return None


def order_of(context: RuleContext, step: Step, why: str) -> Action:
    kind = RebootNode if step.rung is Rung.REBOOT else ReplaceNode
    return kind(
        cluster=context.incident.cluster or "",
        node=context.incident.node or "",
        instance_id=step.instance_id,
        route=step.route,
        number=step.number,
        why=why[:300],
    )
