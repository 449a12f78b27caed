"""A node's own Incident: cordon, wait until no job is on it, repair, wait until both views say well, give it back.

Level-triggered: each look re-reads the instance's state and Slurm's, and decides; waiting costs nothing. Never: repair
a controller or login node, act while somebody else repairs, repair a node with jobs on it, undo a drain that is not
ours. The later phases stand in rules_node_repair. docs/node-repair.md explains every rule.
"""

from __future__ import annotations

from datetime import timedelta

from chalicelib.domain.claims.liveness import LATE
from chalicelib.domain.decision.verdict import PAUSED, Decision, Look, newest, span_word
from chalicelib.domain.model.action import CordonNode, Severity
from chalicelib.domain.model.hardware_ledger import LemonRule
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
from chalicelib.domain.model.repair import Allowed, TheirWork, first_rung, leading, next_rung
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
    note,
    remember,
    repair_of,
    slurm_state,
    state_of_the_node,
    story_of,
    tell_once,
    unchanged_for,
    unread,
    view_of,
    wait,
    waiting_order,
)
from chalicelib.domain.node.repair_budget import day_spent, many_down, no_room
from chalicelib.domain.rules.node.hardware import lemon_said, with_lemon
from chalicelib.domain.rules.node.repair import checking, draining, repairing, returning
from chalicelib.domain.run.first_response import shadow

# A place in the queue for repair counts only once it is so old that every other claim made before it can be read.
TICKET_AGE = timedelta(seconds=10)
_OTHERS_AT_WORK = {
    InstanceState.SHUTTING_DOWN: "is shutting down",
    InstanceState.PENDING: "is being launched or rebooted",
    InstanceState.SYSTEM_UPDATING: "is being updated",
    InstanceState.CHECKING: "is in a deep health check",
    InstanceState.NOT_FOUND: "is not found",
}


def decide_node(look: Look) -> Decision:
    """The verdict on one look at a node's Incident. Total."""
    cancel = newest(look.seen.new_signals, SignalKind.ORDER_CANCEL)
    look = with_lemon(remember(look))
    if cancel is not None:
        who = str(cancel.evidence.get("who", "an operator"))
        reason = f"cancelled by {who} while {look.incident.phase}. {state_of_the_node(look)}"
        order = waiting_order(look)
        if order is not None and any(one.kind is SignalKind.ORDER_NODE for one in look.seen.new_signals):
            reason += f" With it ends what came beside the cancel: {order.said}; order it again if it is still wanted."
        return look.close("order.cancel", reason, Phase.STOPPED, severity=Severity.WARNING)
    if look.seen.paused:
        since = look.incident.paused_since or look.now
        return look.stay("guard.paused", f"{PAUSED} {story_of(look)}", paused_since=since)
    match look.incident.phase:
        case Phase.OPEN | Phase.HOLDING:
            return _begin(look)
        case Phase.DRAINING:
            theirs = others_at_work(look)
            if theirs is not None:
                return _leave_to_them(look, theirs)
            return _back_untouched(look) or draining(look)
        case Phase.REPAIRING:
            return repairing(look)
        case Phase.CHECKING:
            return checking(look)
        case Phase.RETURNING:
            return returning(look)
        case _:
            return look.hand_over("node.misplaced", f"a node's Incident cannot be {look.incident.phase}")


def others_at_work(look: Look) -> str | None:
    """What somebody else does about the node, or has done: HyperPod, or a person. Asked only before an act of ours."""
    view, repair = view_of(look), repair_of(look)
    facts, instance = facts_of(look), instance_seen(look)
    if instance is not None and instance.state in _OTHERS_AT_WORK:
        return f"instance {instance.instance_id} {_OTHERS_AT_WORK[instance.state]}"
    if is_replaced(look):
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


def _begin(look: Look) -> Decision:
    """OPEN and HOLDING: whose is it, and is anything to be done?"""
    if look.policy.nodes.repair is Allowed.OFF and waiting_order(look) is None:
        reason = f"the policy leaves nodes alone. {state_of_the_node(look)}"
        return look.close("node.off", reason, Phase.STOPPED, severity=Severity.INFO)
    missing = unread(look, "node")
    if missing is not None:
        return missing
    if view_of(look).role in (GroupRole.CONTROLLER, GroupRole.LOGIN):
        reason = f"it is a {view_of(look).role} node, which is never rebooted or replaced by a program."
        return look.hand_over("node.controller", f"{story_of(look)} {reason}")
    theirs = others_at_work(look)
    if theirs is not None:
        return _leave_to_them(look, theirs)
    return (
        _of_itself(look)
        or _theirs_settles(look)
        or _many_down(look)
        or _deferred(look)
        or _allowed(look)
        or _queued(look)
        or _cordon(look)
    )


