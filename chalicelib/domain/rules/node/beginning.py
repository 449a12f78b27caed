"""A node's Incident begins, OPEN and HOLDING: whose is it, and is anything to be done?"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, span_word
from chalicelib.domain.model.action import CordonNode, Severity
from chalicelib.domain.model.hardware_ledger import SuspectRule
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.node import (
    GroupRole,
    Machines,
    NodeRecovery,
    held_by,
    is_marked,
    is_silent,
    trouble_of,
)
from chalicelib.domain.model.node_findings import FindingKind
from chalicelib.domain.model.repair import (
    REPAIR_TAKES,
    RUN_LIVES,
    Allowed,
    Rung,
    first_rung,
    leading_finding,
    next_rung,
)
from chalicelib.domain.node.memory import (
    facts_of,
    findings_about_now,
    has_our_drain,
    is_down_by_the_cluster_alone,
    is_running,
    repair_of,
    state_of_the_node,
    story_of,
    tell_once,
    unchanged_for,
    view_of,
    wait,
    waiting_order,
    with_repair,
)
from chalicelib.domain.node.repair_budget import mass_outage_reason
from chalicelib.domain.rules.node.hardware import suspect_hardware_text
from chalicelib.domain.rules.node.node import node_healed, node_theirs, node_theirs_settles, node_unread
from chalicelib.domain.rules.node.queue import TURN
from chalicelib.domain.run.first_response import shadow
from chalicelib.domain.run.liveness import LATE

# How long a repair of an earlier Incident may keep a node away: longer than it takes.
_SETTLES = {Rung.REBOOT: timedelta(minutes=15), Rung.REPLACE: REPAIR_TAKES}


@rule("node.off")
def node_off(context: RuleContext) -> Decision | None:
    """The policy leaves nodes alone: closed."""
    if context.policy.nodes.repair is not Allowed.OFF or waiting_order(context) is not None:
        return None
    reason = f"the policy leaves nodes alone. {state_of_the_node(context)}"
    return context.close("node.off", reason, Phase.STOPPED, severity=Severity.INFO)


@rule("node.controller")
def node_controller(context: RuleContext) -> Decision | None:
    """Its group is a controller's or a login node's: a person; never repaired."""
    role = view_of(context).role
    if role not in (GroupRole.CONTROLLER, GroupRole.LOGIN):
        return None
    reason = f"it is a {role} node, which is never rebooted or replaced by a program."
    return context.hand_over("node.controller", f"{story_of(context)} {reason}")


@rule("node.just_repaired")
def node_just_repaired(context: RuleContext) -> Decision | None:
    """It is away, and an earlier Incident had it rebooted (15 minutes) or replaced (40 minutes) just before: wait."""
    lead = leading_finding(findings_about_now(context))
    if lead is None or lead.kind is not FindingKind.DOWN or waiting_order(context) is not None:
        return None
    for past in repair_of(context).past:
        ends_at = past.at + _SETTLES[Rung(past.rung)]
        if context.now < ends_at:
            reason = f"a {past.rung} of an earlier Incident began at {past.at:%H:%M} UTC, and may keep it away"
            return wait(context, "node.just_repaired", reason, phase=Phase.HOLDING)
    return None


@rule("node.many_down", "node.many_down_limit")
def node_many_down(context: RuleContext) -> Decision | None:
    """More nodes are down than may be in repair at once, and HyperPod does not confirm it for this one: wait.

    The network or the controller is suspected. A person after 75 minutes. Nothing is cordoned for it; the runs'
    own Incidents notify people.
    """
    reason = mass_outage_reason(context)
    if reason is None:
        return None
    if context.in_phase >= context.policy.nodes.stuck_limit and context.incident.phase is Phase.HOLDING:
        return context.hand_over("node.many_down_limit", f"{story_of(context)} {reason}. {state_of_the_node(context)}")
    return wait(context, "node.many_down", reason, phase=Phase.HOLDING)


@rule("node.blind", "node.blind_limit")
def node_blind(context: RuleContext) -> Decision | None:
    """The instance, or the kind of cluster, cannot be read: wait; a person after 75 minutes."""
    view = view_of(context)
    is_blind = isinstance(view.instance, Unknown) and view.machines is Machines.HYPERPOD
    if not is_blind and view.machines is not Machines.UNKNOWN:
        return None
    text = view.instance.why if isinstance(view.instance, Unknown) else "it is not known what the cluster runs on"
    if unchanged_for(context) >= context.policy.nodes.stuck_limit:
        reason = f"{story_of(context)} {text}, for too long. {state_of_the_node(context)}"
        return context.hand_over("node.blind_limit", reason)
    return wait(context, "node.blind", f"its instance cannot be read: {text}; nothing is assumed", phase=Phase.HOLDING)


@rule("node.defer")
def node_defer(context: RuleContext) -> Decision | None:
    """NodeRecovery is Automatic or unknown, and HyperPod saw the fault itself: it gets `nodes.hma_grace_s` to act."""
    lead = leading_finding(findings_about_now(context))
    is_theirs = lead is not None and (lead.by_platform or lead.kind is FindingKind.DOWN)
    if not _acts_itself(context) or not is_theirs or not _is_in_grace(context):
        return None
    reason = (
        f"NodeRecovery is {view_of(context).recovery}: HyperPod gets "
        f"{span_word(context.policy.nodes.hma_grace)} to act automatically"
    )
    return wait(context, "node.defer", reason, phase=Phase.HOLDING)


@rule("node.late", "node.unconfirmed")
def node_late(context: RuleContext) -> Decision | None:
    """NodeRecovery is None, and only HyperPod's agents reported it, two minutes late: wait `nodes.hma_grace_s`.

    It is healthy by both views. After the grace it is a person's: it is not repaired on that word alone.
    """
    if _acts_itself(context) or not _came_late(context) or not _is_unconfirmed(context):
        return None
    reason = "HyperPod reported it long before it was received here, and may have taken it back since"
    if _is_in_grace(context):
        return wait(context, "node.late", f"{reason}; waiting for its all-clear", phase=Phase.HOLDING)
    return _unconfirmed(context, reason)


@rule("node.unconfirmed")
def node_unconfirmed(context: RuleContext) -> Decision | None:
    """Only HyperPod's agents reported it, HyperPod has not acted in its grace, and it looks well: a person."""
    if not _acts_itself(context) or not _is_unconfirmed(context):
        return None
    age = span_word(context.now - context.incident.opened_at)
    reason = f"NodeRecovery is {view_of(context).recovery}, and HyperPod has done nothing about it in {age}"
    return _unconfirmed(context, f"{reason}; no run has suffered from it")


