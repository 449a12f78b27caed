"""Which life of an attempt a Signal speaks of. A life is a start of all its processes; whatever starts them again in
their place (torchrun, a loop in a script, a process manager) begins the next one. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.faults.loss import marked_bad
from chalicelib.domain.faults.signal_facts import concerns, signal_step
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind
from rekindle.protocol.signals import FaultClass

_RIGHT_AFTER: Final = timedelta(microseconds=1)


def life_of(signal: Signal) -> int | None:
    """None for a Signal that names none."""
    life = signal.evidence.get("life")
    return life if isinstance(life, int) and not isinstance(life, bool) else None


def began_anew_at(incident: Incident, view: AttemptView) -> datetime | None:
    """Since when a newer life of the attempt under care is at work than the one that was reported; None where none is.

    The newest moment at which something was reported of an earlier life, or the newest life's own start was.
    """
    times = [signal.occurred_at for signal in incident.signals if concerns(signal, incident) and is_past(signal, view)]
    return max(times) + _RIGHT_AFTER if times else None


def without_earlier_badness(incident: Incident, view: AttemptView) -> Incident:
    """Weights that have gone bad ended with the life that held them. What that life has saved since stays unused, as
    far as it came; what the newer one saves beyond that is its own.

    Not where the loss had only risen and the newer life began beyond that: what it loaded holds the rise, and whether
    it is over its own monitor, which knows no loss from before, cannot tell.
    """
    noted = marked_bad(incident) if _is_followed(incident, view) else incident
    if noted.loss.onset_attempt != view.name:
        return incident
    is_of_numbers = noted.loss.onset_fault is FaultClass.NON_FINITE
    began = view.first_step.value if isinstance(view.first_step, Known) else None
    reached = [signal_step(signal) for signal in incident.signals if is_past(signal, view)]
    ends = [step.value + 1 for step in reached if isinstance(step, Known)]
    stretches = tuple(
        replace(stretch, to_step=max(ends))
        if ends
        and stretch.attempt == view.name
        and stretch.to_step is None
        and stretch.from_step < max(ends)
        and (is_of_numbers or (began is not None and began <= stretch.from_step))
        else stretch
        for stretch in noted.loss.stretches
    )
    return incident.changed(
        onset_attempt=None,
        onset_step=Unknown("its processes have been started again since"),
        is_onset_later=False,
        onset_fault=FaultClass.NON_FINITE,
        stretches=stretches,
    )


def _is_followed(incident: Incident, view: AttemptView) -> bool:
    """A rise of its loss was watched, and is not known to be over."""
    episode = incident.loss.episode
    return episode is not None and episode.attempt == view.name and episode.healed_step is None


def lives_begun(incident: Incident, view: AttemptView) -> int:
    """How many lives of the attempt under care have begun in this Incident: starts that others made in its place.
    Those of which no event came are known by the number of the one at work.
    """
    begun = {
        life_of(signal) or 0
        for signal in incident.signals
        if signal.kind is SignalKind.MONITOR_STARTED and signal.triggers and concerns(signal, incident)
    }
    return max(len(begun), view.life - min(begun) + 1) if begun else 0


def lives_in_vain(incident: Incident, view: AttemptView) -> int:
    """How many of its newest lives in a row came no further than those before them, by what is reported at the start
    of the next one; the one that came furthest counts. 0 where no step was reported.
    """
    reached = {}
    for signal in incident.signals:
        step = signal_step(signal)
        if signal.kind is SignalKind.MONITOR_STARTED and isinstance(step, Known) and is_past(signal, view):
            reached[life_of(signal)] = step.value
    best, in_vain = -1, 0
    for _, step_reached in sorted((life or 0, step) for life, step in reached.items()):
        in_vain = in_vain + 1 if step_reached <= best else 1
        best = max(best, step_reached)
    return in_vain


def is_past(signal: Signal, view: AttemptView) -> bool:
    """It is about an earlier life than the one at work, or tells of that one's start."""
    life = life_of(signal)
    if life is None or not signal.triggers:
        return False
    return life <= view.life if signal.kind is SignalKind.MONITOR_STARTED else life < view.life
