"""Ledgers of many Incidents: of one Job, and of the fleet. Pure; docs/ledger.md has the formulas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from chalicelib.domain.incidents import Phase
from chalicelib.domain.jobs import Attempt, Job
from chalicelib.domain.known import Known, Maybe, Unknown
from chalicelib.domain.ledger import IncidentLedger, worth
from chalicelib.domain.ledger_lost import net_gain


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """Where a run stands, from its own heartbeat: its newest step and the median seconds of a step."""

    last_step: Maybe[int]
    step_s: Maybe[float]


def total_of(quantities: Iterable[Maybe[Any]]) -> dict[str, Any]:
    """The sum of those that are known, with how many they are, and how many are left out of it."""
    items = list(quantities)
    known = [one.value for one in items if isinstance(one, Known)]
    return {"sum": round(float(sum(known)), 3), "counted": len(known), "not_counted": len(items) - len(known)}


def spread_of(quantities: Iterable[Maybe[float]]) -> dict[str, Any]:
    """Median and 90th percentile (the nearest rank) of those that are known."""
    items = list(quantities)
    known = sorted(one.value for one in items if isinstance(one, Known))
    none = {"unknown": "no Incident has one"}
    return {
        "median": round(_rank(known, 50), 3) if known else none,
        "p90": round(_rank(known, 90), 3) if known else none,
        "counted": len(known),
        "not_counted": len(items) - len(known),
    }


def _rank(ordered: Sequence[float], percent: int) -> float:
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def sums_of(ledgers: Sequence[IncidentLedger]) -> dict[str, Any]:
    """What a Job's and the fleet's ledger have in common."""
    pick: dict[str, Callable[[IncidentLedger], Maybe[Any]]] = {
        "steps_lost": lambda one: one.steps_lost,
        "steps_saved": lambda one: one.steps_saved,
        "lost_s": lambda one: one.lost.seconds,
        "gpu_hours_lost": lambda one: one.gpu_hours_lost,
        "gpu_hours_saved": lambda one: one.gpu_hours_saved,
        "dollars_lost": lambda one: one.dollars_lost,
        "dollars_saved": lambda one: one.dollars_saved,
        "spared_gpu_hours": lambda one: one.otherwise.spared_gpu_hours,
        "spared_dollars": lambda one: one.otherwise.spared_dollars,
    }
    phases = [one.incident.phase for one in ledgers]
    return {
        "incidents": {
            "all": len(ledgers),
            "open": sum(not phase.is_terminal for phase in phases),
            **{phase.value: phases.count(phase) for phase in (Phase.RECOVERED, Phase.STOPPED, Phase.HANDED_OVER)},
        },
        "mttd_s": spread_of([one.mttd_s for one in ledgers]),
        "mttr_s": spread_of([one.mttr_s for one in ledgers]),
        **{name: total_of([of(one) for one in ledgers]) for name, of in pick.items()},
        "lost_by_stage_s": _grouped((name, part) for one in ledgers for name, part in one.lost.by_stage),
        "lost_by_fault_s": _grouped(
            (one.incident.fault.value, one.lost.seconds.value) for one in ledgers if isinstance(one.lost.seconds, Known)
        ),
    }


def _grouped(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for name, part in pairs:
        sums[name] += part
    return {name: round(part, 3) for name, part in sorted(sums.items(), key=lambda item: (-item[1], item[0]))}


def job_sums(
    job: Job, attempts: Sequence[Attempt], ledgers: Sequence[IncidentLedger], run: RunNow, *, now: datetime
) -> dict[str, Any]:
    """A Job's ledger. ETTR is productive time by wall time, once by the Incidents and once by the run's own steps."""
    began = min([job.created_at, *(one.submitted_at for one in attempts)])
    ended = attempts[-1].ended_at if attempts and not job.active else None
    wall = max(0.0, ((ended or now) - began).total_seconds())
    losses = [one.lost.seconds for one in ledgers]
    return {
        "job_id": job.job_id,
        "name": job.name,
        "active": job.active,
        "gpus": worth(job.size.gpus),
        "instances": [list(pair) for pair in job.size.instances],
        "attempts": len(attempts),
        "began_at": began.isoformat(),
        "until": (ended or now).isoformat(),
        "wall_s": round(wall, 3),
        "ettr": worth(ettr(wall, losses)),
        "ettr_at_most": worth(ettr(wall, [one for one in losses if isinstance(one, Known)])),
        "ettr_by_steps": worth(_by_steps(attempts, run, wall)),
        **sums_of(ledgers),
    }


def ettr(wall_s: float, losses: Sequence[Maybe[float]]) -> Maybe[float]:
    """(wall - lost) / wall. Unknown as soon as one loss is: a sum without it would flatter."""
    if wall_s <= 0:
        return Unknown("the run has taken no time yet")
    lost = 0.0
    for one in losses:
        if isinstance(one, Unknown):
            return Unknown(f"what one Incident cost is not known: {one.why}")
        lost += one.value
    return Known(max(0.0, wall_s - lost) / wall_s)


def _by_steps(attempts: Sequence[Attempt], run: RunNow, wall_s: float) -> Maybe[float]:
    """The steps that count, at the run's median step time, by wall time: start-up, saving and queueing are lost too."""
    if wall_s <= 0:
        return Unknown("the run has taken no time yet")
    if isinstance(run.step_s, Unknown):
        return run.step_s
    first = attempts[0].first_step if attempts else Unknown("no attempt is known")
    if isinstance(first, Unknown):
        return Unknown(f"the step that the run began with is not known: {first.why}")
    reached = [one.value for one in (run.last_step, *(item.last_step for item in attempts)) if isinstance(one, Known)]
    if not reached:
        return Unknown("how far the run has come is not known")
    productive = max(0, net_gain(first.value - 1, max(reached), attempts[-1].skips)) * run.step_s.value
    if productive > wall_s:
        return Unknown("its steps at today's pace would have taken longer than it has run: it was faster before")
    return Known(productive / wall_s)


def fleet_ettr(jobs: Sequence[Job], losses: dict[str, list[Maybe[float]]], *, since: datetime, now: datetime) -> Any:
    """Over the active Jobs, each weighed by its wall time within the window: {"ettr", "ettr_at_most", "jobs"}."""
    wall = 0.0
    all_losses: list[Maybe[float]] = []
    for job in jobs:
        wall += max(0.0, (now - max(since, job.created_at)).total_seconds())
        all_losses += losses.get(job.job_id, [])
    return {
        "jobs": len(jobs),
        "ettr": worth(ettr(wall, all_losses) if jobs else Unknown("no active Job")),
        "ettr_at_most": worth(
            ettr(wall, [one for one in all_losses if isinstance(one, Known)]) if jobs else Unknown("no active Job")
        ),
    }