@rule("node.held_by_other", "node.defer")
def node_held_by_other(context: RuleContext) -> Decision | None:
    """Someone else took it out of service: left alone; a person. HyperPod's own recovery gets its grace first.

    It is drained, failed, or set down with a reason that is not ours, Slurm's, or HyperPod's.
    """
    facts = facts_of(context)
    other = held_by(facts) if facts is not None else None
    if other is None:
        return None
    if _acts_itself(context) and _is_in_grace(context):
        return wait(
            context, "node.defer", f"someone took it out ({other}); waiting to see for what", phase=Phase.HOLDING
        )
    return context.hand_over(
        "node.held_by_other",
        f"{story_of(context)} Someone else has taken it out of service: {other}. It is left alone."
        + (" Resume it in Slurm, and order again." if waiting_order(context) is not None else ""),
        severity=Severity.WARNING,
    )


@rule("node.cluster_drained", "node.cluster_grace")
def node_cluster_drained(context: RuleContext) -> Decision | None:
    """Slurm itself drained it for a defect, such as `Kill task failed`, or cannot end a job on it: its administrator's;
    a person. Where `nodes.reboot_drained_after_s` is set, told, and repaired after so long."""
    facts, lead = facts_of(context), leading_finding(findings_about_now(context))
    trouble = trouble_of(facts) if facts is not None else ""
    is_another = lead is not None and lead.kind is not FindingKind.CLUSTER_TROUBLE
    if not trouble or is_another or waiting_order(context) is not None:
        return None
    text = f"Slurm is in trouble with {context.incident.node}: {trouble}"
    after = context.policy.nodes.reboot_drained_after
    if not after:
        return context.hand_over(
            "node.cluster_drained",
            f"{text}. Until it is resumed, which is for its administrator, it gets no more jobs or does so again. An "
            "order to reboot it repairs it",
            severity=Severity.WARNING,
        )
    age = context.now - context.incident.opened_at
    if age >= after or lead is None:
        return None
    context, notices = tell_once(context, "node.cluster_grace", f"{text}. It is rebooted in {span_word(after - age)}.")
    return wait(context, "node.cluster_grace", text, *notices, phase=Phase.HOLDING, soon=after - age)


@rule("node.suspect_hardware")
def node_suspect_hardware(context: RuleContext) -> Decision | None:
    """It is [suspect hardware](hardware.md), and `nodes.suspect_repair` is `tell`: notified once."""
    is_told = context.policy.nodes.suspect_repair is SuspectRule.TELL
    suspect = suspect_hardware_text(context) if is_told else None
    if suspect is None:
        return None
    if not _is_asked_for(context) and waiting_order(context) is None:
        return _notified(context, "node.suspect_hardware", f"{suspect}, and the policy says: notify")
    if "node.suspect_hardware" in repair_of(context).notified:
        return None
    text = f"{story_of(context)} {suspect}. The policy says: notify."
    context, notices = tell_once(context, "node.suspect_hardware", text)
    return wait(context, "node.suspect_hardware", suspect, *notices, phase=Phase.HOLDING)


@rule("node.omen")
def node_omen(context: RuleContext) -> Decision | None:
    """No finding asks for a repair: notified, closed."""
    if waiting_order(context) is not None or _is_asked_for(context):
        return None
    return _notified(context, "node.omen", "nothing that was found asks for a repair")


