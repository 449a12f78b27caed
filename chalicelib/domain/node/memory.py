"""What a look at a node adds to its Incident's memory, and the short questions that the rules ask of both. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from chalicelib.domain.decision.verdict import Decision, RuleContext, subject
from chalicelib.domain.model.action import Action, Notify, Severity
from chalicelib.domain.model.hardware_ledger import MAX_MARKS, marks_of, reported_marks
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import (
    InstanceState,
    InstanceView,
    Machines,
    NodeRecovery,
    NodeView,
    is_drained,
    is_in_service,
    is_marked,
    is_ours,
    is_silent,
    is_well_but_drained,
)
from chalicelib.domain.model.node_findings import (
    Finding,
    FindingKind,
    NodeOrder,
    cleared_at,
    finding_of,
    instance_of,
    node_order_of,
)
from chalicelib.domain.model.repair import MAX_FINDINGS, NodeRepair, OutsideRepair, Rung, leading_finding
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.node.claims import is_over
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.cluster.node_states import defect_in
from rekindle.protocol.cluster.orders import REASON_PREFIX
from rekindle.protocol.signals import FaultClass

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


def remember(context: RuleContext) -> RuleContext:
    """The look with everything noted that it tells."""
    repair = repair_of(context)
    for noted in _NOTED:
        repair = noted(context, repair)
    lead = leading_finding(repair.findings)
    if lead is not None:
        fault = FaultClass.NODE_LOST if lead.kind is FindingKind.DOWN else FaultClass.NODE_HARDWARE
        return context.changed(repair=repair, fault=fault, fault_rule=lead.kind.value)
    if repair.order is not None:
        rule = f"signal.{SignalKind.ORDER_NODE}"
        return context.changed(repair=repair, fault=FaultClass.OPERATOR_ORDER, fault_rule=rule)
    return context.changed(repair=repair)


def _with_findings(context: RuleContext, repair: NodeRepair) -> NodeRepair:
    """What was found against the node, without what HyperPod's agents have taken back."""
    found = [*_reported(context), *_marked(context, repair), *_failed(context, repair)]
    was_clear = repair.cleared_at
    if was_clear is not None:  # a report that arrives after its withdrawal
        found = [finding for finding in found if not finding.by_platform or finding.at > was_clear]
    clear = max((at for signal in context.seen.new_signals if (at := cleared_at(signal)) is not None), default=None)
    if clear is not None and (was_clear is None or clear > was_clear):
        found = [finding for finding in found if finding.at > clear]
        rest = tuple(finding for finding in repair.findings if not finding.by_platform or finding.at > clear)
        repair = dataclasses.replace(repair, findings=rest, cleared_at=clear)
    return _with_newest(repair, found) if found else repair


def _reported(context: RuleContext) -> list[Finding]:
    facts = facts_of(context)
    reported = (finding_of(signal) for signal in context.seen.new_signals if not _is_past(signal, facts))
    return [finding for finding in reported if finding is not None]


def _marked(context: RuleContext, repair: NodeRepair) -> list[Finding]:
    """Where HyperPod does not repair by itself, its agent still writes down what it would do."""
    facts = facts_of(context)
    if facts is None or not is_marked(facts) or view_of(context).recovery is not NodeRecovery.NONE or repair.steps:
        return []
    kind = FindingKind.AGENT_REBOOT if "reboot" in facts.reason.lower() else FindingKind.AGENT_REPLACE
    return [Finding(kind=kind, at=context.incident.opened_at, text=f"it is marked {facts.reason}", key="mark")]


def _failed(context: RuleContext, repair: NodeRepair) -> list[Finding]:
    instance = instance_seen(context)
    if instance is None or instance.state is not InstanceState.FAILURE or repair.steps:
        return []
    return [
        Finding(
            kind=FindingKind.INSTANCE_FAILED,
            at=context.now,
            text=f"HyperPod says that instance {instance.instance_id} has failed",
            instance_id=instance.instance_id,
            by_platform=True,
        )
    ]


