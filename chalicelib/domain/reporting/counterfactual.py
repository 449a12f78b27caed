"""The counterfactual: what the same Incident costs without Rekindle, against two baselines that people have. Pure.

Every wait here is assumed, so what is spared is an estimate and a range (docs/ledger.md#the-counterfactual).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chalicelib.domain.fault_specs.faults import NODE_FAULTS
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.lost_time import last_good
from rekindle.protocol.quantities import duration
from rekindle.protocol.signals import FaultClass

# The one source of these for the ledger and the fleets.
NCCL_TIMEOUT_S: Final = 600.0  # Source: PyTorch's default for NCCL (pytorch/pytorch #110947); 1800 before that
HUMAN_S: Final = 3600.0  # assumed: until a person has noticed and acts
NODE_REPAIR_S: Final = 1800.0  # assumed: a node's repair, by a person
NODE_REPLACE_S: Final = 1500.0  # HyperPod takes 20-30 min
RESTART_S: Final = 300.0  # assumed: from a submission until it trains

_FIRST_HOLDS: Final = (
    f"Each takes {RESTART_S / 60:g} min to start from the newest checkpoint that the run saved on its own, and the "
    "first start holds."
)
# Of a sum over Incidents of several faults.
SUM_ASSUMES: Final = (
    "Spared is an estimate. Low: an automatic requeue, at once or after NCCL's time-out "
    f"({NCCL_TIMEOUT_S / 60:g} min); for a broken node of a cluster HyperPod's auto-resume, which waits "
    f"{NODE_REPLACE_S / 60:g} min for another. High: after the time-out, a person who acts within {HUMAN_S / 60:g} "
    f"min, and {NODE_REPAIR_S / 60:g} min for that node; for a run whose own restarts before Rekindle are known, their "
    f"median instead. {_FIRST_HOLDS}"
)


@dataclass(frozen=True, slots=True)
class Spared:
    """From what is spared against an automatic requeue, to what is spared against a person."""

    low: float
    high: float

    def to_wire(self) -> dict[str, float]:
        """JSON form, to a thousandth."""
        return {"low": round(self.low, 3), "high": round(self.high, 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What the same Incident costs under one policy."""

    waiting_s: Maybe[float]
    lost_s: Maybe[float]
    gpu_hours: Maybe[float]
    dollars: Maybe[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """`requeue` is an automatic requeue at its best, for a broken node HyperPod's auto-resume. `spared_*` are the
    baselines' costs less the Incident's own; below zero where the recovery took longer. `assumes` is one line for
    people; empty where nothing is compared.
    """

    requeue: Baseline
    person: Baseline
    recompute_s: Maybe[float]
    spared_s: Maybe[Spared]
    spared_gpu_hours: Maybe[Spared]
    spared_dollars: Maybe[Spared]
    assumes: str


def otherwise(incident: Incident, *, lost: Maybe[float], size: JobSize, hourly: Maybe[float]) -> Counterfactual:
    """The counterfactual of one Incident, `lost` being its own lost seconds, `hourly` USD per hour of the run."""
    why = _no_comparison(incident)
    if why:
        none = Unknown(why)
        nothing = Baseline(waiting_s=none, lost_s=none, gpu_hours=none, dollars=none)
        return Counterfactual(
            requeue=nothing,
            person=nothing,
            recompute_s=none,
            spared_s=none,
            spared_gpu_hours=none,
            spared_dollars=none,
            assumes="",
        )
    recompute = _recompute(incident)
    requeue, person = (
        _baseline(waiting_s, recompute, size, hourly) for waiting_s in (_requeue_s(incident), _person_s(incident))
    )
    spared = _spared(requeue, person, lost)
    return Counterfactual(
        requeue=requeue,
        person=person,
        recompute_s=recompute,
        spared_s=spared,
        spared_gpu_hours=_spared_per_hour(spared, size.gpus),
        spared_dollars=_spared_per_hour(spared, hourly),
        assumes=_assumes(incident),
    )


def _no_comparison(incident: Incident) -> str:
    if incident.job_id is None:
        return "it is about no run"
    if incident.fault is FaultClass.OPERATOR_ORDER:
        return "a person ordered it"
    if not incident.account.restarts:
        return "nothing was started again, so there is nothing to compare"
    return ""


def _hangs(incident: Incident) -> bool:
    """Ranks wait for one that does not answer: only the collective's time-out ends that, and tells a person of it."""
    return incident.fault is FaultClass.HANG or incident.fault in NODE_FAULTS


def _lacks_node(incident: Incident) -> bool:
    """The next start waits for a node of a cluster; a run that is given instances of its own waits for none."""
    return incident.fault in NODE_FAULTS and incident.cluster is not None


def _requeue_s(incident: Incident) -> float:
    """At its best: it begins at once where anything can end the run but a time-out, even a loss that ends none."""
    if _lacks_node(incident):
        return NODE_REPLACE_S + RESTART_S
    return (NCCL_TIMEOUT_S if incident.fault is FaultClass.HANG else 0.0) + RESTART_S


def _person_s(incident: Incident) -> float:
    """What the run's own people took from its end to the next start, repairs included, is known better than it can be
    assumed.
    """
    waits_s = RESTART_S + (NCCL_TIMEOUT_S if _hangs(incident) else 0.0)
    own_gap = incident.account.own_gap_s
    if isinstance(own_gap, Known):
        return waits_s + own_gap.value
    return waits_s + HUMAN_S + (NODE_REPAIR_S if _lacks_node(incident) else 0.0)


def _assumes(incident: Incident) -> str:
    ended = f"NCCL's time-out ({NCCL_TIMEOUT_S / 60:g} min)"
    if _lacks_node(incident):
        low = f"HyperPod's auto-resume, which waits {NODE_REPLACE_S / 60:g} min for another node"
    elif incident.fault is FaultClass.HANG:
        low = f"an automatic requeue after {ended}"
    else:
        low = "an automatic requeue at once, as if the run had ended by itself"
    own_gap = incident.account.own_gap_s
    if isinstance(own_gap, Known):
        high = f"{duration(own_gap.value)}, the median that this run took before Rekindle from an end to a start"
    else:
        high = f"a person who acts within {HUMAN_S / 60:g} min"
        high += f", and {NODE_REPAIR_S / 60:g} min for the node's repair" if _lacks_node(incident) else ""
    if _hangs(incident):
        high = f"{ended}, then {high}"
    return f"Spared is an estimate. Low: {low}. High: {high}. {_FIRST_HOLDS}"


def _baseline(waiting_s: float, recompute: Maybe[float], size: JobSize, hourly: Maybe[float]) -> Baseline:
    total: Maybe[float] = Known(waiting_s + recompute.value) if isinstance(recompute, Known) else recompute
    return Baseline(
        waiting_s=Known(waiting_s),
        lost_s=total,
        gpu_hours=_per_hour(total, size.gpus),
        dollars=_per_hour(total, hourly),
    )


def _spared(requeue: Baseline, person: Baseline, lost: Maybe[float]) -> Maybe[Spared]:
    if isinstance(requeue.lost_s, Unknown):
        return requeue.lost_s
    if isinstance(person.lost_s, Unknown):
        return person.lost_s
    if isinstance(lost, Unknown):
        return lost
    ends = sorted(baseline.value - lost.value for baseline in (requeue.lost_s, person.lost_s))
    return Known(Spared(*ends))  # a run's own people may have been faster than HyperPod's replacement


def _spared_per_hour(spared: Maybe[Spared], per_hour: Maybe[int] | Maybe[float]) -> Maybe[Spared]:
    if isinstance(spared, Unknown):
        return spared
    if isinstance(per_hour, Unknown):
        return per_hour
    each = per_hour.value / 3600.0
    return Known(Spared(spared.value.low * each, spared.value.high * each))


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
