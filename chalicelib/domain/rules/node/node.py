"""A node's own Incident: cordon, wait until no job is on it, repair, wait until both views say well, give it back.

Level-triggered: each observation re-reads the instance's state and Slurm's, and decides; waiting costs nothing. Never:
repair a controller or login node, act while another actor repairs, repair a node with jobs on it, undo a drain that is
not ours. docs/node-repair.md explains the repair. Here: rules common to all its phases, and those about other actors.
"""

from __future__ import annotations

from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import PAUSED, Decision, RuleContext, newest_signal, span_word, why_unknown
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import (
    InstanceState,
    Machines,
    NodeRecovery,
    held_by,
    is_away,
    is_marked,
    is_rebooting,
)
from chalicelib.domain.model.node_actions import UncordonNode
from chalicelib.domain.model.node_findings import FindingKind
from chalicelib.domain.model.repair import (
    OutsideRepair,
    leading_finding,
)
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.node.memory import (
    facts_of,
    findings_about_now,
    has_our_drain,
    instance_seen,
    is_back_in_service,
    is_of_an_earlier_incident,
    is_replaced,
    is_well,
    repair_of,
    slurm_state,
    state_of_the_node,
    story_of,
    tell_once,
    unchanged_for,
    view_of,
    wait,
    waiting_order,
    with_repair,
)
from chalicelib.domain.rules.node.orders import listed

_OTHERS_AT_WORK = {
    InstanceState.SHUTTING_DOWN: "is shutting down",
    InstanceState.PENDING: "is being launched or rebooted",
    InstanceState.SYSTEM_UPDATING: "is being updated",
    InstanceState.CHECKING: "is in a deep health check",
    InstanceState.NOT_FOUND: "is not found",
}


@rule("order.cancel")
def node_cancel(context: RuleContext) -> Decision | None:
    """A person ends the repair: closed, the node stays as it is."""
    cancel = newest_signal(context.seen.new_signals, SignalKind.ORDER_CANCEL)
    if cancel is None:
        return None
    who = str(cancel.evidence.get("who", "an operator"))
    reason = f"cancelled by {who} while {context.incident.phase}. {state_of_the_node(context)}"
    order = waiting_order(context)
    if order is not None and any(signal.kind is SignalKind.ORDER_NODE for signal in context.seen.new_signals):
        reason += f" With it ends what came beside the cancel: {order.text}; order it again if it is still wanted."
    return context.close("order.cancel", reason, Phase.STOPPED, severity=Severity.WARNING)


@rule("guard.paused")
def node_paused(context: RuleContext) -> Decision | None:
    """A global pause is set: nothing is done, and no limit runs."""
    if not context.seen.paused:
        return None
    since = context.incident.paused_since or context.now
    return context.stay("guard.paused", f"{PAUSED} {story_of(context)}", paused_since=since)


NODE_COMMON: Final = (node_cancel, node_paused)


@rule("node.unread", "node.unread_limit", "node.not_in_slurm")
def node_unread(context: RuleContext) -> Decision | None:
    """Slurm cannot be read: wait; a person after 75 minutes. It has no such node: closed, notified."""
    seen = view_of(context).listed
    if not isinstance(seen, Known):
        stated = why_unknown(context.seen.node) if not isinstance(context.seen.node, Known) else seen.why
        reason = f"the node cannot be read in Slurm: {stated}; nothing is assumed"
        if unchanged_for(context) >= context.policy.nodes.stuck_limit:
            return context.hand_over("node.unread_limit", f"{reason}, for too long. {state_of_the_node(context)}")
        return wait(context, "node.unread", reason)
    if seen.value is None:
        return context.close(
            "node.not_in_slurm",
            f"Slurm has no node {context.incident.node}: it is no compute node, or it is gone; nothing can be cordoned",
            Phase.STOPPED,
            severity=Severity.WARNING,
        )
    return None


@rule("node.misplaced")
def node_misplaced(context: RuleContext) -> Decision:
    """A phase that such an Incident cannot be in, which cannot happen: a person."""
    return context.hand_over("node.misplaced", f"a node's Incident cannot be {context.incident.phase}")


# ---- other actors ----


@rule("node.theirs", "node.theirs_stuck", "node.theirs_done", "node.held_before")
def node_theirs(context: RuleContext) -> Decision | None:
    """Another actor repairs it: wait; notified once; a person after 75 minutes; given back once it is healthy.

    The instance is in transition, in no list, or another; HyperPod has marked it (`Action:...`); Slurm is about to
    reboot it; or it is away on purpose. Two actors never repair one node. What they did is theirs, and recorded so.
    """
    theirs = others_at_work(context)
    if theirs is None:
        return None
    context = with_repair(context, theirs=OutsideRepair(what=theirs, at=context.now), wanted_at=None)
    is_done = is_replaced(context) or "node.theirs" in repair_of(context).notified
    if is_done and is_back_in_service(context):
        reason = f"{theirs}, not by us; both HyperPod and Slurm say that it is well. {state_of_the_node(context)}"
        return context.close("node.theirs_done", reason, Phase.RECOVERED, severity=Severity.INFO)
    if is_done and is_well(context, after_reboot=True) and has_our_drain(context):
        if not is_replaced(context) and is_of_an_earlier_incident(context):
            return left_cordoned(context, f"{theirs}, not by us")
        return give_back(context, "node.theirs_done", f"{theirs}, not by us; it is well again, and our drain is lifted")
    if unchanged_for(context) >= context.policy.nodes.stuck_limit:
        stuck = f"{theirs}, not by us, and nothing has changed for {span_word(unchanged_for(context))}."
        return context.hand_over("node.theirs_stuck", f"{stuck} {state_of_the_node(context)}")
    context, notices = tell_once(context, "node.theirs", f"{story_of(context)} {theirs}: it is left to them.")
    reason = f"{theirs}: someone else repairs it, and two actors must not repair one node"
    return wait(context, "node.theirs", reason, *notices, phase=Phase.HOLDING)