def _leave_to_them(look: Look, theirs: str) -> Decision:
    """Two actors never repair one node. What they did is theirs, and recorded so."""
    look = note(look, theirs=TheirWork(what=theirs, at=look.now), wanted_at=None)
    is_done = is_replaced(look) or "node.theirs" in repair_of(look).told
    if is_done and is_back_in_service(look):
        return _recovered_by_them(look, theirs)
    if is_done and is_well(look, after_reboot=True) and has_our_drain(look):
        if not is_replaced(look) and is_of_an_earlier_incident(look):
            return _left_cordoned(look, f"{theirs}, not by us")
        return give_back(look, "node.theirs_done", f"{theirs}, not by us; it is well again, and our drain is lifted")
    if unchanged_for(look) >= look.policy.nodes.stuck_limit:
        stuck = f"{theirs}, not by us, and nothing has changed for {span_word(unchanged_for(look))}."
        return look.hand_over("node.theirs_stuck", f"{stuck} {state_of_the_node(look)}")
    look, told = tell_once(look, "node.theirs", f"{story_of(look)} {theirs}: it is left to them.")
    reason = f"{theirs}: somebody else repairs it, and two actors must not repair one node"
    return wait(look, "node.theirs", reason, *told, phase=Phase.HOLDING)


def _recovered_by_them(look: Look, theirs: str) -> Decision:
    reason = f"{theirs}, not by us; both HyperPod and Slurm say that it is well. {state_of_the_node(look)}"
    return look.close("node.theirs_done", reason, Phase.RECOVERED, severity=Severity.INFO)


def give_back(look: Look, rule: str, reason: str) -> Decision:
    """Lift our own drain."""
    action = UncordonNode(cluster=look.incident.cluster or "", node=look.incident.node or "", why=rule)
    serial = repair_of(look).serial + 1
    return wait(note(look, serial=serial, refusals=0), rule, reason, action, phase=Phase.RETURNING)


def _of_itself(look: Look) -> Decision | None:
    """It is well without us: what they began has ended, the agent took its word back, or it was away for a moment.

    Whoever orders a repair wants it, however well the node looks; but not a second time what others have just done.
    """
    repair = repair_of(look)
    if waiting_order(look) is not None and not repair.theirs:
        return None
    lead = leading(findings_about_now(look))
    if repair.theirs:
        rule, what = "node.theirs_done", f"{repair.theirs.what}, not by us"
    elif lead is None and repair.cleared_at:
        rule, what = "node.healed", "the health agent has taken its word back"
    elif lead is not None and lead.kind in (FindingKind.DOWN, FindingKind.INSTANCE_FAILED):
        rule, what = "node.healed", "it was away, and is back by itself"
    else:
        return None
    if is_back_in_service(look):
        reason = f"{what}; it is well by every view. {state_of_the_node(look)}"
        return look.close(rule, reason, Phase.RECOVERED, severity=Severity.INFO)
    if has_our_drain(look) and is_well(look, after_reboot=True):
        if is_of_an_earlier_incident(look):
            return _left_cordoned(look, what)
        return give_back(look, rule, f"{what}; it is well, and our drain is lifted")
    return None


def _theirs_settles(look: Look) -> Decision | None:
    """They have repaired it, and it is not seen in service yet. What was found before speaks of what they mended."""
    repair, lead = repair_of(look), leading(findings_about_now(look))
    if repair.theirs is None or waiting_order(look) is not None:
        return None
    if lead is not None and lead.at > repair.theirs.at:
        return None
    reason = f"{repair.theirs.what}, not by us; it is not seen back in service yet"
    if unchanged_for(look) >= look.policy.nodes.stuck_limit:
        return look.hand_over("node.theirs_stuck", f"{reason}. {state_of_the_node(look)}")
    return wait(look, "node.theirs", reason, phase=Phase.HOLDING)


