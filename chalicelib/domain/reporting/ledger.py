"""The ledger of one Incident: the time, steps, GPU-hours and dollars that it took, lost and saved. Pure.

The formulas with their sources are in docs/ledger.md. `services/reporting/ledgers.py` reads what is needed for it.

A quantity of which an input is not known is Unknown and says which; it is never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from chalicelib.domain.model.account import Account, Restart
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.counterfactual import Baseline, Counterfactual, Spared, otherwise
from chalicelib.domain.reporting.lost_time import LostTime, lost_time
from chalicelib.domain.reporting.prices import Prices
from chalicelib.domain.reporting.steps_lost import ENDS, nothing_restarted, steps_lost
from rekindle.protocol.manifests import SaveKind
from rekindle.protocol.signals import FaultClass

HOUR_S: Final = 3600.0
DETECT: Final = "detect"  # the stage before the first look; the others have their phases' names
EARLIER: Final = "earlier"  # phases that gave way to newer ones in the account


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stretch of an Incident: from `at`, for `seconds`."""

    name: str
    at: datetime
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentLedger:
    """Seconds, steps, GPU-hours and USD of one Incident. `assumptions` are what the figures take for granted.

    `onset_at` is when the fault began; `mttd_s` from there to the first observation, `mttr_s` to the end of a recovery;
    `elapsed_s` to the end, however it ended, or to now. `stages` add up to `elapsed_s`, and so to `mttr_s` where there
    is one.
    """

    incident: Incident
    size: JobSize
    until: datetime
    onset_at: Maybe[datetime]
    mttd_s: Maybe[float]
    mttr_s: Maybe[float]
    elapsed_s: Maybe[float]
    stages: tuple[Stage, ...]
    steps_lost: Maybe[int]
    steps_saved: Maybe[int]
    lost: LostTime
    gpu_hours_lost: Maybe[float]
    gpu_hours_saved: Maybe[float]
    dollars_lost: Maybe[float]
    dollars_saved: Maybe[float]
    otherwise: Counterfactual
    assumptions: tuple[str, ...]

    @property
    def figures(self) -> Mapping[str, Maybe[float]]:
        """Every quantity that is one number, under its name (rekindle.protocol.quantities); `spared` has the ranges.

        Rounded to a thousandth, as in `to_wire`: what is rounded further from here or from the JSON must be equal.
        """
        exact: dict[str, Maybe[float]] = {
            "mttd_s": self.mttd_s,
            "mttr_s": self.mttr_s,
            "elapsed_s": self.elapsed_s,
            "steps_lost": self.steps_lost,
            "steps_saved": self.steps_saved,
            "lost_s": self.lost.seconds,
            "gpu_hours_lost": self.gpu_hours_lost,
            "gpu_hours_saved": self.gpu_hours_saved,
            "dollars_lost": self.dollars_lost,
            "dollars_saved": self.dollars_saved,
        }
        return {
            name: Known(_round(value.value)) if isinstance(value, Known) else value for name, value in exact.items()
        }

    @property
    def spared(self) -> Mapping[str, Maybe[Spared]]:
        """What is spared, under its names."""
        other = self.otherwise
        return {
            "spared_s": other.spared_s,
            "spared_gpu_hours": other.spared_gpu_hours,
            "spared_dollars": other.spared_dollars,
        }

    def named(self, *names: str) -> tuple[tuple[str, Maybe[float]], ...]:
        """These figures, each with its name."""
        figures = self.figures
        return tuple((name, figures[name]) for name in names)

    @property
    def took(self) -> str:
        """The name of how long it took: to recover, or where it did not, to its end or to now."""
        return "mttr_s" if isinstance(self.mttr_s, Known) else "elapsed_s"

    def to_wire(self) -> dict[str, Any]:
        """JSON form: a number, or `{"unknown": why}`. Written by hand, not by the codec: nothing reads it back, and its
        figures are rounded, some computed here and some the Incident's.
        """
        incident, account = self.incident, self.incident.account
        onset = self.onset_at
        return {
            "incident_id": incident.incident_id,
            "job_id": incident.job_id,
            "fault": incident.fault.value,
            "phase": incident.phase.value,
            "outcome": incident.outcome,
            "opened_at": incident.opened_at.isoformat(),
            "closed_at": incident.closed_at.isoformat() if incident.closed_at else None,
            "until": self.until.isoformat(),
            "onset_at": onset.value.isoformat() if isinstance(onset, Known) else {"unknown": onset.why},
            "onset_from": account.onset_from,
            "mttd_s": quantity_json(self.mttd_s),
            "mttr_s": quantity_json(self.mttr_s),
            "elapsed_s": quantity_json(self.elapsed_s),
            "stages": [
                {
                    "phase": stage.name,
                    "at": stage.at.isoformat(),
                    "after_s": quantity_json(_since(onset, stage.at)),
                    "seconds": _round(stage.seconds),
                }
                for stage in self.stages
            ],
            "steps_lost": quantity_json(self.steps_lost),
            "steps_saved": quantity_json(self.steps_saved),
            "step_s": quantity_json(account.step_s),
            "lost_s": quantity_json(self.lost.seconds),
            "lost_stages": [{"phase": name, "seconds": _round(seconds)} for name, seconds in self.lost.by_stage],
            "instances": [list(pair) for pair in self.size.instances],
            "gpus": quantity_json(self.size.gpus),
            "gpu_hours_lost": quantity_json(self.gpu_hours_lost),
            "gpu_hours_saved": quantity_json(self.gpu_hours_saved),
            "dollars_lost": quantity_json(self.dollars_lost),
            "dollars_saved": quantity_json(self.dollars_saved),
            "counterfactual": {
                "requeue": _baseline(self.otherwise.requeue),
                "person": _baseline(self.otherwise.person),
                "recompute_s": quantity_json(self.otherwise.recompute_s),
                **{name: spared_json(value) for name, value in self.spared.items()},
                "assumes": self.otherwise.assumes,
            },
            "assumptions": list(self.assumptions),
        }