def _with_newest(repair: NodeRepair, found: list[Finding]) -> NodeRepair:
    """Of one fault the newest word is kept: whether it came after a repair is what counts."""
    kept = {(finding.kind, finding.key, finding.instance_id): finding for finding in repair.findings}
    for finding in found:
        older = kept.get((finding.kind, finding.key, finding.instance_id))
        if older is None or (finding.at > older.at and finding.kind is not FindingKind.INSTANCE_FAILED):
            kept[finding.kind, finding.key, finding.instance_id] = finding
    ordered = sorted(kept.values(), key=lambda finding: finding.at)
    return dataclasses.replace(repair, findings=tuple(ordered[-MAX_FINDINGS:]))


def _with_order(context: RuleContext, repair: NodeRepair) -> NodeRepair:
    """The newest order of a person about the node."""
    orders = [order for order in map(node_order_of, context.seen.new_signals) if order is not None]
    return dataclasses.replace(repair, order=max(orders, key=lambda order: order.at)) if orders else repair


def _with_instance(context: RuleContext, repair: NodeRepair) -> NodeRepair:
    """The instance that the Incident is about: the one that was reported, or that stands there first."""
    if repair.instance_id is not None:
        return repair
    reported = [finding.instance_id for finding in repair.findings if finding.instance_id]
    facts, instance = facts_of(context), instance_seen(context)
    at_first = facts.instance_id if facts and facts.instance_id else instance.instance_id if instance else None
    return dataclasses.replace(repair, instance_id=reported[0] if reported else at_first)


def _with_group(context: RuleContext, repair: NodeRepair) -> NodeRepair:
    facts, instance = facts_of(context), instance_seen(context)
    if instance is not None and (instance.group or instance.logical_id):
        group, logical_id = instance.group or repair.group, instance.logical_id or repair.logical_id
        return dataclasses.replace(repair, group=group, logical_id=logical_id)
    if facts is not None and facts.group and not repair.group:
        return dataclasses.replace(repair, group=facts.group)
    return repair


def _with_earlier_repairs(context: RuleContext, repair: NodeRepair) -> NodeRepair:
    past = view_of(context).past
    return dataclasses.replace(repair, past=past) if past and not repair.past else repair


def _with_disturbance(context: RuleContext, repair: NodeRepair) -> NodeRepair:
    """It was seen away since its repair was ordered."""
    is_repaired = repair.step is not None and repair.step.back_at is None
    return repair.with_step(disturbed=True) if is_repaired and _is_away(context) else repair


def _with_check(context: RuleContext, repair: NodeRepair) -> NodeRepair:
    """Its deep health check was seen under way."""
    instance = instance_seen(context)
    is_checked = instance is not None and instance.state is InstanceState.CHECKING
    if not is_checked or context.incident.phase is not Phase.CHECKING:
        return repair
    return dataclasses.replace(repair, check_seen=True)


def _is_past(signal: Signal, facts: NodeFacts | None) -> bool:
    """A state that Slurm has shown, and shows no more. That it was away is a finding: it may go away again. A mark of
    HyperPod's is over once it stands there no more, however the node looks.
    """
    finding = finding_of(signal)
    if signal.kind is SignalKind.NODE_STATE and finding is not None and finding.kind.is_agents and facts is not None:
        return facts.seen_at is not None and facts.seen_at >= finding.at and not is_marked(facts)
    return signal.kind is SignalKind.NODE_STATE and signal.fault is not FaultClass.NODE_LOST and is_over(signal, facts)


def _without_past(context: RuleContext, repair: NodeRepair) -> NodeRepair:
    """Reports that came while the head node could not be read are weighed again once it can be: they may be about a
    mark that was acted on since. A drain of ours replaces a mark, so the absence of one is then no evidence.
    """
    facts = facts_of(context)
    if facts is None or facts.seen_at is None or is_ours(facts) or repair.steps or repair.order is not None:
        return repair
    past = [finding_of(signal) for signal in context.incident.signals if _is_past(signal, facts)]
    rest = tuple(finding for finding in repair.findings if not (finding.kind.is_agents and finding in past))
    if rest == repair.findings:
        return repair
    done = OutsideRepair(what="HyperPod's mark on it is gone", at=facts.seen_at)
    return dataclasses.replace(repair, findings=rest, theirs=repair.theirs or done)


