"""How long a run got nowhere because of one Incident, and in which stages. Pure; docs/ledger.md has the formula."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from chalicelib.domain.fault_specs.faults import POISONS, RUNS_ON, SLOW
from chalicelib.domain.model.incident import Incident, Phase, SkipWindow
from chalicelib.domain.model.incident_parts import merge_windows
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.steps_lost import ENDS
from rekindle.protocol.signals import FaultClass


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTime:
    """`by_stage` adds up to `seconds`; empty where that is Unknown."""

    seconds: Maybe[float]
    by_stage: tuple[tuple[str, float], ...] = ()
    assumptions: tuple[str, ...] = ()


def lost_time(
    incident: Incident, onset: Maybe[datetime], stages: Sequence[tuple[str, datetime, float]], until: datetime
) -> LostTime:
    """Wall time from when the run stopped getting on until the Incident closed, less what its net gain is worth.

    `stages` are name, begin and seconds.
    """
    why = _why_unknown(incident)
    if why:
        return LostTime(seconds=Unknown(why))
    if not incident.account.restarts and not _stood_still(incident):
        if incident.fault in (POISONS | RUNS_ON) - SLOW:
            return LostTime(seconds=Known(0.0), assumptions=("Nothing was stopped: the run continued without help.",))
        return LostTime(seconds=Unknown("nothing tells whether the run stood still, or how much slower it was"))
    start, base, assumptions = _from(incident, onset)
    if isinstance(start, Unknown):
        return LostTime(seconds=start)
    wall = max(0.0, (until - start.value).total_seconds())
    step_s, closed = incident.account.step_s, incident.account.closed_step
    pieces = [(name, _after(at, seconds, start.value)) for name, at, seconds in stages]
    if isinstance(base, Known) and isinstance(closed, Known) and isinstance(step_s, Known):
        seconds = max(0.0, wall - step_s.value * net_gain(base.value, closed.value, incident.loss.skips))
        assumptions = (*assumptions, f"A step takes {step_s.value:.3g} s, the run's own median.")
    else:
        seconds = wall
        assumptions = (
            *assumptions,
            "Counted whole: how far the run had come at the end, or its step time, is not known.",
        )
    return LostTime(seconds=Known(seconds), by_stage=_fitted(pieces, seconds), assumptions=assumptions)


def net_gain(base: int, closed: int, skips: Sequence[SkipWindow]) -> int:
    """Steps trained from `base` to `closed`, below zero where it has not come so far again. What is skipped takes no
    time: the step's number moves on, and nothing is trained."""
    low, high = sorted((base, closed))
    skipped = sum(
        max(0, min(window.to_step - 1, high) - max(window.from_step - 1, low)) for window in merge_windows(tuple(skips))
    )
    return (high - low - skipped) * (1 if closed >= base else -1)


def _why_unknown(incident: Incident) -> str:
    if incident.job_id is None:
        return "it is about no run"
    if incident.closed_at is None:
        return "it is still open"
    if incident.phase is not Phase.RECOVERED:
        return f"{ENDS[incident.phase]}: what such a run loses shows only when it continues"
    return ""


def _stood_still(incident: Incident) -> bool:
    return incident.fault is FaultClass.HANG or incident.tracking.repaired_at is not None


def _from(incident: Incident, onset: Maybe[datetime]) -> tuple[Maybe[datetime], Maybe[int], tuple[str, ...]]:
    """Since when nothing counts, and the step that the run had come to by then."""
    restarts = incident.account.restarts
    if not restarts:
        return onset, incident.target_step, ()
    if incident.loss.onsets or incident.is_poisoned:
        return onset, last_good(incident), ("Steps since the onset are worth nothing.",)
    first = restarts[0]
    if incident.fault in RUNS_ON and first.ended_at is not None:
        return Known(first.ended_at), first.furthest, ("The run worked until it was stopped.",)
    return onset, first.furthest, ()


def last_good(incident: Incident) -> Maybe[int]:
    """The step before the first bad one."""
    first_bad = incident.loss.onsets[0].step if incident.loss.onsets else incident.loss.onset_step
    return Known(first_bad.value - 1) if isinstance(first_bad, Known) else first_bad


def _after(at: datetime, seconds: float, start: datetime) -> float:
    """What of a stage lies after `start`."""
    return min(seconds, max(0.0, seconds - (start - at).total_seconds()))


def _fitted(pieces: list[tuple[str, float]], seconds: float) -> tuple[tuple[str, float], ...]:
    """The same stages, adding up to `seconds`: what the run gained came at the end, and so did what it still lacks."""
    over = sum(part for _, part in pieces) - seconds
    fitted: list[tuple[str, float]] = []
    for name, part in reversed(pieces):
        taken = min(part, over) if over > 0 else over
        over -= taken
        fitted.append((name, part - taken))
    return tuple((name, part) for name, part in reversed(fitted) if part > 0)