def ledger_of(incident: Incident, *, size: JobSize, prices: Prices, now: datetime) -> IncidentLedger:
    """The ledger of an Incident as it stands; one that is open counts to `now`."""
    account = incident.account
    until = incident.closed_at or now
    onset = onset_of(account)
    stages = stages_of(account, onset, until)
    lost = lost_time(incident, onset, tuple((stage.name, stage.at, stage.seconds) for stage in stages), until)
    hourly = prices.per_hour(size)
    saved = steps_saved(incident)
    saved_s = step_seconds(saved, account.step_s)
    other = otherwise(incident, lost=lost.seconds, size=size, hourly=hourly)
    return IncidentLedger(
        incident=incident,
        size=size,
        until=until,
        onset_at=onset,
        mttd_s=_mttd(incident, onset),
        mttr_s=_mttr(incident, onset),
        elapsed_s=_since(onset, until),
        stages=stages,
        steps_lost=steps_lost(incident),
        steps_saved=saved,
        lost=lost,
        gpu_hours_lost=hours(lost.seconds, size.gpus),
        gpu_hours_saved=hours(saved_s, size.gpus),
        dollars_lost=hours(lost.seconds, hourly),
        dollars_saved=hours(saved_s, hourly),
        otherwise=other,
        assumptions=(
            *lost.assumptions,
            "A GPU counts as lost while no attempt holds it, too, as it does on reserved capacity.",
            f"Prices: {prices.source}{f', as of {prices.as_of}' if prices.as_of else ''}.",
        ),
    )


def onset_of(account: Account) -> Maybe[datetime]:
    """When the fault began; Unknown where it is reported after the first observation, by a clock that is not ours."""
    onset = account.onset_at
    if isinstance(onset, Known) and account.looked_at is not None and onset.value > account.looked_at:
        ahead = (onset.value - account.looked_at).total_seconds()
        return Unknown(
            f"it is reported to have begun {ahead:.0f} s after the first observation: that clock is not ours"
        )
    return onset


def stages_of(account: Account, onset: Maybe[datetime], until: datetime) -> tuple[Stage, ...]:
    """Stages without a gap, from the onset (else the first observation) to `until`. Terminal phases are no stages."""
    if account.looked_at is None:
        return ()
    marks = [(DETECT, onset.value)] if isinstance(onset, Known) else []
    entered = list(account.entered)
    if account.entered_before:
        marks.append((EARLIER, account.looked_at))
    elif entered:  # the first look decides at once: what it left is what it was in
        marks.append((entered[0].phase, account.looked_at))
        entered = entered[1:]
    marks += [(entry.phase, entry.at) for entry in entered]
    ends = [at for _, at in marks[1:]] + [until]
    stages = [
        Stage(name=name, at=at, seconds=max(0.0, (end - at).total_seconds()))
        for (name, at), end in zip(marks, ends, strict=True)
    ]
    closed = {phase.value for phase in Phase if phase.is_terminal}
    return tuple(stage for stage in stages if stage.name not in closed)


