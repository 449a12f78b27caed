"""The short questions that rules ask of a node's Incident and of one look at the node. Pure."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

from chalicelib.domain.decision.verdict import Decision, RuleContext, subject
from chalicelib.domain.model.action import Action, Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import (
    InstanceState,
    InstanceView,
    Machines,
    NodeView,
    is_drained,
    is_in_service,
    is_ours,
    is_well_but_drained,
)
from chalicelib.domain.model.node_findings import (
    Finding,
    FindingKind,
    NodeOrder,
)
from chalicelib.domain.model.repair import NodeRepair, leading_finding
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.cluster.node_states import defect_in
from rekindle.protocol.cluster.orders import REASON_PREFIX

_LONG = 40  # a wait of this many longest intervals (2 h as built in) is one for people: it is looked at more seldom yet
_SELDOM = 5


def repair_of(context: RuleContext) -> NodeRepair:
    """The memory; a fresh one at the Incident's begin."""
    return context.incident.repair or NodeRepair()


def view_of(context: RuleContext) -> NodeView:
    """What was seen; everything Unknown where the look itself failed."""
    return context.seen.node.value if isinstance(context.seen.node, Known) else NodeView()


def facts_of(context: RuleContext) -> NodeFacts | None:
    """The node in Slurm; None where it cannot be read, or is not there."""
    seen = view_of(context).listed
    return seen.value if isinstance(seen, Known) else None


def instance_seen(context: RuleContext) -> InstanceView | None:
    """Its instance; None where it cannot be read, or there is none."""
    seen = view_of(context).instance
    return seen.value if isinstance(seen, Known) else None


def slurm_state(facts: NodeFacts) -> str:
    """One line for people, as Slurm writes it: `idle+drain (rekindle:inc-1)`, and the jobs on it."""
    jobs = f", jobs {', '.join(str(job) for job in facts.jobs[:8])}" if facts.jobs else ""
    reason = f" ({facts.reason[:100]})" if facts.reason else ""
    return "+".join((facts.state, *sorted(facts.flags))) + reason + jobs


def findings_about_now(context: RuleContext) -> tuple[Finding, ...]:
    """The findings about the node's present instance, and those that name no instance. CLUSTER_TROUBLE counts only
    while the cluster shows it."""
    repair, now_id, facts = repair_of(context), current_id(context), facts_of(context)
    is_past = facts is not None and facts.ending_since is None and not defect_in(facts.reason)
    return tuple(
        finding
        for finding in repair.findings
        if (
            finding.instance_id is None
            or now_id is None
            or finding.instance_id == now_id
            or now_id == repair.instance_id
        )
        and not (is_past and finding.kind is FindingKind.CLUSTER_TROUBLE)
    )


def waiting_order(context: RuleContext) -> NodeOrder | None:
    """What a person ordered about the node, and is not under way yet."""
    return repair_of(context).waiting_order


def is_down_by_the_cluster_alone(context: RuleContext) -> bool:
    """That its cluster cannot reach it is the worst that is known of it, and no person has ordered its repair."""
    lead = leading_finding(findings_about_now(context))
    is_down = lead is not None and lead.kind is FindingKind.DOWN and not lead.by_platform
    return is_down and waiting_order(context) is None


def story_of(context: RuleContext) -> str:
    """One sentence: what speaks against the node, or who ordered what."""
    order, lead = repair_of(context).order, leading_finding(repair_of(context).findings)
    ordered = f"{order.text[:1].upper()}{order.text[1:]}." if order is not None else ""
    if lead is None:
        return ordered or "Nothing was found against it."
    found = f"{context.incident.fault} ({context.incident.fault_rule}): {lead.text.rstrip('.')}."
    return f"{ordered} {found}" if ordered else found


def current_id(context: RuleContext) -> str | None:
    """The instance of the node now: the API's word before the node map's, which may be older."""
    instance, facts = instance_seen(context), facts_of(context)
    if instance is not None:
        return instance.instance_id
    return facts.instance_id if facts is not None else None


