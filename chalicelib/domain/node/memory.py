"""What a look at a node adds to its Incident's memory, and the short questions that the rules ask of both. Pure."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

from chalicelib.domain.decision.verdict import Decision, Look, subject, why
from chalicelib.domain.model.action import Action, Notify, Severity
from chalicelib.domain.model.hardware_ledger import MAX_MARKS, marks_of, told_marks
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
from chalicelib.domain.model.node_findings import Finding, FindingKind, finding_of, instance_of, is_all_clear
from chalicelib.domain.model.node_orders import NodeOrder, node_order_of
from chalicelib.domain.model.repair import MAX_FINDINGS, NodeRepair, Rung, TheirWork, leading
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.node.claims import is_over
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.cluster.orders import REASON_PREFIX
from rekindle.signatures.faults import FaultClass

_LONG = 40  # a wait of this many longest intervals (2 h as built in) is one for people: it is looked at more seldom yet
_SELDOM = 5


def repair_of(look: Look) -> NodeRepair:
    """The memory; a fresh one at the Incident's begin."""
    return look.incident.repair or NodeRepair()


def view_of(look: Look) -> NodeView:
    """What was seen; everything Unknown where the look itself failed."""
    return look.seen.node.value if isinstance(look.seen.node, Known) else NodeView()


def facts_of(look: Look) -> NodeFacts | None:
    """The node in Slurm; None where it cannot be read, or is not there."""
    seen = view_of(look).listed
    return seen.value if isinstance(seen, Known) else None


def instance_seen(look: Look) -> InstanceView | None:
    """Its instance; None where it cannot be read, or there is none."""
    seen = view_of(look).instance
    return seen.value if isinstance(seen, Known) else None


def remember(look: Look) -> Look:
    """The look with everything noted that it tells."""
    repair = _with_findings(look, repair_of(look))
    orders = [one for one in map(node_order_of, look.seen.new_signals) if one is not None]
    if orders:
        repair = dataclasses.replace(repair, order=max(orders, key=lambda one: one.at))
    facts, instance = facts_of(look), instance_seen(look)
    if repair.instance_id is None:
        told = [one.instance_id for one in repair.findings if one.instance_id]
        at_first = facts.instance_id if facts and facts.instance_id else instance.instance_id if instance else None
        repair = dataclasses.replace(repair, instance_id=told[0] if told else at_first)
    if instance is not None and (instance.group or instance.logical_id):
        group, logical_id = instance.group or repair.group, instance.logical_id or repair.logical_id
        repair = dataclasses.replace(repair, group=group, logical_id=logical_id)
    elif facts is not None and facts.group and not repair.group:
        repair = dataclasses.replace(repair, group=facts.group)
    if view_of(look).past and not repair.past:
        repair = dataclasses.replace(repair, past=view_of(look).past)
    repair = _with_words(look, _with_hardware(look, _without_past(look, _with_boot(look, repair))))
    if repair.step is not None and repair.step.back_at is None and _is_away(look):
        repair = repair.with_step(disturbed=True)
    if instance is not None and instance.state is InstanceState.CHECKING and look.incident.phase is Phase.CHECKING:
        repair = dataclasses.replace(repair, check_seen=True)
    lead = leading(repair.findings)
    if lead is None and repair.order is not None:
        return look.changed(
            repair=repair, fault=FaultClass.OPERATOR_ORDER, fault_rule=f"signal.{SignalKind.ORDER_NODE}"
        )
    if lead is None:
        return look.changed(repair=repair)
    fault = FaultClass.NODE_LOST if lead.kind is FindingKind.DOWN else FaultClass.NODE_HARDWARE
    return look.changed(repair=repair, fault=fault, fault_rule=lead.kind.value)