def _with_boot(context: RuleContext, repair: NodeRepair) -> NodeRepair:
    """A machine that has booted since a reboot was recommended has had it, by any cause: reports from before may come
    late.
    """
    facts = facts_of(context)
    booted_at = facts.booted_at if facts is not None else None
    if booted_at is None or repair.steps:
        return repair
    rest = tuple(
        finding for finding in repair.findings if not (finding.kind.is_over_by_a_boot and finding.at < booted_at)
    )
    if rest == repair.findings:
        return repair
    done = OutsideRepair(what=f"it has booted at {booted_at:%H:%M:%S}, after that was seen", at=booted_at)
    return dataclasses.replace(repair, findings=rest, theirs=repair.theirs or done)


def _with_hardware(context: RuleContext, repair: NodeRepair) -> NodeRepair:
    """The marks of what stood there when it broke; those of its replacement are another machine's."""
    facts = facts_of(context)
    is_the_same = facts is not None and (facts.instance_id is None or facts.instance_id == repair.instance_id)
    seen = marks_of(gpus=facts.gpus, serial=facts.serial) if facts is not None and is_the_same else ()
    if any(step.rung is Rung.REPLACE for step in repair.steps) and facts is not None and facts.instance_id is None:
        seen = ()  # nothing tells whether it is another machine by now
    named = tuple(
        mark
        for signal in context.seen.new_signals
        if instance_of(signal) in (None, repair.instance_id) and not repair.steps
        for mark in reported_marks(signal.evidence)
    )
    hardware = tuple(dict.fromkeys((*repair.hardware, *seen, *named)))[:MAX_MARKS]
    blamed = tuple(dict.fromkeys((*repair.named, *named)))[:MAX_MARKS]
    if (hardware, blamed) == (repair.hardware, repair.named):
        return repair
    return dataclasses.replace(repair, hardware=hardware, named=blamed)


def _with_words(context: RuleContext, repair: NodeRepair) -> NodeRepair:
    """The states last seen. What cannot be read is no change."""
    view = view_of(context)
    instance_word, listed_word = repair.instance_word, repair.listed_word
    if isinstance(view.instance, Known):
        one = view.instance.value
        instance_word = f"{one.instance_id} {one.state}" if one is not None else "no instance"
    if isinstance(view.listed, Known):
        facts = view.listed.value
        listed_word = slurm_state(facts) if facts is not None else "unknown to Slurm"
    if (instance_word, listed_word) == (repair.instance_word, repair.listed_word) and repair.changed_at is not None:
        return repair
    return dataclasses.replace(repair, instance_word=instance_word, listed_word=listed_word, changed_at=context.now)


# What an observation adds, in this order: each sees what those before it have noted.
_NOTED: Final[tuple[Callable[[RuleContext, NodeRepair], NodeRepair], ...]] = (
    _with_findings,
    _with_order,
    _with_instance,
    _with_group,
    _with_earlier_repairs,
    _with_boot,
    _without_past,
    _with_hardware,
    _with_words,
    _with_disturbance,
    _with_check,
)


def slurm_state(facts: NodeFacts) -> str:
    """One line for people, as Slurm writes it: `idle+drain (rekindle:inc-1)`, and the jobs on it."""
    jobs = f", jobs {', '.join(str(job) for job in facts.jobs[:8])}" if facts.jobs else ""
    reason = f" ({facts.reason[:100]})" if facts.reason else ""
    return "+".join((facts.state, *sorted(facts.flags))) + reason + jobs


def _is_away(context: RuleContext) -> bool:
    """Seen out of service, by either view."""
    facts, instance, view = facts_of(context), instance_seen(context), view_of(context)
    if instance is not None and instance.state is not InstanceState.RUNNING:
        return True
    if isinstance(view.instance, Known) and instance is None and repair_of(context).instance_id is not None:
        return True
    return facts is not None and (is_silent(facts) or facts.state == "down")


def findings_about_now(context: RuleContext) -> tuple[Finding, ...]:
    """Those about the instance that stands there now; one that names no instance counts. The cluster's own trouble with
    it counts while the cluster shows it."""
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
