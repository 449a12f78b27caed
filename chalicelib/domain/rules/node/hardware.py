"""What the hardware ledger changes about a repair: suspect hardware is replaced, not rebooted, and not put back.

docs/hardware.md defines what counts and how hardware is identified.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from chalicelib.domain.decision.verdict import Decision, RuleContext
from chalicelib.domain.model.hardware_ledger import (
    SUSPECT_FAULTS,
    SUSPECT_WINDOW,
    HardwareFault,
    MarkKind,
    SuspectRule,
    kind_of,
    mark,
    marks_of,
    suspect_among,
)
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node_findings import Finding, FindingKind
from chalicelib.domain.model.repair import NodeRepair, Rung, Step, leading_finding
from chalicelib.domain.node.memory import (
    current_id,
    facts_of,
    is_running,
    repair_of,
    state_of_the_node,
    view_of,
    with_repair,
)

# A machine that is sent back comes back as long as it is the provider's next spare: asking again and again is no way.
MAX_REPLACEMENTS: Final = 2
_COUNT_AT_ONCE: Final = frozenset({FindingKind.INSTANCE_FAILED})
_COUNT_IF_REPAIRED: Final = frozenset({FindingKind.DOWN, FindingKind.SUSPECTED})


def with_suspect_hardware(context: RuleContext) -> RuleContext:
    """The context with the finding that the node's hardware is suspect exactly where ledger and policy say so."""
    if context.incident.phase not in (Phase.OPEN, Phase.HOLDING):
        return context
    suspect = suspect_hardware_text(context)
    # What the sweep has said of it is only the reason to look: the ledger is asked anew, by the policy that counts.
    findings = tuple(
        finding for finding in repair_of(context).findings if finding.kind is not FindingKind.SUSPECT_HARDWARE
    )
    if suspect is not None and context.policy.nodes.suspect_repair is SuspectRule.REPLACE:
        at, now_id = context.incident.opened_at, current_id(context)
        findings += (
            Finding(
                kind=FindingKind.SUSPECT_HARDWARE, at=at, text=suspect[:300], key="suspect_hardware", instance_id=now_id
            ),
        )
    if findings == repair_of(context).findings:
        return context
    context = with_repair(context, findings=findings)
    lead = leading_finding(repair_of(context).findings)
    return context.changed(fault_rule=lead.kind.value) if lead is not None else context


def suspect_hardware_text(context: RuleContext) -> str | None:
    """The ledger's record of the hardware that is in the node now; None where it is not suspect."""
    records = view_of(context).records
    if not isinstance(records, Known):
        return None
    repair = repair_of(context)
    return suspect_among(
        records.value,
        faults=SUSPECT_FAULTS,
        window=SUSPECT_WINDOW,
        now=context.now,
        incident_id=context.incident.incident_id,
        fresh=not repair.steps and is_against_the_hardware(repair),
    )


def is_against_the_hardware(repair: NodeRepair) -> bool:
    """The Incident is one fault of the hardware's: it was seen broken, or was repaired for being away or accused."""
    kinds = {finding.kind for finding in repair.findings}
    if any(kind.is_of_the_hardware for kind in kinds) or kinds & _COUNT_AT_ONCE:
        return True
    # A node that goes away for its repair is down, too: that is no fault of its own.
    begun_at = repair.steps[0].at if repair.steps else None
    return begun_at is not None and any(
        finding.kind in _COUNT_IF_REPAIRED and finding.at <= begun_at for finding in repair.findings
    )


def faults_to_keep(incident: Incident) -> tuple[tuple[str, HardwareFault], ...]:
    """What a closed Incident adds to the ledger: each mark of its hardware with the fault; nothing where none was."""
    repair = incident.repair
    if repair is None or incident.is_open or not is_against_the_hardware(repair):
        return ()
    lead = leading_finding(
        tuple(finding for finding in repair.findings if finding.kind is not FindingKind.SUSPECT_HARDWARE)
    )
    marks = repair.named or repair.hardware
    if not marks and repair.instance_id is not None:
        marks = (mark(MarkKind.INSTANCE, repair.instance_id),)
    fault = HardwareFault(
        at=incident.opened_at,
        incident_id=incident.incident_id,
        cluster=incident.cluster or "",
        node=incident.node or "",
        instance_id=repair.instance_id,
        kind=lead.kind.value if lead is not None else "",
        text=lead.text[:200] if lead is not None else "",
        done=repair.steps[-1].rung.value if repair.steps else "",
    )
    return tuple((mark, dataclasses.replace(fault, named=mark in repair.named)) for mark in marks)


def came_back(context: RuleContext, step: Step) -> str | None:
    """Why the machine that took the old one's place is not to be taken; None where nothing is known against it."""
    facts, repair = facts_of(context), repair_of(context)
    now_id = current_id(context)
    if step.rung is not Rung.REPLACE or now_id in (None, step.instance_id) or not is_running(context):
        return None
    if context.policy.nodes.suspect_repair is SuspectRule.OFF or facts is None or facts.instance_id != now_id:
        return None
    here = marks_of(gpus=facts.gpus, serial=facts.serial)
    same = [mark for mark in here if mark in repair.hardware and kind_of(mark).is_of_the_hardware]
    if same:
        return f"{now_id} is the very machine that was replaced: {same[0]} is in it again"
    suspect = suspect_hardware_text(context)
    return f"{now_id} came in its place, and {suspect}" if suspect is not None else None


def refused_as_suspect(context: RuleContext, why: str) -> Decision | None:
    """A person, where the policy only notifies, or where replacements were suspect too often; else None."""
    sent = sum(step.rung is Rung.REPLACE for step in repair_of(context).steps)
    if context.policy.nodes.suspect_repair is SuspectRule.REPLACE and sent < MAX_REPLACEMENTS:
        return None
    times = f", after {sent} replacements" if sent > 1 else ""
    return context.hand_over("repair.suspect_hardware_limit", f"{why}{times}. {state_of_the_node(context)}")
