"""What a person should do after an Incident, from what its record shows. Pure. One line each, Markdown."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.fault_specs.faults import FAULTS
from chalicelib.domain.model.approvals import ApprovalAnswer, Guard
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.reporting.ledger import IncidentLedger
from chalicelib.domain.reporting.markdown import plain

# What the fault itself asks of people once the run is back.
AFTERWARDS: Final = {spec.fault: spec.afterwards for spec in FAULTS if spec.afterwards}


def next_steps(incident: Incident, ledger: IncidentLedger) -> list[str]:
    """The lines in order of importance; `Nothing.` alone where no step is left."""
    lines: list[str] = []
    job = plain(incident.job_id or "JOB")
    if incident.phase is Phase.HANDED_OVER:
        lines.append(
            f"Decide about the run: it was left to a person (by rule {plain(incident.outcome)}). Then, for a new "
            f"start: rekindle resubmit {job}."
        )
    elif incident.closed_at is None:
        lines.append(f"It is still open: rekindle show {plain(incident.incident_id)}.")
    if incident.fault in AFTERWARDS:
        lines.append(AFTERWARDS[incident.fault])
    lines += [
        f"Node {plain(node.node)}: see its own Incident, and the hardware ledger."
        for node in incident.resubmission.bad_nodes
    ]
    lines += [f"The data of steps {skip.from_step} to {skip.to_step - 1} was left out." for skip in incident.loss.skips]
    ask = incident.halt.ask
    if ask is not None and ask.outcome not in (None, "saved"):
        lines.append(
            f"The emergency checkpoint did not come ({plain(ask.outcome)}: {plain(ask.why or 'no reason given')})."
        )
    lines += _about_saving(ledger)
    for hold in incident.holds:
        if hold.guard in (Guard.WINDOW, Guard.BREAKER, Guard.REPAIR_BUDGET, Guard.APPROVAL):
            guard = hold.guard.value.replace("_", " ")
            lines.append(f"The guard {guard} held it back: check that the policy means that.")
            break
    if any(approval.by == "policy" and approval.answer is ApprovalAnswer.DENIED for approval in incident.approvals):
        lines.append("No one answered an approval in time, and the policy denied it.")
    if isinstance(ledger.dollars_lost, Unknown) and isinstance(ledger.gpu_hours_lost, Known):
        lines.append("Set prices to see USD (docs/ledger.md).")
    return lines or ["Nothing."]


def _about_saving(ledger: IncidentLedger) -> list[str]:
    """Half an interval is lost on average; where more than a tenth of the loss was steps done again, saving is rare."""
    lost, step_s, seconds = ledger.steps_lost, ledger.incident.account.step_s, ledger.lost.seconds
    if not (isinstance(lost, Known) and isinstance(step_s, Known) and isinstance(seconds, Known)) or not seconds.value:
        return []
    again = lost.value * step_s.value
    if again <= 0.1 * seconds.value:
        return []
    share = min(100, round(100 * again / seconds.value))
    return [f"{share}% of the time lost was steps done again: save more often (docs/checkpoints.md)."]