def _back_untouched(look: Look) -> Decision | None:
    """What was found against it no longer holds when its turn comes: our drain is lifted, and nothing else is done."""
    lead = leading(findings_about_now(look))
    is_over = lead is not None and lead.kind in (FindingKind.DOWN, FindingKind.INSTANCE_FAILED)
    is_cleared = lead is None and repair_of(look).cleared_at is not None
    if not (is_over or is_cleared) or waiting_order(look) is not None or is_of_an_earlier_incident(look):
        return None
    if not (has_our_drain(look) and is_well(look, after_reboot=True)):
        return None
    return give_back(look, "node.untouched", "it is well by every view before anything was done; our drain is lifted")


def _many_down(look: Look) -> Decision | None:
    """Nothing is cordoned for it, and people are told by the runs' own Incidents."""
    reason = many_down(look)
    if reason is None:
        return None
    if look.in_phase >= look.policy.nodes.stuck_limit and look.incident.phase is Phase.HOLDING:
        return look.hand_over("node.many_down_limit", f"{story_of(look)} {reason}. {state_of_the_node(look)}")
    return wait(look, "node.many_down", reason, phase=Phase.HOLDING)


def _left_cordoned(look: Look, what: str) -> Decision:
    """An earlier Incident has left it to a person, cordoned. That it was away since, and is back, mends nothing."""
    reason = f"{what}; but an earlier Incident has left it cordoned, for a person. {state_of_the_node(look)}"
    return look.hand_over("node.held_before", reason, severity=Severity.WARNING)


def _deferred(look: Look) -> Decision | None:
    """HyperPod's own recovery gets its grace, for what it sees itself; so does whoever drained the node."""
    view, facts = view_of(look), facts_of(look)
    age = look.now - look.incident.opened_at
    lead = leading(findings_about_now(look))
    is_blind = isinstance(view.instance, Unknown) and view.machines is Machines.HYPERPOD
    if is_blind or view.machines is Machines.UNKNOWN:
        said = view.instance.why if isinstance(view.instance, Unknown) else "it is not known what the cluster runs on"
        if unchanged_for(look) >= look.policy.nodes.stuck_limit:
            reason = f"{story_of(look)} {said}, for too long. {state_of_the_node(look)}"
            return look.hand_over("node.blind_limit", reason)
        return wait(look, "node.blind", f"its instance cannot be read: {said}; nothing is assumed", phase=Phase.HOLDING)
    is_theirs = lead is not None and (lead.by_platform or lead.kind is FindingKind.DOWN)
    acts_itself = view.machines is Machines.HYPERPOD and view.recovery is not NodeRecovery.NONE
    acts_itself = acts_itself and waiting_order(look) is None  # who orders a repair has waited already
    if acts_itself and is_theirs and age < look.policy.nodes.hma_grace:
        reason = (
            f"NodeRecovery is {view.recovery}: HyperPod gets {span_word(look.policy.nodes.hma_grace)} to act by itself"
        )
        return wait(look, "node.defer", reason, phase=Phase.HOLDING)
    is_late = not acts_itself and _came_late(look)
    if (acts_itself or is_late) and _is_unconfirmed(look):
        if is_late:
            reason = "HyperPod said it long before it was heard here, and may have taken it back since"
            if age < look.policy.nodes.hma_grace:
                return wait(look, "node.late", f"{reason}; waiting for its all-clear", phase=Phase.HOLDING)
        else:
            reason = f"NodeRecovery is {view.recovery}, and HyperPod has done nothing about it in {span_word(age)}"
            reason += "; no run has suffered from it"
        return look.hand_over(
            "node.unconfirmed",
            f"{story_of(look)} {reason}, and it looks well. It is not repaired on that word alone. "
            f"{state_of_the_node(look)}",
            severity=Severity.WARNING,
        )
    other = held_by(facts) if facts is not None else None
    if other is None:
        return None
    if acts_itself and age < look.policy.nodes.hma_grace:
        return wait(look, "node.defer", f"somebody took it out ({other}); waiting to see for what", phase=Phase.HOLDING)
    return look.hand_over(
        "node.held_by_other",
        f"{story_of(look)} Somebody else has taken it out of service: {other}. It is left alone."
        + (" Resume it in Slurm, and order again." if waiting_order(look) is not None else ""),
        severity=Severity.WARNING,
    )


def _is_unconfirmed(look: Look) -> bool:
    """HyperPod's agents alone have said it, and no more: it would repair by itself what it holds to be broken, and its
    word that the node is well again may be lost or late.
    """
    found, facts = findings_about_now(look), facts_of(look)
    if not found or not all(one.by_platform and one.kind is not FindingKind.INSTANCE_FAILED for one in found):
        return False
    if facts is None or is_marked(facts) or is_silent(facts) or facts.state == "down":
        return False
    return is_running(look)