@rule("node.tell")
def node_tell(context: RuleContext) -> Decision | None:
    """The policy only notifies: notified, closed."""
    if waiting_order(context) is not None or context.policy.nodes.repair is not Allowed.TELL:
        return None
    return _notified(context, "node.tell", "the policy says: notify, and do nothing else")


@rule("guard.shadow")
def node_shadow(context: RuleContext) -> Decision | None:
    """Shadow mode: only told."""
    if not context.policy.shadow:
        return None
    rung, _ = next_rung(repair_of(context), findings_about_now(context), now=context.now)
    return shadow(context, f"cordon {context.incident.node}, and then {rung or 'call a person'}")


@rule("node.run_weighed", RUN_LIVES)
def node_run_lives(context: RuleContext) -> Decision | None:
    """Only the cluster calls it lost, and a protected run on it may go on: wait while that run's own Incident weighs
    it; a person where the run's steps have gone on since. slurmd may have died alone: a reboot would end the run."""
    load = view_of(context).load
    if not is_down_by_the_cluster_alone(context) or not isinstance(load, Known):
        return None
    if runs := ", ".join(load.value.weighed_by):
        return wait(context, "node.run_weighed", f"whether {runs} goes on is being watched", phase=Phase.HOLDING)
    if not (runs := ", ".join(load.value.outlived_by)):
        return None
    return context.hand_over(
        RUN_LIVES,
        f"{story_of(context)} But {runs} has gone on since. It is not repaired while that run may be on it. Its"
        " cluster's own daemon there may have died alone: start it again; or order a repair once nothing runs there.",
        severity=Severity.WARNING,
    )


@rule("node.doubted", "node.doubted_limit")
def node_doubted(context: RuleContext) -> Decision | None:
    """Only the cluster calls it lost, and at once with it another one on which a protected run goes on, or may: the
    network is suspected. Wait until it reaches that one again; a person after 75 minutes."""
    load = view_of(context).load
    if not is_down_by_the_cluster_alone(context) or not isinstance(load, Known) or not load.value.doubted_by:
        return None
    runs = ", ".join(load.value.doubted_by)
    reason = f"its cluster called another node lost at once with it, still does, and {runs} goes on there, or may"
    if context.in_phase >= context.policy.nodes.stuck_limit:
        return context.hand_over(
            "node.doubted_limit", f"{story_of(context)} But {reason}. {state_of_the_node(context)}"
        )
    return wait(context, "node.doubted", reason, phase=Phase.HOLDING)


@rule("node.cordon")
def node_cordon(context: RuleContext) -> Decision:
    """Its turn: drained with our reason."""
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


BEGIN: Final = (
    node_off,
    node_unread,
    node_controller,
    node_theirs,
    node_healed,
    node_theirs_settles,
    node_just_repaired,
    node_many_down,
    node_blind,
    node_defer,
    node_late,
    node_unconfirmed,
    node_held_by_other,
    node_cluster_drained,
    node_suspect_hardware,
    node_omen,
    node_tell,
    node_shadow,
    *TURN,
    node_run_lives,
    node_doubted,
    node_cordon,
)


def _acts_itself(context: RuleContext) -> bool:
    """HyperPod's own recovery may act. Not before an order: a person who orders a repair has waited already."""
    view = view_of(context)
    is_its_own = view.machines is Machines.HYPERPOD and view.recovery is not NodeRecovery.NONE
    return is_its_own and waiting_order(context) is None


def _is_in_grace(context: RuleContext) -> bool:
    return context.now - context.incident.opened_at < context.policy.nodes.hma_grace


def _is_asked_for(context: RuleContext) -> bool:
    """A finding asks for a repair."""
    lead = leading_finding(findings_about_now(context))
    return lead is not None and first_rung(lead.kind) is not None


def _unconfirmed(context: RuleContext, reason: str) -> Decision:
    return context.hand_over(
        "node.unconfirmed",
        f"{story_of(context)} {reason}, and it looks well. It is not repaired on that word alone. "
        f"{state_of_the_node(context)}",
        severity=Severity.WARNING,
    )


def _is_unconfirmed(context: RuleContext) -> bool:
    """Only HyperPod's agents report it: HyperPod would repair what it holds to be broken, and its event that the node
    is healthy again may be lost or late.
    """
    found, facts = findings_about_now(context), facts_of(context)
    if not found or not all(
        finding.by_platform and finding.kind is not FindingKind.INSTANCE_FAILED for finding in found
    ):
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
        and context.incident.opened_at - max(finding.at for finding in found) > LATE
    )


def _notified(context: RuleContext, name: str, reason: str) -> Decision:
    """Tell it, stay open for its echoes, and close."""
    context, notices = tell_once(context, name, f"{story_of(context)} {reason}.")
    if not notices and context.in_phase >= context.policy.timing.tell_open:
        return context.close(name, f"{reason}. {state_of_the_node(context)}", Phase.STOPPED, severity=Severity.INFO)
    return wait(context, name, f"{reason}; collecting what else is reported", *notices, phase=Phase.HOLDING)
