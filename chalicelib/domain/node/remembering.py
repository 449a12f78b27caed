"""What a look at a node adds to its Incident's memory. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.model.hardware_ledger import MAX_MARKS, marks_of, reported_marks
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import (
    InstanceState,
    NodeRecovery,
    is_marked,
    is_ours,
    is_silent,
)
from chalicelib.domain.model.node_findings import (
    Finding,
    FindingKind,
    cleared_at,
    finding_of,
    instance_of,
    node_order_of,
)
from chalicelib.domain.model.repair import MAX_FINDINGS, NodeRepair, OutsideRepair, Rung, leading_finding
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.node.claims import is_over
from chalicelib.domain.node.memory import facts_of, instance_seen, repair_of, slurm_state, view_of
from rekindle.protocol.cluster.documents import NodeFacts
from rekindle.protocol.signals import FaultClass


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
    """It was seen away since its repair was ordered, or has booted since, while nothing could be read."""
    step, facts = repair.step, facts_of(context)
    if step is None or step.back_at is not None:
        return repair
    booted_at = facts.booted_at if facts is not None and step.rung is Rung.REBOOT else None
    has_booted = booted_at is not None and booted_at > step.at
    return repair.with_step(disturbed=True) if has_booted or _is_away(context) else repair


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
        instance = view.instance.value
        instance_word = f"{instance.instance_id} {instance.state}" if instance is not None else "no instance"
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


def _is_away(context: RuleContext) -> bool:
    """Seen out of service, by either view."""
    facts, instance, view = facts_of(context), instance_seen(context), view_of(context)
    if instance is not None and instance.state is not InstanceState.RUNNING:
        return True
    if isinstance(view.instance, Known) and instance is None and repair_of(context).instance_id is not None:
        return True
    return facts is not None and (is_silent(facts) or facts.state == "down")