def _came_late(look: Look) -> bool:
    """The newest thing against it was old when the Incident opened: what has been said since may be as late."""
    found = findings_about_now(look)
    return waiting_order(look) is None and bool(found) and look.incident.opened_at - max(one.at for one in found) > LATE


def _allowed(look: Look) -> Decision | None:
    """Does anything ask for a repair, and does the policy allow one?"""
    lead = leading(findings_about_now(look))
    said = lemon_said(look) if look.policy.nodes.lemon_repair is LemonRule.TELL else None
    is_asked_for = lead is not None and first_rung(lead.kind) is not None
    if said is not None and not is_asked_for and waiting_order(look) is None:
        return _told(look, "node.lemon", f"{said}, and the policy says to tell it")
    if said is not None and "node.lemon" not in repair_of(look).told:
        look, told = tell_once(look, "node.lemon", f"{story_of(look)} {said}. The policy says to tell it.")
        return wait(look, "node.lemon", said, *told, phase=Phase.HOLDING)
    if waiting_order(look) is None:  # the policy says what is done without anybody's order
        if not is_asked_for:
            return _told(look, "node.omen", "nothing that was found asks for a repair")
        if look.policy.nodes.repair is Allowed.TELL:
            return _told(look, "node.tell", "the policy says to tell, and no more")
    rung, _ = next_rung(repair_of(look), findings_about_now(look), now=look.now)
    if look.policy.shadow:
        return shadow(look, f"cordon {look.incident.node}, and then {rung or 'call a person'}")
    return None


def _told(look: Look, rule: str, reason: str) -> Decision:
    """Tell it, stay open for its echoes, and close."""
    look, told = tell_once(look, rule, f"{story_of(look)} {reason}.")
    if not told and look.in_phase >= look.policy.timing.tell_open:
        return look.close(rule, f"{reason}. {state_of_the_node(look)}", Phase.STOPPED, severity=Severity.INFO)
    return wait(look, rule, f"{reason}; collecting what else is reported", *told, phase=Phase.HOLDING)


def _queued(look: Look) -> Decision | None:
    """No bug and no storm may take a whole cluster: nodes are repaired in their turn, and so many in a day."""
    repair, load = repair_of(look), view_of(look).load
    order = waiting_order(look)
    if order is not None and order.force:
        return None  # who forces it has counted for himself
    if repair.wanted_at is None:
        reason = "a repair is wanted; its turn is looked up next"
        return wait(note(look, wanted_at=look.now), "node.queue", reason, phase=Phase.HOLDING, soon=TICKET_AGE)
    if look.now - repair.wanted_at < TICKET_AGE:
        return wait(look, "node.queue", "its turn is looked up next", phase=Phase.HOLDING, soon=TICKET_AGE)
    if not isinstance(load, Known):
        if look.now - repair.wanted_at >= look.policy.nodes.stuck_limit:
            return look.hand_over("node.queue_limit", f"{story_of(look)} The other repairs cannot be read: {load.why}")
        return wait(look, "node.queue", f"the other repairs cannot be read: {load.why}", phase=Phase.HOLDING)
    spent = day_spent(look, load.value)
    if spent is not None:
        rule, reason = spent
        return look.hand_over(rule, f"{story_of(look)} {reason} {state_of_the_node(look)}")
    full = no_room(look, load.value)
    if full is None:
        return None
    rule, reason = full
    if look.now - repair.wanted_at >= look.policy.nodes.drain_limit:
        return look.hand_over("node.queue_limit", f"{story_of(look)} {reason}. {state_of_the_node(look)}")
    look, told = tell_once(look, rule, f"{story_of(look)} {reason}.")
    return wait(look, rule, reason, *told, phase=Phase.HOLDING)


def _cordon(look: Look) -> Decision:
    action = CordonNode(
        cluster=look.incident.cluster or "", node=look.incident.node or "", why=look.incident.fault_rule
    )
    actions = () if has_our_drain(look) else (action,)
    reason = f"{story_of(look)} It gets no more jobs; it is repaired when none is on it."
    return wait(
        note(look, refusals=0), "node.cordon", reason, *actions, phase=Phase.DRAINING, soon=look.policy.timing.look_min
    )
