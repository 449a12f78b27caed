"""Ledgers of many Incidents: of one Job, and of the fleet. Pure; docs/ledger.md has the formulas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.counterfactual import SUM_ASSUMES, Spared
from chalicelib.domain.reporting.ledger import IncidentLedger, quantity_json


def total_of(quantities: Iterable[Maybe[Any]]) -> dict[str, Any]:
    """The sum of those that are known, with how many they are, and how many are left out of it. Unknown, never zero,
    where none of them is known."""
    items = list(quantities)
    known = [value.value for value in items if isinstance(value, Known)]
    total: Maybe[float] = Known(float(sum(known))) if known or not items else Unknown("it is known of no Incident")
    return {"sum": quantity_json(total), "counted": len(known), "not_counted": len(items) - len(known)}


def spread_of(quantities: Iterable[Maybe[float]]) -> dict[str, Any]:
    """Median and 90th percentile (the nearest rank) of those that are known."""
    items = list(quantities)
    known = sorted(value.value for value in items if isinstance(value, Known))
    none = {"unknown": "no Incident has one"}
    return {
        "median": round(_rank(known, 50), 3) if known else none,
        "p90": round(_rank(known, 90), 3) if known else none,
        "counted": len(known),
        "not_counted": len(items) - len(known),
    }


def _rank(ordered: Sequence[float], percent: int) -> float:
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


_SUMMED: Final = (
    *("steps_lost", "steps_saved", "lost_s", "gpu_hours_lost", "gpu_hours_saved"),
    *("dollars_lost", "dollars_saved"),
)


_SPARED: Final = ("spared_gpu_hours", "spared_dollars")


def _spared_total(quantities: Sequence[Maybe[Spared]]) -> dict[str, Any]:
    """As `total_of`, of ranges: low and high are summed apart."""
    low, high = (
        total_of([Known(pick(spared.value)) if isinstance(spared, Known) else spared for spared in quantities])
        for pick in (attrgetter("low"), attrgetter("high"))
    )
    both = low["sum"] if isinstance(low["sum"], dict) else {"low": low["sum"], "high": high["sum"]}
    return {**low, "sum": both}


def sums_of(ledgers: Sequence[IncidentLedger]) -> dict[str, Any]:
    """What a Job's and the fleet's ledger have in common."""
    figures = [ledger.figures for ledger in ledgers]
    phases = [ledger.incident.phase for ledger in ledgers]
    return {
        "incidents": {
            "all": len(ledgers),
            "open": sum(not phase.is_terminal for phase in phases),
            **{phase.value: phases.count(phase) for phase in (Phase.RECOVERED, Phase.STOPPED, Phase.HANDED_OVER)},
        },
        "mttd_s": spread_of([ledger.mttd_s for ledger in ledgers]),
        "mttr_s": spread_of([ledger.mttr_s for ledger in ledgers]),
        **{name: total_of([row[name] for row in figures]) for name in _SUMMED},
        **{name: _spared_total([ledger.spared[name] for ledger in ledgers]) for name in _SPARED},
        "spared_assumes": SUM_ASSUMES,
        "lost_by_stage_s": _grouped((name, part) for ledger in ledgers for name, part in ledger.lost.by_stage),
        "lost_by_fault_s": _grouped(
            (ledger.incident.fault.value, ledger.lost.seconds.value)
            for ledger in ledgers
            if isinstance(ledger.lost.seconds, Known)
        ),
    }


def _grouped(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for name, part in pairs:
        sums[name] += part
    return {name: round(part, 3) for name, part in sorted(sums.items(), key=lambda item: (-item[1], item[0]))}


def job_sums(
    job: Job, attempts: Sequence[Attempt], ledgers: Sequence[IncidentLedger], *, now: datetime
) -> dict[str, Any]:
    """A Job's ledger. ETTR is productive time by wall time.

    The wall time ends with the run, so that no figure moves on while it is over.
    """
    began = min([job.created_at, *(attempt.submitted_at for attempt in attempts)])
    until = run_until(job, attempts[-1] if attempts else None, now=now)
    wall: Maybe[float] = until if isinstance(until, Unknown) else Known(max(0.0, _seconds(until.value - began)))
    losses = [ledger.lost.seconds for ledger in ledgers]
    open_ones = sum(ledger.incident.closed_at is None for ledger in ledgers)
    return {
        "job_id": job.job_id,
        "name": job.name,
        "active": job.active,
        "gpus": quantity_json(job.size.gpus),
        "instances": [list(pair) for pair in job.size.instances],
        "attempts": len(attempts),
        "began_at": began.isoformat(),
        "until": until.value.isoformat() if isinstance(until, Known) else None,
        "wall_s": quantity_json(wall),
        "ettr": quantity_json(ettr(wall, losses)),
        "ettr_at_most": quantity_json(at_most(wall, losses, open_ones=open_ones)),
        **sums_of(ledgers),
    }


def run_until(job: Job, last: Attempt | None, *, now: datetime) -> Maybe[datetime]:
    """When the run ended, or `now` while it runs. It ends with its last attempt, whether or not that was noticed."""
    if last is not None and last.ended_at is not None:
        return Known(last.ended_at)
    if job.active:
        return Known(now)
    return Known(job.ended_at) if job.ended_at is not None else Unknown("when the run ended is not known")


def _seconds(span: timedelta) -> float:
    return span.total_seconds()


def ettr(wall: Maybe[float], losses: Sequence[Maybe[float]]) -> Maybe[float]:
    """(wall - lost) / wall. Unknown as soon as one loss is: a sum without it would flatter."""
    if isinstance(wall, Unknown):
        return wall
    wall_s = wall.value
    if wall_s <= 0:
        return Unknown("the run has taken no time yet")
    lost = 0.0
    for loss in losses:
        if isinstance(loss, Unknown):
            return Unknown(f"what one Incident cost is not known: {loss.why}")
        lost += loss.value
    return Known(max(0.0, wall_s - lost) / wall_s)


def at_most(wall: Maybe[float], losses: Sequence[Maybe[float]], *, open_ones: int) -> Maybe[float]:
    """What `ettr` is at most, without the losses that are not known. Unknown while an Incident is open: it may be
    losing now."""
    if open_ones:
        return Unknown(f"{open_ones} Incidents are open" if open_ones > 1 else "an Incident is open")
    return ettr(wall, [loss for loss in losses if isinstance(loss, Known)])


def fleet_ettr(
    jobs: Sequence[Job], ledgers: Sequence[IncidentLedger], *, since: datetime, now: datetime
) -> dict[str, Any]:
    """Over the Jobs that ran within the window, each weighed by its wall time there: {"ettr", "ettr_at_most", "jobs"}.

    A Job with an open Incident counts up to that Incident's onset: what it loses shows when the Incident closes. One
    that is over counts up to its end; one whose end is not known is left out.
    """
    held: dict[str, datetime] = {}
    losses: dict[str, list[Maybe[float]]] = defaultdict(list)
    for ledger in ledgers:
        job_id = ledger.incident.job_id
        if job_id is None:
            continue
        if ledger.incident.closed_at is not None:
            losses[job_id].append(ledger.lost.seconds)
            continue
        begun = ledger.onset_at.value if isinstance(ledger.onset_at, Known) else ledger.incident.opened_at
        held[job_id] = min(begun, held.get(job_id, begun))
    wall, counted, all_losses = 0.0, 0, list[Maybe[float]]()
    for job in jobs:
        until = run_until(job, None, now=now)
        if isinstance(until, Unknown):
            continue
        counted += 1
        wall += max(0.0, _seconds(min(until.value, held.get(job.job_id, now)) - max(since, job.created_at)))
        all_losses += losses.get(job.job_id, [])
    whole: Maybe[float] = Known(wall) if counted else Unknown("no Job ran")
    return {
        "jobs": counted,
        "ettr": quantity_json(ettr(whole, all_losses)),
        "ettr_at_most": quantity_json(at_most(whole, all_losses, open_ones=len(held))),
    }
