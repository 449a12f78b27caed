"""Which life of an attempt a Signal speaks of. A life is a start of all its processes; whatever starts them again in
their place (torchrun, a loop in a script, a process manager) begins the next one. Pure.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.faults.signal_facts import concerns
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.observation import AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind

_RIGHT_AFTER: Final = timedelta(microseconds=1)


def life_of(signal: Signal) -> int | None:
    """None for a Signal that names none."""
    life = signal.evidence.get("life")
    return life if isinstance(life, int) and not isinstance(life, bool) else None


def began_anew_at(incident: Incident, view: AttemptView) -> datetime | None:
    """Since when a newer life of the attempt under care is at work than the one that was reported; None where none is.

    The newest moment at which something was reported of an earlier life, or the newest life's own start was.
    """
    times = [signal.occurred_at for signal in incident.signals if concerns(signal, incident) and _is_past(signal, view)]
    return max(times) + _RIGHT_AFTER if times else None


def lives_begun(incident: Incident) -> int:
    """How many lives of the attempt under care have begun in this Incident: starts that others made in its place."""
    begun = {
        life_of(signal)
        for signal in incident.signals
        if signal.kind is SignalKind.MONITOR_STARTED and signal.triggers and concerns(signal, incident)
    }
    return len(begun)


def _is_past(signal: Signal, view: AttemptView) -> bool:
    life = life_of(signal)
    if life is None or not signal.triggers:
        return False
    return life <= view.life if signal.kind is SignalKind.MONITOR_STARTED else life < view.life
