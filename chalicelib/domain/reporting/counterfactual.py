"""The counterfactual: what the same Incident costs where NCCL's time-out tells and a person acts. Pure.

The figures are those of docs/ledger.md#the-counterfactual: NCCL's default time-out of 30 minutes, an hour until a
person acts, half an hour for a node's repair, and 5 minutes for a restart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chalicelib.domain.fault_specs.faults import NODE_FAULTS
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.lost_time import last_good
from rekindle.protocol.signals import FaultClass

NCCL_TIMEOUT_S: Final = 1800.0
HUMAN_S: Final = 3600.0
NODE_REPAIR_S: Final = 1800.0
RESTART_S: Final = 300.0

# Where ranks wait for one that does not answer: only the collective's time-out ends that.


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """`spared_*` is this cost minus the Incident's own; below zero where the recovery took longer."""

    waiting_s: Maybe[float]
    recompute_s: Maybe[float]
    lost_s: Maybe[float]
    gpu_hours: Maybe[float]
    dollars: Maybe[float]
    spared_s: Maybe[float]
    spared_gpu_hours: Maybe[float]
    spared_dollars: Maybe[float]
    assumptions: tuple[str, ...]


def otherwise(incident: Incident, *, lost: Maybe[float], size: JobSize, hourly: Maybe[float]) -> Counterfactual:
    """The counterfactual of one Incident, `lost` being its own lost seconds, `hourly` USD per hour of the run."""
    why = _no_comparison(incident)
    if why:
        none: Maybe[float] = Unknown(why)
        return Counterfactual(
            waiting_s=none,
            recompute_s=none,
            lost_s=none,
            gpu_hours=none,
            dollars=none,
            spared_s=none,
            spared_gpu_hours=none,
            spared_dollars=none,
            assumptions=(),
        )
    waiting, assumptions = _waiting(incident.fault)
    recompute = _recompute(incident)
    total: Maybe[float] = Known(waiting + recompute.value) if isinstance(recompute, Known) else recompute
    spared: Maybe[float] = total
    if isinstance(total, Known):
        spared = Known(total.value - lost.value) if isinstance(lost, Known) else lost
    return Counterfactual(
        waiting_s=Known(waiting),
        recompute_s=recompute,
        lost_s=total,
        gpu_hours=_per_hour(total, size.gpus),
        dollars=_per_hour(total, hourly),
        spared_s=spared,
        spared_gpu_hours=_per_hour(spared, size.gpus),
        spared_dollars=_per_hour(spared, hourly),
        assumptions=(
            *assumptions,
            "No emergency checkpoint is made: the run continues from the newest checkpoint that it saved on its own.",
            "The person does the right thing at once, and the first new start holds.",
        ),
    )


def _no_comparison(incident: Incident) -> str:
    if incident.job_id is None:
        return "it is about no run"
    if incident.fault is FaultClass.OPERATOR_ORDER:
        return "a person ordered it"
    if not incident.account.restarts:
        return "nothing was started again, so there is nothing to compare"
    return ""


def _waiting(fault: FaultClass) -> tuple[float, tuple[str, ...]]:
    rows = [
        (
            NCCL_TIMEOUT_S,
            fault is FaultClass.HANG or fault in NODE_FAULTS,
            "NCCL's time-out ends the hang after 30 minutes.",
        ),
        (HUMAN_S, True, "A person notices and acts within 60 minutes."),
        (NODE_REPAIR_S, fault in NODE_FAULTS, "The node is repaired in 30 minutes, and the run waits for it."),
        (RESTART_S, True, "Starting again takes 5 minutes."),
    ]
    return sum(seconds for seconds, counts, _ in rows if counts), tuple(
        assumption for _, counts, assumption in rows if counts
    )


def _recompute(incident: Incident) -> Maybe[float]:
    """The steps between the newest checkpoint of its own and how far it had come, at the run's own pace."""
    first, step_s = incident.account.restarts[0], incident.account.step_s
    reached = last_good(incident) if incident.loss.onsets or incident.is_poisoned else first.furthest
    if isinstance(first.periodic_step, Unknown):
        return Unknown(f"where it would have resumed is not known: {first.periodic_step.why}")
    if isinstance(reached, Unknown):
        return Unknown(f"how far it had come is not known: {reached.why}")
    return (
        step_s
        if isinstance(step_s, Unknown)
        else Known(max(0, reached.value - first.periodic_step.value) * step_s.value)
    )


def _per_hour(seconds: Maybe[float], per_hour: Maybe[int] | Maybe[float]) -> Maybe[float]:
    if isinstance(seconds, Unknown):
        return seconds
    return per_hour if isinstance(per_hour, Unknown) else Known(seconds.value / 3600.0 * per_hour.value)