def _with_findings(look: Look, repair: NodeRepair) -> NodeRepair:
    instance, facts = instance_seen(look), facts_of(look)
    told = [one for one in look.seen.new_signals if not _is_past(one, facts)]
    found = [one for signal in told if (one := finding_of(signal)) is not None]
    # Where HyperPod does not repair by itself, its agent still writes down what it would do (aws-facts §3.2).
    if facts is not None and is_marked(facts) and view_of(look).recovery is NodeRecovery.NONE and not repair.steps:
        kind = FindingKind.AGENT_REBOOT if "reboot" in facts.reason.lower() else FindingKind.AGENT_REPLACE
        found.append(Finding(kind=kind, at=look.incident.opened_at, said=f"it is marked {facts.reason}", key="mark"))
    if instance is not None and instance.state is InstanceState.FAILURE and not repair.steps:
        said = f"HyperPod says that instance {instance.instance_id} has failed"
        found.append(
            Finding(
                kind=FindingKind.INSTANCE_FAILED,
                at=look.now,
                said=said,
                instance_id=instance.instance_id,
                by_platform=True,
            )
        )
    clear = max((one.occurred_at for one in look.seen.new_signals if is_all_clear(one)), default=None)
    if clear is not None:
        found = [one for one in found if one.at > clear]
        rest = tuple(one for one in repair.findings if not one.by_platform or one.at > clear)
        repair = dataclasses.replace(repair, findings=rest, cleared_at=clear)
    if not found:
        return repair
    kept = {(one.kind, one.key, one.instance_id): one for one in repair.findings}
    for one in found:  # of one fault the newest word: whether it came after a repair is what counts
        older = kept.get((one.kind, one.key, one.instance_id))
        if older is None or (one.at > older.at and one.kind is not FindingKind.INSTANCE_FAILED):
            kept[one.kind, one.key, one.instance_id] = one
    ordered = sorted(kept.values(), key=lambda one: one.at)
    return dataclasses.replace(repair, findings=tuple(ordered[-MAX_FINDINGS:]))


def _is_past(signal: Signal, facts: NodeFacts | None) -> bool:
    """A state that Slurm has shown, and shows no more. That it was away is a finding: it may go away again. A mark of
    HyperPod's is over once it stands there no more, however the node looks.
    """
    finding = finding_of(signal)
    if signal.kind is SignalKind.NODE_STATE and finding is not None and finding.kind.is_agents and facts is not None:
        return facts.seen_at is not None and facts.seen_at >= finding.at and not is_marked(facts)
    return signal.kind is SignalKind.NODE_STATE and signal.fault is not FaultClass.NODE_LOST and is_over(signal, facts)


def _without_past(look: Look, repair: NodeRepair) -> NodeRepair:
    """What was said while the head node could not be read is weighed again once it can be: it may have told of a mark
    that somebody has acted on since. A drain of ours takes the place of a mark, so that none stands there says nothing.
    """
    facts = facts_of(look)
    if facts is None or facts.seen_at is None or is_ours(facts) or repair.steps or repair.order is not None:
        return repair
    past = [finding_of(one) for one in look.incident.signals if _is_past(one, facts)]
    rest = tuple(one for one in repair.findings if not (one.kind.is_agents and one in past))
    if rest == repair.findings:
        return repair
    done = TheirWork(what="HyperPod's mark on it stands there no more", at=facts.seen_at)
    return dataclasses.replace(repair, findings=rest, theirs=repair.theirs or done)


def _with_boot(look: Look, repair: NodeRepair) -> NodeRepair:
    """A machine that has booted since a reboot was recommended has had it, whoever ordered it: news of the time before
    may come late.
    """
    facts = facts_of(look)
    booted_at = facts.booted_at if facts is not None else None
    if booted_at is None or repair.steps:
        return repair
    rest = tuple(one for one in repair.findings if not (one.kind.is_over_by_a_boot and one.at < booted_at))
    if rest == repair.findings:
        return repair
    done = TheirWork(what=f"it has booted at {booted_at:%H:%M:%S}, after that was seen", at=booted_at)
    return dataclasses.replace(repair, findings=rest, theirs=repair.theirs or done)


