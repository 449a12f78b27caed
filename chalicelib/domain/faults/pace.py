"""How fast a run's steps are, against what was usual as it was reported to be slow. Pure."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.observation import AttemptView
from rekindle.protocol.signals import FaultClass

USUAL_PACE: Final = 1.25  # the throughput detector's own threshold is above it (rekindle/detectors/pace.py)


def usual_pace(incident: Incident) -> list[float]:
    """The usual seconds a step, as each report of slow steps names them."""
    usual = [
        signal.evidence.get("baseline_s") for signal in incident.signals if signal.fault is FaultClass.THROUGHPUT_DROP
    ]
    return [float(seconds) for seconds in usual if isinstance(seconds, int | float) and seconds > 0]


def is_as_fast_as_usual(incident: Incident, attempt: AttemptView) -> bool:
    """False also where either is not known."""
    known = usual_pace(incident)
    return bool(known) and attempt.step_s is not None and attempt.step_s <= min(known) * USUAL_PACE
