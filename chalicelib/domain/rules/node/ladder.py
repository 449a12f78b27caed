"""Orders to repair a node: the next rung of the ladder, or the same once more.

The first order waits its turn in the queue (queue.py); each further one takes a turn of its own, so that a node that is
not cured by one repair cannot spend more of the day's budget than is left.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from chalicelib.domain.decision.rule import Rule, decided_by, rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, subject
from chalicelib.domain.model.action import Action, Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.node import GroupRole, InstanceState, Machines, NodeView, held_by, is_empty
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
from chalicelib.domain.node.repair_budget import mass_outage_reason
from chalicelib.domain.rules.node.queue import another_turn

DOES = {Rung.REBOOT: "rebooting it", Rung.REPLACE: "replacing it"}
DONE = {Rung.REBOOT: "rebooted", Rung.REPLACE: "replaced"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The repair that is wanted: for which findings, and what the repair before it did not cure."""

    findings: tuple[Finding, ...]
    why: str = ""


def begin_repair(context: RuleContext, findings: tuple[Finding, ...], *, why: str = "") -> Decision:
    """Order the next rung of the ladder, for the node's present instance. `why`: the previous repair did not help."""
    return decided_by(REPAIR, context, Wanted(findings, why))


@rule("node.held_by_other")
def repair_held_by_other(context: RuleContext, _: Wanted) -> Decision | None:
    """Someone else has taken it out of service meanwhile: left alone; a person."""
    facts = facts_of(context)
    other = held_by(facts) if facts is not None else None
    if other is None:
        return None
    reason = f"Someone else has taken it out of service meanwhile: {other}. It is left alone."
    return context.hand_over("node.held_by_other", reason, severity=Severity.WARNING)


@rule("node.controller")
def repair_controller(context: RuleContext, _: Wanted) -> Decision | None:
    """Its group is a controller's or a login node's: a person; never repaired."""
    role = view_of(context).role
    if role not in (GroupRole.CONTROLLER, GroupRole.LOGIN):
        return None
    return context.hand_over("node.controller", f"it is a {role} node, which no program repairs")


@rule("repair.blocked", "repair.blocked_limit")
def repair_many_down(context: RuleContext, _: Wanted) -> Decision | None:
    """Many nodes are down at once: wait; a person after 75 minutes, or after `nodes.drain_limit_s`."""
    reason = mass_outage_reason(context)
    return not_now(context, reason) if reason is not None else None


@rule("repair.ladder_end")
def repair_ladder_end(context: RuleContext, wanted: Wanted) -> Decision | None:
    """It was replaced already, or repaired three times in seven days: a person."""
    rung, cause = _next(context, wanted)
    if rung is not None:
        return None
    return context.hand_over("repair.ladder_end", f"{cause}. {state_of_the_node(context)}")


@rule("repair.not_allowed")
def repair_not_allowed(context: RuleContext, wanted: Wanted) -> Decision | None:
    """The next rung exceeds `nodes.repair`: a person; it stays cordoned. A person may order it.

    The policy bounds what is done by itself; what a person ordered is that person's business.
    """
    rung, cause = _next(context, wanted)
    allowed = context.policy.nodes.repair
    if rung is None or waiting_order(context) is not None or is_allowed(rung, allowed):
        return None
    reason = f"it should be {DONE[rung]} ({cause}), which the policy ({allowed}) does not allow."
    return context.hand_over("repair.not_allowed", f"{reason} {state_of_the_node(context)}")


@rule("repair.blocked", "repair.blocked_limit")
def repair_machines_unknown(context: RuleContext, _: Wanted) -> Decision | None:
    """What the cluster runs on is unknown: wait, as above."""
    is_unknown = view_of(context).machines is Machines.UNKNOWN
    return not_now(context, "it is not known what the cluster runs on") if is_unknown else None


@rule("repair.no_way")
def repair_no_way(context: RuleContext, wanted: Wanted) -> Decision | None:
    """The platform cannot do the next rung: a person; it stays cordoned."""
    rung, cause = _next(context, wanted)
    if rung is None or _route(context, rung) is not None:
        return None
    reason = f"it should be {DONE[rung]} ({cause}), and nothing on this cluster can do that automatically."
    return context.hand_over("repair.no_way", f"{reason} {state_of_the_node(context)}")


@rule("repair.blocked", "repair.blocked_limit")
def repair_blocked(context: RuleContext, wanted: Wanted) -> Decision | None:
    """Its instance cannot be read or is in transition, or the cluster is not InService: wait, as above.

    HyperPod accepts such an order only for an instance that it knows, with nothing else in progress there.
    """
    rung, _ = _next(context, wanted)
    if rung is None or _route(context, rung) is Route.SLURM_REBOOT:
        return None
    blocked = _blocked_at_hyperpod(view_of(context))
    return not_now(context, blocked) if blocked is not None else None


@rule("repair.turn", "repair.turn_limit", "node.day_limit")
def repair_turn(context: RuleContext, wanted: Wanted) -> Decision | None:
    """It is not the first: the day's budget is counted; a person if that is spent, or cannot be counted."""
    _, cause = _next(context, wanted)
    return another_turn(context, wanted.why or cause) if repair_of(context).steps else None


