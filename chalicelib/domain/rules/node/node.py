"""A node's own Incident: cordon, wait until no job is on it, repair, wait until both views say well, give it back.

Level-triggered: each observation re-reads the instance's state and Slurm's, and decides; waiting costs nothing. Never:
repair a controller or login node, act while another actor repairs, repair a node with jobs on it, undo a drain that is
not ours. The later phases are in repair.py. docs/node-repair.md explains every rule.
"""

from __future__ import annotations

from datetime import timedelta

from chalicelib.domain.claims.liveness import LATE
from chalicelib.domain.decision.verdict import PAUSED, Decision, RuleContext, newest_signal, span_word
from chalicelib.domain.model.action import CordonNode, Severity
from chalicelib.domain.model.hardware_ledger import SuspectRule
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.node import (
    GroupRole,
    InstanceState,
    Machines,
    NodeRecovery,
    held_by,
    is_away,
    is_marked,
    is_rebooting,
    is_silent,
)
from chalicelib.domain.model.node_actions import UncordonNode
from chalicelib.domain.model.node_findings import FindingKind
from chalicelib.domain.model.repair import (
    REPAIR_TAKES,
    Allowed,
    OutsideRepair,
    Rung,
    first_rung,
    leading_finding,
    next_rung,
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
    is_running,
    is_well,
    node_view_missing,
    remember,
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
from chalicelib.domain.node.repair_budget import many_down
from chalicelib.domain.rules.node.hardware import suspect_hardware_text, with_suspect_hardware
from chalicelib.domain.rules.node.queue import hold_until_turn
from chalicelib.domain.rules.node.repair import checking, draining, repairing, returning
from chalicelib.domain.run.first_response import shadow

# How long a repair of an earlier Incident may keep a node away: longer than it takes.
_SETTLES = {Rung.REBOOT: timedelta(minutes=15), Rung.REPLACE: REPAIR_TAKES}
_OTHERS_AT_WORK = {
    InstanceState.SHUTTING_DOWN: "is shutting down",
    InstanceState.PENDING: "is being launched or rebooted",
    InstanceState.SYSTEM_UPDATING: "is being updated",
    InstanceState.CHECKING: "is in a deep health check",
    InstanceState.NOT_FOUND: "is not found",
}


def decide_node(context: RuleContext) -> Decision:
    """The verdict on one observation of a node's Incident. Total."""
    cancel = newest_signal(context.seen.new_signals, SignalKind.ORDER_CANCEL)
    context = with_suspect_hardware(remember(context))
    if cancel is not None:
        who = str(cancel.evidence.get("who", "an operator"))
        reason = f"cancelled by {who} while {context.incident.phase}. {state_of_the_node(context)}"
        order = waiting_order(context)
        if order is not None and any(one.kind is SignalKind.ORDER_NODE for one in context.seen.new_signals):
            reason += f" With it ends what came beside the cancel: {order.text}; order it again if it is still wanted."
        return context.close("order.cancel", reason, Phase.STOPPED, severity=Severity.WARNING)
    if context.seen.paused:
        since = context.incident.paused_since or context.now
        return context.stay("guard.paused", f"{PAUSED} {story_of(context)}", paused_since=since)
    match context.incident.phase:
        case Phase.OPEN | Phase.HOLDING:
            return _begin(context)
        case Phase.DRAINING:
            theirs = others_at_work(context)
            if theirs is not None:
                return _leave_to_them(context, theirs)
            return _back_untouched(context) or draining(context)
        case Phase.REPAIRING:
            return repairing(context)
        case Phase.CHECKING:
            return checking(context)
        case Phase.RETURNING:
            return returning(context)
        case _:
            return context.hand_over("node.misplaced", f"a node's Incident cannot be {context.incident.phase}")


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


def _begin(context: RuleContext) -> Decision:
    """OPEN and HOLDING: whose is it, and is anything to be done?"""
    if context.policy.nodes.repair is Allowed.OFF and waiting_order(context) is None:
        reason = f"the policy leaves nodes alone. {state_of_the_node(context)}"
        return context.close("node.off", reason, Phase.STOPPED, severity=Severity.INFO)
    missing = node_view_missing(context, "node")
    if missing is not None:
        return missing
    if view_of(context).role in (GroupRole.CONTROLLER, GroupRole.LOGIN):
        reason = f"it is a {view_of(context).role} node, which is never rebooted or replaced by a program."
        return context.hand_over("node.controller", f"{story_of(context)} {reason}")
    theirs = others_at_work(context)
    if theirs is not None:
        return _leave_to_them(context, theirs)
    return (
        _of_itself(context)
        or _theirs_settles(context)
        or _ours_settles(context)
        or _many_down(context)
        or _deferred(context)
        or _allowed(context)
        or hold_until_turn(context)
        or _cordon(context)
    )


def _leave_to_them(context: RuleContext, theirs: str) -> Decision:
    """Two actors never repair one node. What they did is theirs, and recorded so."""
    context = with_repair(context, theirs=OutsideRepair(what=theirs, at=context.now), wanted_at=None)
    is_done = is_replaced(context) or "node.theirs" in repair_of(context).notified
    if is_done and is_back_in_service(context):
        return _recovered_by_them(context, theirs)
    if is_done and is_well(context, after_reboot=True) and has_our_drain(context):
        if not is_replaced(context) and is_of_an_earlier_incident(context):
            return _left_cordoned(context, f"{theirs}, not by us")
        return give_back(context, "node.theirs_done", f"{theirs}, not by us; it is well again, and our drain is lifted")
    if unchanged_for(context) >= context.policy.nodes.stuck_limit:
        stuck = f"{theirs}, not by us, and nothing has changed for {span_word(unchanged_for(context))}."
        return context.hand_over("node.theirs_stuck", f"{stuck} {state_of_the_node(context)}")
    context, notices = tell_once(context, "node.theirs", f"{story_of(context)} {theirs}: it is left to them.")
    reason = f"{theirs}: someone else repairs it, and two actors must not repair one node"
    return wait(context, "node.theirs", reason, *notices, phase=Phase.HOLDING)


def _recovered_by_them(context: RuleContext, theirs: str) -> Decision:
    reason = f"{theirs}, not by us; both HyperPod and Slurm say that it is well. {state_of_the_node(context)}"
    return context.close("node.theirs_done", reason, Phase.RECOVERED, severity=Severity.INFO)


def give_back(context: RuleContext, rule: str, reason: str) -> Decision:
    """Lift our own drain."""
    action = UncordonNode(cluster=context.incident.cluster or "", node=context.incident.node or "", why=rule)
    serial = repair_of(context).serial + 1
    return wait(with_repair(context, serial=serial, refusals=0), rule, reason, action, phase=Phase.RETURNING)


def _of_itself(context: RuleContext) -> Decision | None:
    """It is well without us: what they began has ended, the agent took its word back, or it was away for a moment.

    A repair order applies however healthy the node looks, but never repeats a repair that just happened.
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
            return _left_cordoned(context, what)
        return give_back(context, rule, f"{what}; it is well, and our drain is lifted")
    return None


def _theirs_settles(context: RuleContext) -> Decision | None:
    """Others have repaired it; it is not back in service yet. Earlier findings are about the hardware before that."""
    repair, lead = repair_of(context), leading_finding(findings_about_now(context))
    if repair.theirs is None or waiting_order(context) is not None:
        return None
    if lead is not None and lead.at > repair.theirs.at:
        return None
    reason = f"{repair.theirs.what}, not by us; it is not seen back in service yet"
    if unchanged_for(context) >= context.policy.nodes.stuck_limit:
        return context.hand_over("node.theirs_stuck", f"{reason}. {state_of_the_node(context)}")
    return wait(context, "node.theirs", reason, phase=Phase.HOLDING)


def _ours_settles(context: RuleContext) -> Decision | None:
    """It is away, and an earlier Incident had it rebooted or replaced just before: that is what keeps it away."""
    lead = leading_finding(findings_about_now(context))
    if lead is None or lead.kind is not FindingKind.DOWN or waiting_order(context) is not None:
        return None
    for past in repair_of(context).past:
        ends_at = past.at + _SETTLES[Rung(past.rung)]
        if context.now < ends_at:
            reason = f"a {past.rung} of an earlier Incident began at {past.at:%H:%M} UTC, and may keep it away"
            return wait(context, "node.just_repaired", reason, phase=Phase.HOLDING)
    return None


def _back_untouched(context: RuleContext) -> Decision | None:
    """What was found against it no longer holds when its turn comes: our drain is lifted, and nothing else is done."""
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


def _many_down(context: RuleContext) -> Decision | None:
    """Nothing is cordoned for it; the runs' own Incidents notify people."""
    reason = many_down(context)
    if reason is None:
        return None
    if context.in_phase >= context.policy.nodes.stuck_limit and context.incident.phase is Phase.HOLDING:
        return context.hand_over("node.many_down_limit", f"{story_of(context)} {reason}. {state_of_the_node(context)}")
    return wait(context, "node.many_down", reason, phase=Phase.HOLDING)


def _left_cordoned(context: RuleContext, what: str) -> Decision:
    """An earlier Incident left it to a person, cordoned. That it was away since and is back repairs nothing."""
    reason = f"{what}; but an earlier Incident has left it cordoned, for a person. {state_of_the_node(context)}"
    return context.hand_over("node.held_before", reason, severity=Severity.WARNING)


def _deferred(context: RuleContext) -> Decision | None:
    """HyperPod's own recovery gets its grace for what it detects itself; so does a person who drained the node."""
    view, facts = view_of(context), facts_of(context)
    age = context.now - context.incident.opened_at
    lead = leading_finding(findings_about_now(context))
    is_blind = isinstance(view.instance, Unknown) and view.machines is Machines.HYPERPOD
    if is_blind or view.machines is Machines.UNKNOWN:
        text = view.instance.why if isinstance(view.instance, Unknown) else "it is not known what the cluster runs on"
        if unchanged_for(context) >= context.policy.nodes.stuck_limit:
            reason = f"{story_of(context)} {text}, for too long. {state_of_the_node(context)}"
            return context.hand_over("node.blind_limit", reason)
        return wait(
            context, "node.blind", f"its instance cannot be read: {text}; nothing is assumed", phase=Phase.HOLDING
        )
    is_theirs = lead is not None and (lead.by_platform or lead.kind is FindingKind.DOWN)
    acts_itself = view.machines is Machines.HYPERPOD and view.recovery is not NodeRecovery.NONE
    acts_itself = acts_itself and waiting_order(context) is None  # who orders a repair has waited already
    if acts_itself and is_theirs and age < context.policy.nodes.hma_grace:
        reason = (
            f"NodeRecovery is {view.recovery}: HyperPod gets "
            f"{span_word(context.policy.nodes.hma_grace)} to act automatically"
        )
        return wait(context, "node.defer", reason, phase=Phase.HOLDING)
    is_late = not acts_itself and _came_late(context)
    if (acts_itself or is_late) and _is_unconfirmed(context):
        if is_late:
            reason = "HyperPod reported it long before it was received here, and may have taken it back since"
            if age < context.policy.nodes.hma_grace:
                return wait(context, "node.late", f"{reason}; waiting for its all-clear", phase=Phase.HOLDING)
        else:
            reason = f"NodeRecovery is {view.recovery}, and HyperPod has done nothing about it in {span_word(age)}"
            reason += "; no run has suffered from it"
        return context.hand_over(
            "node.unconfirmed",
            f"{story_of(context)} {reason}, and it looks well. It is not repaired on that word alone. "
            f"{state_of_the_node(context)}",
            severity=Severity.WARNING,
        )
    other = held_by(facts) if facts is not None else None
    if other is None:
        return None
    if acts_itself and age < context.policy.nodes.hma_grace:
        return wait(
            context, "node.defer", f"someone took it out ({other}); waiting to see for what", phase=Phase.HOLDING
        )
    return context.hand_over(
        "node.held_by_other",
        f"{story_of(context)} Someone else has taken it out of service: {other}. It is left alone."
        + (" Resume it in Slurm, and order again." if waiting_order(context) is not None else ""),
        severity=Severity.WARNING,
    )


def _is_unconfirmed(context: RuleContext) -> bool:
    """Only HyperPod's agents report it: HyperPod would repair what it holds to be broken, and its event that the node
    is healthy again may be lost or late.
    """
    found, facts = findings_about_now(context), facts_of(context)
    if not found or not all(one.by_platform and one.kind is not FindingKind.INSTANCE_FAILED for one in found):
        return False
    if facts is None or is_marked(facts) or is_silent(facts) or facts.state == "down":
        return False
    return is_running(context)


def _came_late(context: RuleContext) -> bool:
    """The newest finding was old when the Incident opened: later reports may be as late."""
    found = findings_about_now(context)
    return (
        waiting_order(context) is None
        and bool(found)
        and context.incident.opened_at - max(one.at for one in found) > LATE
    )


def _allowed(context: RuleContext) -> Decision | None:
    """Does anything ask for a repair, and does the policy allow one?"""
    lead = leading_finding(findings_about_now(context))
    suspect = suspect_hardware_text(context) if context.policy.nodes.suspect_repair is SuspectRule.TELL else None
    is_asked_for = lead is not None and first_rung(lead.kind) is not None
    if suspect is not None and not is_asked_for and waiting_order(context) is None:
        return _notified(context, "node.suspect_hardware", f"{suspect}, and the policy says: notify")
    if suspect is not None and "node.suspect_hardware" not in repair_of(context).notified:
        context, notices = tell_once(
            context, "node.suspect_hardware", f"{story_of(context)} {suspect}. The policy says: notify."
        )
        return wait(context, "node.suspect_hardware", suspect, *notices, phase=Phase.HOLDING)
    if waiting_order(context) is None:  # the policy says what is done without anybody's order
        if not is_asked_for:
            return _notified(context, "node.omen", "nothing that was found asks for a repair")
        if context.policy.nodes.repair is Allowed.TELL:
            return _notified(context, "node.tell", "the policy says: notify, and do nothing else")
    rung, _ = next_rung(repair_of(context), findings_about_now(context), now=context.now)
    if context.policy.shadow:
        return shadow(context, f"cordon {context.incident.node}, and then {rung or 'call a person'}")
    return None


def _notified(context: RuleContext, rule: str, reason: str) -> Decision:
    """Tell it, stay open for its echoes, and close."""
    context, notices = tell_once(context, rule, f"{story_of(context)} {reason}.")
    if not notices and context.in_phase >= context.policy.timing.tell_open:
        return context.close(rule, f"{reason}. {state_of_the_node(context)}", Phase.STOPPED, severity=Severity.INFO)
    return wait(context, rule, f"{reason}; collecting what else is reported", *notices, phase=Phase.HOLDING)


def _cordon(context: RuleContext) -> Decision:
    action = CordonNode(
        cluster=context.incident.cluster or "", node=context.incident.node or "", why=context.incident.fault_rule
    )
    actions = () if has_our_drain(context) else (action,)
    reason = f"{story_of(context)} It gets no more jobs; it is repaired when none is on it."
    return wait(
        with_repair(context, refusals=0),
        "node.cordon",
        reason,
        *actions,
        phase=Phase.DRAINING,
        soon=context.policy.timing.look_min,
    )
