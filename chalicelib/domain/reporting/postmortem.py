"""The post-mortem of one Incident, written from its record: Markdown. Pure.

Everything that is not our own word goes through `plain`, reasons of Decisions too: they quote names and failures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from chalicelib.domain.fault_specs.faults import FAULTS
from chalicelib.domain.model.approvals import Approval, ApprovalAnswer, Guard, Hold
from chalicelib.domain.model.evidence import suspect_word
from chalicelib.domain.model.incident import Incident, Phase, TimelineEntry
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.counterfactual import Spared
from chalicelib.domain.reporting.ledger import IncidentLedger
from chalicelib.domain.reporting.markdown import plain
from chalicelib.domain.reporting.steps_lost import ENDS
from rekindle.protocol.quantities import NAMES, amount, between, heading
from rekindle.signatures.words import fault_word, labelled_action

# What the fault itself asks of people once the run is back.
AFTERWARDS: Final = {spec.fault: spec.afterwards for spec in FAULTS if spec.afterwards}
MAX_LINES: Final = 200  # of the timeline; the newest and the oldest half of them are kept
MAX_SIGNALS: Final = 40


def postmortem_of(
    incident: Incident, timeline: Sequence[TimelineEntry], ledger: IncidentLedger, *, job_name: str
) -> str:
    """The whole document; it ends with a line end."""
    about = incident.job_id or incident.scope or incident.incident_id
    parts: list[str] = [f"# Post-mortem: {plain(job_name or about, 120)}", ""]
    short = _in_short(incident, ledger, job_name or about)
    parts += _section("Summary", [short, "", *_summary(incident, ledger, about)])
    parts += _section("Timeline", _timeline(timeline))
    parts += _section("Evidence", _evidence(incident))
    parts += _section("Decisions", _decisions(timeline))
    parts += _section("What held it back", [_hold(hold) for hold in incident.holds] or ["- Nothing."])
    parts += _section(
        "Approvals", [_approval(approval) for approval in incident.approvals] or ["- None were asked for."]
    )
    parts += _section("Cost", _cost(ledger))
    parts += _section("Without Rekindle", _counterfactual(ledger))
    parts += _section("What to do next", [f"- {line}" for line in next_steps(incident, ledger)])
    return "\n".join(parts).rstrip("\n") + "\n"


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *lines, ""]


def _summary(incident: Incident, ledger: IncidentLedger, about: str) -> list[str]:
    ended = f"{_phase(incident.phase)} at {_at(incident.closed_at)}" if incident.closed_at else "still open"
    return [
        f"- Incident: {plain(incident.incident_id)}, about {plain(about)}",
        f"- Fault: {fault_word(incident.fault)}, by rule {plain(incident.fault_rule or 'none yet')}",
        f"- Began: {_moment(ledger.onset_at)}{_by(incident)}; opened {_at(incident.opened_at)}; {ended}",
        f"- Ended by rule: {plain(incident.outcome or 'none yet')}",
        *(f"- {heading(name)}: {_worth(name, value)}" for name, value in ledger.named("mttd_s", "mttr_s")),
        f"- Size: {_size(ledger)}",
        f"- New starts: {len(incident.account.restarts)}; rollbacks: {incident.loss.rollbacks}; "
        f"signals: {incident.signals_seen}",
        f"- Policy: {plain(incident.policy_name)}, version {plain(incident.policy_version or 'not pinned')}",
        *([f"- Conclusion: {plain(incident.evidence.conclusion)}"] if incident.evidence.conclusion else []),
    ]


def _in_short(incident: Incident, ledger: IncidentLedger, name: str) -> str:
    """What a reader needs who reads nothing else; only what is known."""
    began = f" at {_at(ledger.onset_at.value)}" if isinstance(ledger.onset_at, Known) else ""
    lines = [f"{plain(name, 120)}: {fault_word(incident.fault)}{began}."]
    if incident.closed_at is None:
        lines.append("It is still open.")
    elif incident.phase in ENDS:
        lines.append(f"{_sentence(ENDS[incident.phase])}.")
    else:
        mttr_s = ledger.figures["mttr_s"]
        took = f" after {amount('mttr_s', mttr_s.value)}" if isinstance(mttr_s, Known) else ""
        lines.append(f"It was brought back{took}.")
    if isinstance(ledger.lost.seconds, Known):
        units = {"lost_s": "of training", "gpu_hours_lost": "GPU-hours", "dollars_lost": "US dollars"}
        cost = [
            f"{amount(name, figure.value)} {units[name]}"
            for name, figure in ledger.named(*units)
            if isinstance(figure, Known)
        ]
        lines.append(f"It cost {', '.join(cost)}.")
    else:
        lines.append(f"What it cost is not known: {plain(ledger.lost.seconds.why)}.")
    return " ".join(lines)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _size(ledger: IncidentLedger) -> str:
    instances = ", ".join(f"{count} × {plain(kind)}" for kind, count in ledger.size.instances)
    return f"{instances or 'instance types not known'}; GPUs: {_step(ledger.size.gpus)}"


def _phase(phase: Phase) -> str:
    return phase.value.replace("_", " ")


def _deeds(actions: Sequence[str]) -> str:
    """What Actions do, and their names."""
    return ", ".join(labelled_action(action) if action.isidentifier() else plain(action) for action in actions)


def _by(incident: Incident) -> str:
    return f" (reported by {plain(incident.account.onset_from)})" if incident.account.onset_from else ""


def _timeline(timeline: Sequence[TimelineEntry]) -> list[str]:
    lines = [
        f"- {_at(entry.at)} · {plain(entry.text)} ({_phase(entry.phase)}, rule {plain(entry.rule)})"
        for entry in timeline
    ]
    if len(lines) > MAX_LINES:
        half = MAX_LINES // 2
        lines = [*lines[:half], f"- … {len(lines) - 2 * half} lines are left out here …", *lines[-half:]]
    return lines or ["- No observation yet."]


def _evidence(incident: Incident) -> list[str]:
    kept = incident.signals[:MAX_SIGNALS]
    lines = [
        f"- {_at(signal.occurred_at)} · {signal.source.value} · {signal.kind.value}: {plain(signal.summary)}"
        for signal in kept
    ]
    if incident.signals_seen > len(kept):
        lines.append(f"- … and {incident.signals_seen - len(kept)} more")
    lines += [
        f"- {plain(failure.attempt)} ended at step {_step(failure.step)}: {plain(failure.signature)}"
        for failure in incident.resubmission.failures
    ]
    lines += [
        f"- {suspicion.kind.value}: {plain(suspect_word(suspicion))}, by {plain(suspicion.rule)}: "
        f"{plain(suspicion.text)} ({suspicion.reports} of {suspicion.world_size} ranks reported)"
        for suspicion in incident.evidence.suspicions
    ]
    lines += [f"- node {plain(node.node)} is suspected to be broken" for node in incident.resubmission.bad_nodes]
    return lines or ["- None."]


def _decisions(timeline: Sequence[TimelineEntry]) -> list[str]:
    """Each Action's answer is seen by the next observation, so it stands above that observation's own lines."""
    lines: list[str] = []
    for entry in timeline:
        lines += [f"- {_at(entry.at)} · answered: {answer}" for answer in _answers(entry.facts)]
        if entry.actions:
            lines.append(f"- {_at(entry.at)} · {_deeds(entry.actions)}, by rule {plain(entry.rule)}")
    return lines or ["- Nothing was done."]


def _answers(facts: Mapping[str, Any]) -> Iterator[str]:
    results = facts.get("results")
    for result in results if isinstance(results, list) else []:
        if isinstance(result, Mapping):
            detail = f" ({plain(result['detail'])})" if result.get("detail") else ""
            done = plain(str(result.get("done", "?")).replace("_", " "))
            yield f"{_deeds([str(result.get('action', '?'))])}: {done}{detail}"


def _hold(hold: Hold) -> str:
    until = f"until {_at(hold.until)}" if hold.until else "and still does"
    held = f" (not done: {_deeds(hold.actions)})" if hold.actions else ""
    return f"- {hold.guard.value.replace('_', ' ')}, from {_at(hold.since)} {until}{held}: {plain(hold.text)}"


def _approval(approval: Approval) -> str:
    asked = f"- {plain(approval.what)}: asked {_at(approval.asked_at)} ({plain(approval.why)}); "
    if approval.answer is None:
        return f"{asked}not answered, due {_at(approval.deadline_at)}, then {approval.default.value}"
    text = f": {plain(approval.comment)}" if approval.comment else ""
    at = f" at {_at(approval.answered_at)}" if approval.answered_at else ""
    return f"{asked}{approval.answer.value} by {plain(approval.by or 'a person who is not named')}{at}{text}"


def _cost(ledger: IncidentLedger) -> list[str]:
    figures = ledger.named(
        *("steps_lost", "steps_saved", "lost_s"),
        *("gpu_hours_lost", "gpu_hours_saved", "dollars_lost", "dollars_saved"),
    )
    lines = ["| stage | from | seconds |", "|---|---|---|"]
    lines += [f"| {stage.name} | {_at(stage.at)} | {stage.seconds:.1f} |" for stage in ledger.stages]
    if ledger.stages:
        lines.append(f"| in all | | {sum(stage.seconds for stage in ledger.stages):.1f} |")
    lines += [
        "",
        f"- GPUs: {_step(ledger.size.gpus)}",
        *(f"- {heading(name)}: {_worth(name, value)}" for name, value in figures),
        *(f"- {plain(assumption)}" for assumption in ledger.assumptions),
    ]
    return lines


def _counterfactual(ledger: IncidentLedger) -> list[str]:
    other = ledger.otherwise
    return [
        *(
            f"- The same Incident with {name}: {_worth('lost_s', baseline.lost_s)} lost "
            f"(waiting {_worth('waiting_s', baseline.waiting_s)}, "
            f"steps done again {_worth('recompute_s', other.recompute_s)}); "
            f"{NAMES['gpu_hours_lost']}: {_worth('gpu_hours_lost', baseline.gpu_hours)}; "
            f"{NAMES['dollars_lost']}: {_worth('dollars_lost', baseline.dollars)}"
            for name, baseline in (("an automatic requeue", other.requeue), ("a person", other.person))
        ),
        *(f"- {heading(name)}: {_estimate(name, value)}" for name, value in ledger.spared.items()),
        *([f"- {other.assumes}"] if other.assumes else []),
    ]


def _estimate(name: str, spared: Maybe[Spared]) -> str:
    if isinstance(spared, Unknown):
        return _unknown(spared.why)
    return between(name, spared.value.low, spared.value.high)


def _at(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "an unknown time"


def _moment(moment: Maybe[datetime]) -> str:
    return _at(moment.value) if isinstance(moment, Known) else _unknown(moment.why)


def _step(step: Maybe[int]) -> str:
    return str(step.value) if isinstance(step, Known) else _unknown(step.why)


def _worth(name: str, quantity: Maybe[float]) -> str:
    return amount(name, quantity.value) if isinstance(quantity, Known) else _unknown(quantity.why)


def _unknown(why: str) -> str:
    return f"unknown ({plain(why)})"


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