def _with_hardware(look: Look, repair: NodeRepair) -> NodeRepair:
    """The marks of what stood there when it broke; those of its replacement are another machine's."""
    facts = facts_of(look)
    is_the_same = facts is not None and (facts.instance_id is None or facts.instance_id == repair.instance_id)
    seen = marks_of(gpus=facts.gpus, serial=facts.serial) if facts is not None and is_the_same else ()
    if any(one.rung is Rung.REPLACE for one in repair.steps) and facts is not None and facts.instance_id is None:
        seen = ()  # nothing tells whether it is another machine by now
    named = tuple(
        one
        for signal in look.seen.new_signals
        if instance_of(signal) in (None, repair.instance_id) and not repair.steps
        for one in told_marks(signal.evidence)
    )
    hardware = tuple(dict.fromkeys((*repair.hardware, *seen, *named)))[:MAX_MARKS]
    blamed = tuple(dict.fromkeys((*repair.named, *named)))[:MAX_MARKS]
    if (hardware, blamed) == (repair.hardware, repair.named):
        return repair
    return dataclasses.replace(repair, hardware=hardware, named=blamed)


def _with_words(look: Look, repair: NodeRepair) -> NodeRepair:
    """The states last seen. What cannot be read is no change."""
    view = view_of(look)
    instance_word, listed_word = repair.instance_word, repair.listed_word
    if isinstance(view.instance, Known):
        one = view.instance.value
        instance_word = f"{one.instance_id} {one.state}" if one is not None else "no instance"
    if isinstance(view.listed, Known):
        facts = view.listed.value
        listed_word = slurm_state(facts) if facts is not None else "unknown to Slurm"
    if (instance_word, listed_word) == (repair.instance_word, repair.listed_word) and repair.changed_at is not None:
        return repair
    return dataclasses.replace(repair, instance_word=instance_word, listed_word=listed_word, changed_at=look.now)


def slurm_state(facts: NodeFacts) -> str:
    """One line for people, as Slurm writes it: `idle+drain (rekindle:inc-1)`, and the jobs on it."""
    jobs = f", jobs {', '.join(str(job) for job in facts.jobs[:8])}" if facts.jobs else ""
    reason = f" ({facts.reason[:100]})" if facts.reason else ""
    return "+".join((facts.state, *sorted(facts.flags))) + reason + jobs


def _is_away(look: Look) -> bool:
    """Seen out of service, by either view."""
    facts, instance, view = facts_of(look), instance_seen(look), view_of(look)
    if instance is not None and instance.state is not InstanceState.RUNNING:
        return True
    if isinstance(view.instance, Known) and instance is None and repair_of(look).instance_id is not None:
        return True
    return facts is not None and (is_silent(facts) or facts.state == "down")


def findings_about_now(look: Look) -> tuple[Finding, ...]:
    """Those about the instance that stands there now; one that names no instance counts."""
    repair, now_id = repair_of(look), current_id(look)
    return tuple(
        one
        for one in repair.findings
        if one.instance_id is None or now_id is None or one.instance_id == now_id or now_id == repair.instance_id
    )


def waiting_order(look: Look) -> NodeOrder | None:
    """What a person ordered about the node, and is not under way yet."""
    return repair_of(look).waiting_order


def story_of(look: Look) -> str:
    """One sentence: what speaks against the node, or who ordered what."""
    order, lead = repair_of(look).order, leading(repair_of(look).findings)
    ordered = f"{order.said[:1].upper()}{order.said[1:]}." if order is not None else ""
    if lead is None:
        return ordered or "Nothing was found against it."
    found = f"{look.incident.fault} ({look.incident.fault_rule}): {lead.said}."
    return f"{ordered} {found}" if ordered else found


def current_id(look: Look) -> str | None:
    """The instance of the node now: the API's word before the node map's, which may be older."""
    instance, facts = instance_seen(look), facts_of(look)
    if instance is not None:
        return instance.instance_id
    return facts.instance_id if facts is not None else None


def is_replaced(look: Look) -> bool:
    """Another instance stands where the one stood that the Incident is about."""
    repair, now_id = repair_of(look), current_id(look)
    return repair.instance_id is not None and now_id is not None and now_id != repair.instance_id


def is_running(look: Look) -> bool:
    """Its instance runs; on plain Slurm there is none to ask."""
    instance = instance_seen(look)
    if instance is not None:
        return instance.state is InstanceState.RUNNING
    return view_of(look).machines is Machines.OWN


