"""The stalls that were reported of the attempt under care, whether it has moved since, and whether it is as fast."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from chalicelib.domain.faults.signal_facts import concerns, signal_step
from chalicelib.domain.model.incident import Incident, best_step
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import STALLED, AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from rekindle.protocol.signals import FaultClass

USUAL_PACE: Final = 1.25  # the throughput detector's own threshold is above it (rekindle/detectors/pace.py)
STALLED_HEARTBEAT: Final = "heartbeat.stalled"  # the rule by which a new attempt is found stuck with no stall reported


def stalled_at(incident: Incident) -> Maybe[int]:
    """The highest step at which the attempt under care was reported stuck."""
    stalls = stalls_of(incident)
    return stuck_at(stalls) if stalls else Unknown("no stall was reported")


def newest_sign(claims: Iterable[Signal], view: AttemptView) -> datetime | None:
    """The time of the newest of the claims that the attempt stands still and of its heartbeat; None without claims."""
    times = [claim.occurred_at for claim in claims]
    if not times:
        return None
    return max((*times, *([view.heartbeat_at] if view.heartbeat_at is not None else [])))


def moves_again_since(incident: Incident, view: AttemptView) -> datetime | None:
    """When the monitor last reported that the attempt under care moves again; None if it was reported stuck since, by
    an event or by a heartbeat.
    """
    about = [item for item in incident.signals if concerns(item, incident)]
    at = max((item.occurred_at for item in about if item.kind is SignalKind.PROGRESS_RESUMED), default=None)
    if at is None or any(item.occurred_at >= at for item in about if item.fault is FaultClass.HANG and item.triggers):
        return None
    return None if view.heartbeat_at is not None and view.heartbeat_at > at and view.work == STALLED else at


def stuck_at(stalls: Iterable[Signal]) -> Maybe[int]:
    """The highest step that the stalls name."""
    return best_step(*(signal_step(item) for item in stalls))


def has_passed_stall(stall: Signal, made: Maybe[int]) -> bool:
    """Whether the step `made` is after this one's; one that names no step is before each that is known."""
    step = signal_step(stall)
    return isinstance(made, Known) and (not isinstance(step, Known) or made.value > step.value)


def is_past_stall(incident: Incident, made: Maybe[int]) -> bool:
    """Whether the step `made` of the attempt under care is after every stall that was reported of it.

    A stall that the monitor reports without a step was before the attempt's first one: each step that the attempt has
    made is after it. A silence of metrics names no step either, and says nothing of that.
    """
    stalls = stalls_of(incident)
    is_dated = isinstance(stuck_at(stalls), Known) or all(item.source is SignalSource.MONITOR for item in stalls)
    return bool(stalls) and is_dated and all(has_passed_stall(item, made) for item in stalls)


def stalls_of(incident: Incident) -> list[Signal]:
    """The stalls that were reported of the attempt under care."""
    return [item for item in incident.signals if item.kind is SignalKind.STALL and concerns(item, incident)]


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
