"""How many steps of training an Incident has cost. Pure; docs/ledger.md has the formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chalicelib.domain.fault_specs.faults import POISONS
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Maybe, Unknown

# How an Incident ended that was not recovered, in words.
ENDS: Final[Mapping[Phase, str]] = {
    Phase.STOPPED: "it was stopped before the run was back",
    Phase.HANDED_OVER: "it was left to a person",
}


def steps_lost(incident: Incident) -> Maybe[int]:
    """Good steps that were trained twice: for each restart, the furthest good step of the attempt before it minus the
    restart's resume step. Steps since a loss went bad do not count here; their cost is in the lost time.
    """
    if not incident.account.restarts:
        return nothing_restarted(incident)
    total = 0
    for index, restart in enumerate(incident.account.restarts):
        furthest = good_before(incident, index)
        if isinstance(furthest, Unknown):
            return furthest
        if isinstance(restart.resume_step, Unknown):
            return Unknown(f"where {restart.name} continued is not known: {restart.resume_step.why}")
        total += max(0, furthest.value - restart.resume_step.value)
    return Known(total)


def good_before(incident: Incident, index: int) -> Maybe[int]:
    """As `furthest_before`, but at most the step before the first bad one of the replaced attempt."""
    furthest, after = furthest_before(incident, index), incident.account.restarts[index].after
    bad = [onset.step for onset in incident.loss.onsets if onset.attempt == after]
    if incident.loss.onset_attempt == after and incident.loss.onset_fault in POISONS:
        bad.append(incident.loss.onset_step)
    for step in bad:
        if isinstance(step, Unknown):
            return Unknown(f"since which step {after} was bad is not known: {step.why}")
        furthest = Known(min(furthest.value, step.value - 1)) if isinstance(furthest, Known) else Known(step.value - 1)
    return furthest


def furthest_before(incident: Incident, index: int) -> Maybe[int]:
    """The furthest step of the attempt that restart `index` replaced."""
    restarts = incident.account.restarts
    restart = restarts[index]
    if isinstance(restart.furthest, Known):
        return restart.furthest
    replaced = next((attempt for attempt in incident.resubmission.tries if attempt.name == restart.after), None)
    its_start = next((earlier for earlier in restarts[:index] if earlier.name == restart.after), None)
    if its_start is not None and replaced is not None and (replaced.no_room or replaced.died_at_load):
        return its_start.resume_step  # it never made a step of its own
    return Unknown(f"how far {restart.after} had come is not known: {restart.furthest.why}")


def nothing_restarted(incident: Incident) -> Maybe[int]:
    """How many steps, where nothing was started again."""
    if incident.job_id is None:
        return Unknown("it is about no run")
    if incident.closed_at is None:
        return Unknown("it is still open")
    if incident.phase is Phase.RECOVERED:
        return Known(0)
    return Unknown(f"nothing was started again: {ENDS[incident.phase]}")