def is_replaced(context: RuleContext) -> bool:
    """Another instance stands where the one stood that the Incident is about."""
    repair, now_id = repair_of(context), current_id(context)
    return repair.instance_id is not None and now_id is not None and now_id != repair.instance_id


def is_running(context: RuleContext) -> bool:
    """Its instance runs; on plain Slurm there is none to ask."""
    instance = instance_seen(context)
    if instance is not None:
        return instance.state is InstanceState.RUNNING
    return view_of(context).machines is Machines.OWN


def is_well(context: RuleContext, *, after_reboot: bool = False) -> bool:
    """Both views agree: the instance runs, and Slurm would give it jobs but for a drain of ours."""
    facts = facts_of(context)
    return facts is not None and is_running(context) and is_well_but_drained(facts, after_reboot=after_reboot)


def is_back_in_service(context: RuleContext) -> bool:
    """Both views agree, and no drain is left."""
    facts = facts_of(context)
    return facts is not None and is_running(context) and is_in_service(facts)


def has_our_drain(context: RuleContext) -> bool:
    """It is drained, by us."""
    facts = facts_of(context)
    return facts is not None and is_ours(facts)


def is_of_an_earlier_incident(context: RuleContext) -> bool:
    """Our drain, but neither this Incident's nor that of a run that reported the node: the person paged then was
    notified that it stays.
    """
    facts = facts_of(context)
    if facts is None or not is_ours(facts):
        return False
    reporters = {signal.evidence.get("incident_id") for signal in context.incident.signals}
    whose = facts.reason.removeprefix(REASON_PREFIX).partition(" ")[0]
    return whose not in {context.incident.incident_id, *reporters}


def is_out_of_scheduling(facts: NodeFacts) -> bool:
    """Nothing new is started on it."""
    return is_drained(facts) or "fail" in facts.flags or facts.state == "down"


def unchanged_for(context: RuleContext) -> timedelta:
    """How long neither view has changed in this phase."""
    repair = repair_of(context)
    since = max(repair.changed_at or context.incident.phase_entered_at, context.incident.phase_entered_at)
    return context.now - since


def with_repair(context: RuleContext, **changes: Any) -> RuleContext:
    """The same look with its memory changed."""
    return context.changed(repair=dataclasses.replace(repair_of(context), **changes))


def wait(
    context: RuleContext,
    rule: str,
    reason: str,
    *actions: Action,
    phase: Phase | None = None,
    soon: timedelta | None = None,
) -> Decision:
    """Observe again: often at first, rarely later. Signals of the node wake its Incident, so waiting costs little."""
    low, high = context.policy.node_look_min, context.policy.node_look_max
    interval = min(max(context.in_phase / 4, low), high)
    if context.in_phase > _LONG * high:
        interval = high * _SELDOM
    incident = context.incident if phase is None else context.incident.enter(phase, now=context.now)
    return context.decided(rule, reason, incident, actions, interval if soon is None else soon)


def tell_once(context: RuleContext, rule: str, text: str) -> tuple[RuleContext, tuple[Action, ...]]:
    """A notice, unless one about this was sent already."""
    repair = repair_of(context)
    if rule in repair.notified:
        return context, ()
    notice = Notify(severity=Severity.WARNING, title=f"{subject(context)}: {context.incident.fault}", text=text)
    return with_repair(context, notified=(*repair.notified, rule)), (notice,)


def state_of_the_node(context: RuleContext) -> str:
    """How the node is left behind."""
    repair = repair_of(context)
    slurm = repair.listed_word or "never read"
    instance = f", instance {repair.instance_word}" if repair.instance_word else ""
    left = ""
    if has_our_drain(context):
        left = f"; it stays cordoned until: scontrol update nodename={context.incident.node} state=resume"
    return f"Slurm: {slurm}{instance}{left}."