def _mttd(incident: Incident, onset: Maybe[datetime]) -> Maybe[float]:
    if incident.fault is FaultClass.OPERATOR_ORDER:
        return Unknown("a person ordered it: nothing had to be detected")
    if incident.account.looked_at is None:
        return Unknown("no observation yet")
    return _since(onset, incident.account.looked_at)


def _mttr(incident: Incident, onset: Maybe[datetime]) -> Maybe[float]:
    if incident.closed_at is None:
        return Unknown("it is still open")
    if incident.phase is not Phase.RECOVERED:
        return Unknown(f"it was not recovered: {ENDS[incident.phase]}")
    return _since(onset, incident.closed_at)


def _since(onset: Maybe[datetime], moment: datetime) -> Maybe[float]:
    if isinstance(onset, Unknown):
        return onset
    return Known((moment - onset.value).total_seconds())


def steps_saved(incident: Incident) -> Maybe[int]:
    """Steps that emergency checkpoints kept: for each restart, its resume step minus the periodic checkpoint's."""
    if not incident.account.restarts:
        return nothing_restarted(incident)
    total = 0
    for restart in incident.account.restarts:
        saved = _saved_by(restart, incident)
        if isinstance(saved, Unknown):
            return saved
        total += saved.value
    return Known(total)


def _saved_by(restart: Restart, incident: Incident) -> Maybe[int]:
    if restart.kind and restart.kind != SaveKind.EMERGENCY:
        return Known(0)
    if not restart.kind:
        if incident.halt.asks == 0:
            return Known(0)  # no emergency checkpoint was asked for
        return Unknown(f"which checkpoint {restart.name} continued from is not known")
    if isinstance(restart.resume_step, Unknown):
        return Unknown(f"where {restart.name} continued is not known: {restart.resume_step.why}")
    if isinstance(restart.periodic_step, Unknown):
        return Unknown(f"where {restart.name} would have resumed otherwise is not known: {restart.periodic_step.why}")
    return Known(max(0, restart.resume_step.value - restart.periodic_step.value))


def step_seconds(count: Maybe[int], seconds: Maybe[float]) -> Maybe[float]:
    """How long `count` steps of `seconds` each take; zero steps take no time, also where `seconds` is Unknown."""
    if isinstance(count, Unknown):
        return count
    if count.value == 0:
        return Known(0.0)
    return seconds if isinstance(seconds, Unknown) else Known(count.value * seconds.value)


def hours(seconds: Maybe[float], per_hour: Maybe[int] | Maybe[float]) -> Maybe[float]:
    """`seconds` in hours times `per_hour` (GPUs, USD); zero where no time passed, also where `per_hour` is Unknown."""
    if isinstance(seconds, Unknown):
        return seconds
    if seconds.value == 0:
        return Known(0.0)
    return per_hour if isinstance(per_hour, Unknown) else Known(seconds.value / HOUR_S * per_hour.value)


def quantity_json(quantity: Maybe[Any]) -> Any:
    """A number, or `{"unknown": why}`."""
    return _round(quantity.value) if isinstance(quantity, Known) else {"unknown": quantity.why}


def spared_json(spared: Maybe[Spared]) -> Any:
    """A range, or `{"unknown": why}`."""
    return spared.value.to_wire() if isinstance(spared, Known) else {"unknown": spared.why}


def _baseline(baseline: Baseline) -> dict[str, Any]:
    return {
        "waiting_s": quantity_json(baseline.waiting_s),
        "lost_s": quantity_json(baseline.lost_s),
        "gpu_hours_lost": quantity_json(baseline.gpu_hours),
        "dollars_lost": quantity_json(baseline.dollars),
    }


def _round(value: float) -> float:
    """To a thousandth: below that it is noise."""
    return round(value, 3) if isinstance(value, float) else value