@rule("repair.reboot", "repair.replace")
def repair_reboot(context: RuleContext, wanted: Wanted) -> Decision | None:
    """It is cordoned and empty: rebooted or replaced; notified."""
    rung, cause = _next(context, wanted)
    route = _route(context, rung) if rung is not None else None
    if rung is None or route is None:
        return None
    instance, repair = instance_seen(context), repair_of(context)
    instance_id = instance.instance_id if instance is not None else current_id(context)
    step = Step(number=len(repair.steps) + 1, rung=rung, route=route, at=context.now, instance_id=instance_id)
    context = with_repair(context, steps=(*repair.steps, step), refusals=0, another=None)
    reason = f"It is cordoned and empty. {DOES[rung]} ({route}): {cause}"
    notice = Notify(severity=Severity.WARNING, title=f"{subject(context)}: {DOES[rung]}", text=reason)
    return wait(context, f"repair.{rung}", reason, order_of(context, step, cause), notice, phase=Phase.REPAIRING)


REPAIR: Final[tuple[Rule[[Wanted]], ...]] = (
    repair_held_by_other,
    repair_controller,
    repair_many_down,
    repair_ladder_end,
    repair_not_allowed,
    repair_machines_unknown,
    repair_no_way,
    repair_blocked,
    repair_turn,
    repair_reboot,
)


def _next(context: RuleContext, wanted: Wanted) -> tuple[Rung | None, str]:
    """The next rung and its cause; no rung at the ladder's end."""
    return next_rung(repair_of(context), wanted.findings, now=context.now)


def _route(context: RuleContext, rung: Rung) -> Route | None:
    view = view_of(context)
    return route_of(context.policy.nodes.route, rung, view.machines, view.recovery)


# ---- the next rung: what the last repair did not cure ----


def escalate(context: RuleContext, why: str) -> Decision:
    """The next rung, for what the last one did not cure."""
    return decided_by(NEXT_RUNG, context, why)


@rule("repair.ladder_end")
def escalate_ladder_end(context: RuleContext, why: str) -> Decision | None:
    """There is none: a person."""
    rung, _ = next_rung(repair_of(context), findings_about_now(context), now=context.now)
    if rung is not None:
        return None
    return context.hand_over("repair.ladder_end", f"{why}. {state_of_the_node(context)}")


@rule("repair.blocked", "repair.blocked_limit")
def escalate_blocked(context: RuleContext, why: str) -> Decision | None:
    """Jobs may be on it: wait; a person after 75 minutes, or after `nodes.drain_limit_s`."""
    facts = facts_of(context)
    is_free = facts is not None and is_empty(facts)
    return None if is_free else not_now(context, f"{why}; but jobs may be on it")


@rule()
def escalated(context: RuleContext, why: str) -> Decision:
    """It is empty: [repaired](#a-repair-of-a-node) once more."""
    another = repair_of(context).another
    why = another.why if another is not None else why
    decision = begin_repair(context, findings_about_now(context), why=why)
    return dataclasses.replace(decision, reason=f"{why[:1].upper()}{why[1:]}. {decision.reason}")


NEXT_RUNG: Final[tuple[Rule[[str]], ...]] = (escalate_ladder_end, escalate_blocked, escalated)


def ask_again(
    context: RuleContext, step: Step, why: str = "nothing shows that the order was taken", *, name: str = "repair.again"
) -> Decision:
    """Order the same rung once more, for the node's present instance."""
    repair = repair_of(context)
    if sum(earlier.rung is step.rung for earlier in repair.steps) >= MAX_ORDERS:
        return context.hand_over("repair.no_effect", f"{why}, {MAX_ORDERS} times. {state_of_the_node(context)}")
    kept_back = another_turn(context, why)
    if kept_back is not None:
        return kept_back
    fresh = Step(
        number=len(repair.steps) + 1, rung=step.rung, route=step.route, at=context.now, instance_id=current_id(context)
    )
    context = with_repair(context, steps=(*repair.steps, fresh), another=None)
    return wait(context, name, f"{why}; asking once more for the {step.rung}", order_of(context, fresh, why))


def not_now(context: RuleContext, reason: str) -> Decision:
    if (
        context.in_phase >= context.policy.nodes.drain_limit
        or unchanged_for(context) >= context.policy.nodes.stuck_limit
    ):
        return context.hand_over("repair.blocked_limit", f"{reason}, for too long. {state_of_the_node(context)}")
    return wait(context, "repair.blocked", f"not yet: {reason}")


def _blocked_at_hyperpod(view: NodeView) -> str | None:
    if isinstance(view.instance, Unknown):
        return f"its instance cannot be read: {view.instance.why}"
    if view.instance.value is None:
        return "HyperPod names no instance for it"
    if view.instance.value.state not in (InstanceState.RUNNING, InstanceState.FAILURE):
        return f"its instance is {view.instance.value.state}"
    if not isinstance(view.cluster, Known) or view.cluster.value is None:
        return "the HyperPod cluster cannot be read"
    if view.cluster.value.status != "InService":
        return f"the cluster is {view.cluster.value.status}, and repairs only while it is InService"
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
