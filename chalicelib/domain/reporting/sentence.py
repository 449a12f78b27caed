"""An Incident in one sentence, its suspects, and the commands that a person may run about it. Pure.

One wording for the API, the console and the static page. Nothing is escaped here: names are other people's words, on
one line and without characters that hide or reorder text.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Final

from chalicelib.domain.fault_specs.faults import NODE_FAULTS
from chalicelib.domain.model.evidence import suspect_word
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.reporting.markdown import one_line
from chalicelib.domain.reporting.paste import paste_of
from chalicelib.domain.reporting.steps_lost import steps_lost
from rekindle.signatures.words import fault_word

NAME_CHARS: Final = 160
_SENTENCE_CHARS: Final = 300


def sentence_of(incident: Incident) -> str:
    """`lm-7: hang, rank 1 on algo-2 suspected; recovered, 30 steps lost`."""
    about = one_line(incident.job_id or incident.scope or incident.incident_id, NAME_CHARS)
    suspect = suspect_of(incident)
    fault = fault_word(incident.fault) + (f", {suspect} suspected" if suspect else "")
    lost = steps_lost(incident)
    steps = ""
    if not incident.is_open and isinstance(lost, Known):
        steps = f", {lost.value:,} step{'' if lost.value == 1 else 's'} lost"
    return one_line(f"{about}: {fault}; {phase_word(incident.phase)}{steps}", _SENTENCE_CHARS)


def phase_word(phase: Phase) -> str:
    """`handed over`."""
    return phase.value.replace("_", " ")


def suspect_of(incident: Incident) -> str:
    """The newest suspect: `rank 3 on host-3`, or a node; empty where none is named.

    A node that Rekindle holds to be broken comes before one that only a signal names.
    """
    named = [suspicion for suspicion in incident.evidence.suspicions if suspicion.ranks or suspicion.hosts]
    if named:
        return one_line(suspect_word(named[-1]), NAME_CHARS)
    if incident.resubmission.bad_nodes:
        return one_line(f"node {incident.resubmission.bad_nodes[-1].node}", NAME_CHARS)
    if incident.fault not in NODE_FAULTS:
        return ""
    reported = [signal.node for signal in incident.signals if signal.node and signal.fault in NODE_FAULTS]
    return one_line(f"node {reported[-1]}", NAME_CHARS) if reported else ""


def commands_of(incident: Incident, *, region: str) -> tuple[tuple[str, str], ...]:
    """What a person may run: each a label and a command or an address, every name quoted for a shell.

    `region`: written into commands of the AWS CLI; left out where it is empty.
    """
    named = shlex.quote(incident.incident_id)
    lines = list(paste_of(incident, region=region))
    if incident.is_open:
        lines.append(("End this recovery; what was done stays done", f"rekindle cancel {named}"))
        lines.append(("Hold everything back, on all Jobs", "rekindle switches pause"))
    else:
        lines.append(("Post-mortem", f"rekindle ledger postmortem {named}"))
        if incident.phase is not Phase.RECOVERED and incident.job_id:
            lines.append(("Start the run again", f"rekindle resubmit {shlex.quote(incident.job_id)}"))
    lines.append(("A link for a phone", f"rekindle show {named} --report"))
    return tuple(lines)


HAPPENING: Final[Mapping[Phase, str]] = {
    Phase.OPEN: "It has been reported, and is being examined.",
    Phase.HOLDING: "Waiting before anything is done.",
    Phase.WATCHING: "Watching whether it heals without help.",
    Phase.CHECKPOINTING: "The run has been asked for an emergency checkpoint.",
    Phase.STOPPING: "The attempt is being stopped.",
    Phase.RESUBMITTING: "The job is being submitted again.",
    Phase.VERIFYING: "A new attempt runs; watching whether it makes progress.",
    Phase.DRAINING: "The node takes no new jobs; the jobs on it end or move first.",
    Phase.REPAIRING: "The node is being repaired.",
    Phase.CHECKING: "The node is back, and is being checked.",
    Phase.RETURNING: "The node is being given back to the scheduler.",
    Phase.RECOVERED: "Recovered: it makes progress again.",
    Phase.STOPPED: "Stopped: nothing more is done.",
    Phase.HANDED_OVER: "Handed over to a person: nothing more is done automatically.",
}