def is_well(look: Look, *, after_reboot: bool = False) -> bool:
    """Both views agree: the instance runs, and Slurm would give it jobs but for a drain of ours."""
    facts = facts_of(look)
    return facts is not None and is_running(look) and is_well_but_drained(facts, after_reboot=after_reboot)


def is_back_in_service(look: Look) -> bool:
    """Both views agree, and no drain is left."""
    facts = facts_of(look)
    return facts is not None and is_running(look) and is_in_service(facts)


def has_our_drain(look: Look) -> bool:
    """It is drained, by us."""
    facts = facts_of(look)
    return facts is not None and is_ours(facts)


def is_of_an_earlier_incident(look: Look) -> bool:
    """Our drain, but neither this Incident's nor that of a run's that reported the node: whoever was called then, was
    told that it stays.
    """
    facts = facts_of(look)
    if facts is None or not is_ours(facts):
        return False
    reporters = {signal.evidence.get("incident_id") for signal in look.incident.signals}
    whose = facts.reason.removeprefix(REASON_PREFIX).partition(" ")[0]
    return whose not in {look.incident.incident_id, *reporters}


def is_out_of_scheduling(facts: NodeFacts) -> bool:
    """Nothing new is started on it."""
    return is_drained(facts) or "fail" in facts.flags or facts.state == "down"


def unchanged_for(look: Look) -> timedelta:
    """How long neither view has changed in this phase."""
    repair = repair_of(look)
    since = max(repair.changed_at or look.incident.phase_entered_at, look.incident.phase_entered_at)
    return look.now - since


def note(look: Look, **changes: Any) -> Look:
    """The same look with its memory changed."""
    return look.changed(repair=dataclasses.replace(repair_of(look), **changes))


def wait(
    look: Look, rule: str, reason: str, *actions: Action, phase: Phase | None = None, soon: timedelta | None = None
) -> Decision:
    """Look again: at first often, later seldom. News of the node wakes its Incident anyway, so waiting costs little."""
    low, high = look.policy.nodes.look_min, look.policy.nodes.look_max
    interval = min(max(look.in_phase / 4, low), high)
    if look.in_phase > _LONG * high:
        interval = high * _SELDOM
    incident = look.incident if phase is None else look.incident.enter(phase, now=look.now)
    return look.decided(rule, reason, incident, actions, interval if soon is None else soon)


def tell_once(look: Look, rule: str, text: str) -> tuple[Look, tuple[Action, ...]]:
    """A notice, unless people have been told of this already."""
    repair = repair_of(look)
    if rule in repair.told:
        return look, ()
    told = Notify(severity=Severity.WARNING, title=f"{subject(look)}: {look.incident.fault}", text=text)
    return note(look, told=(*repair.told, rule)), (told,)


def unread(look: Look, rule: str) -> Decision | None:
    """A decision where Slurm's view of the node is missing; None where it is there."""
    seen = view_of(look).listed
    if not isinstance(seen, Known):
        said = why(look.seen.node) if not isinstance(look.seen.node, Known) else seen.why
        reason = f"the node cannot be read in Slurm: {said}; nothing is assumed"
        if unchanged_for(look) >= look.policy.nodes.stuck_limit:
            return look.hand_over(f"{rule}.unread_limit", f"{reason}, for too long. {state_of_the_node(look)}")
        return wait(look, f"{rule}.unread", reason)
    if seen.value is None:
        return look.close(
            f"{rule}.not_in_slurm",
            f"Slurm has no node {look.incident.node}: it is no compute node, or it is gone; nothing can be cordoned",
            Phase.STOPPED,
            severity=Severity.WARNING,
        )
    return None


def state_of_the_node(look: Look) -> str:
    """How the node is left behind."""
    repair = repair_of(look)
    slurm = repair.listed_word or "never read"
    instance = f", instance {repair.instance_word}" if repair.instance_word else ""
    left = ""
    if has_our_drain(look):
        left = f"; it stays cordoned until: scontrol update nodename={look.incident.node} state=resume"
    return f"Slurm: {slurm}{instance}{left}."