@rule("node.theirs", "node.theirs_stuck")
def node_theirs_settles(context: RuleContext) -> Decision | None:
    """Others have repaired it, and it is not back in service yet: wait; a person after 75 minutes.

    Earlier findings are about the hardware before that.
    """
    repair, lead = repair_of(context), leading_finding(findings_about_now(context))
    if repair.theirs is None or waiting_order(context) is not None:
        return None
    if lead is not None and lead.at > repair.theirs.at:
        return None
    reason = f"{repair.theirs.what}, not by us; it is not seen back in service yet"
    if unchanged_for(context) >= context.policy.nodes.stuck_limit:
        return context.hand_over("node.theirs_stuck", f"{reason}. {state_of_the_node(context)}")
    return wait(context, "node.theirs", reason, phase=Phase.HOLDING)


@rule("node.theirs_done", "node.healed", "node.held_before")
def node_healed(context: RuleContext) -> Decision | None:
    """It is well without us: our drain is lifted, or closed. The drain of an earlier Incident stays, for a person.

    What others began has ended, the agent took its word back, or it was away for a moment. A repair order applies
    however healthy the node looks, but never repeats a repair that just happened.
    """
    repair = repair_of(context)
    if waiting_order(context) is not None and not repair.theirs:
        return None
    lead = leading_finding(findings_about_now(context))
    if repair.theirs:
        rule, what = "node.theirs_done", f"{repair.theirs.what}, not by us"
    elif lead is None and repair.cleared_at:
        rule, what = "node.healed", "the health agent has withdrawn its report"
    elif lead is not None and lead.kind in (FindingKind.DOWN, FindingKind.INSTANCE_FAILED):
        rule, what = "node.healed", "it was away, and is back without help"
    else:
        return None
    if is_back_in_service(context):
        reason = f"{what}; it is well by every view. {state_of_the_node(context)}"
        return context.close(rule, reason, Phase.RECOVERED, severity=Severity.INFO)
    if has_our_drain(context) and is_well(context, after_reboot=True):
        if is_of_an_earlier_incident(context):
            return left_cordoned(context, what)
        return give_back(context, rule, f"{what}; it is well, and our drain is lifted")
    return None


@rule("node.untouched")
def node_untouched(context: RuleContext) -> Decision | None:
    """What was found against it no longer holds when its turn comes: our drain is lifted; no repair."""
    lead = leading_finding(findings_about_now(context))
    is_over = lead is not None and lead.kind in (FindingKind.DOWN, FindingKind.INSTANCE_FAILED)
    is_cleared = lead is None and repair_of(context).cleared_at is not None
    if not (is_over or is_cleared) or waiting_order(context) is not None or is_of_an_earlier_incident(context):
        return None
    if not (has_our_drain(context) and is_well(context, after_reboot=True)):
        return None
    return give_back(
        context, "node.untouched", "it is well by every view before anything was done; our drain is lifted"
    )


@rule("node.held_by_other")
def node_held_by_other(context: RuleContext) -> Decision | None:
    """Someone else has taken it out of service meanwhile: left alone; a person."""
    other = held_by(listed(context))
    if other is None:
        return None
    reason = f"Someone else has taken it out of service meanwhile: {other}. Only a drain of our own is ever lifted."
    return context.hand_over("node.held_by_other", reason, severity=Severity.WARNING)


def others_at_work(context: RuleContext) -> str | None:
    """What HyperPod or a person does about the node, or has done. Checked only before an action of ours."""
    view, repair = view_of(context), repair_of(context)
    facts, instance = facts_of(context), instance_seen(context)
    if instance is not None and instance.state in _OTHERS_AT_WORK:
        return f"instance {instance.instance_id} {_OTHERS_AT_WORK[instance.state]}"
    if is_replaced(context):
        now_id = instance.instance_id if instance else facts.instance_id if facts else "another instance"
        return f"{now_id} has taken the place of {repair.instance_id}"
    if isinstance(view.instance, Known) and view.instance.value is None and view.machines is Machines.HYPERPOD:
        return "no list of HyperPod names an instance for it"
    if facts is not None and is_marked(facts) and view.recovery is not NodeRecovery.NONE:
        return f"HyperPod has marked it: {facts.reason}"
    if facts is not None and is_rebooting(facts):
        return "Slurm is about to reboot it"
    if facts is not None and is_away(facts):
        return f"it is away on purpose: {slurm_state(facts)}"
    return None


def give_back(context: RuleContext, name: str, reason: str) -> Decision:
    """Lift our own drain."""
    action = UncordonNode(cluster=context.incident.cluster or "", node=context.incident.node or "", why=name)
    serial = repair_of(context).serial + 1
    return wait(with_repair(context, serial=serial, refusals=0), name, reason, action, phase=Phase.RETURNING)


def left_cordoned(context: RuleContext, what: str) -> Decision:
    """An earlier Incident left it to a person, cordoned. That it was away since and is back repairs nothing."""
    reason = f"{what}; but an earlier Incident has left it cordoned, for a person. {state_of_the_node(context)}"
    return context.hand_over("node.held_before", reason, severity=Severity.WARNING)
