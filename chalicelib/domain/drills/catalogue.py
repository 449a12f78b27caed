"""Drills: which faults can be rehearsed on a running Job, and how long its earlier recoveries took. Pure.

`world` holds the assumed world of a drill; services/operator/drills plays one, for `rekindle drill` and the API.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from chalicelib.domain.fault_specs.faults import FAULTS
from chalicelib.domain.fault_specs.spec import Drill, Effect
from chalicelib.domain.model.errors import InvalidRequest
from chalicelib.domain.model.incident import Phase, TimelineEntry
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from rekindle.protocol.signals import FaultClass


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillRow(Drill):
    """One fault that can be rehearsed, and how (chalicelib/domain/fault_specs)."""

    fault: FaultClass

    @property
    def signal_fault(self) -> FaultClass:
        """The fault that the Signal names."""
        return self.reported_as or self.fault


def _row(fault: FaultClass, drill: Drill) -> DrillRow:
    return DrillRow(fault=fault, **{field.name: getattr(drill, field.name) for field in fields(Drill)})


DRILLS: Final[tuple[DrillRow, ...]] = tuple(_row(spec.fault, spec.drill) for spec in FAULTS if spec.drill is not None)

_DRILLABLE: Final = {row.fault.value: row for row in DRILLS}


def drill_for(fault: str) -> DrillRow:
    """The row of `fault`.

    Raises:
        InvalidRequest: no such fault, or none that befalls a run (an operator's order is given, not rehearsed).
    """
    row = _DRILLABLE.get(fault)
    if row is None:
        raise InvalidRequest("fault", f"must be one of {', '.join(sorted(_DRILLABLE))}")
    return row


def signal_of(row: DrillRow, job: Job, view: AttemptView | None, *, drill_id: str, now: datetime) -> Signal:
    """The Signal that would report the fault. It is given to decide() and goes nowhere else."""
    kind, source = row.kind, row.by
    if job.cluster and kind is SignalKind.ATTEMPT_STATE:
        source = SignalSource.AGENT
    evidence: dict[str, Any] = {"drill_id": drill_id}
    step = view.last_step if view is not None else Unknown("not read")
    if isinstance(step, Known) and row.effect in (Effect.FREEZES, Effect.NAN, Effect.SPIKES, Effect.DIVERGES):
        evidence |= {"step": step.value, "onset_step": step.value}
    start = view.start if view is not None else None
    return Signal(
        kind=kind,
        source=source,
        occurred_at=now,
        dedupe_key=f"drill:{drill_id}"[:200],
        summary=f"drill: {row.text}",
        job_id=job.job_id,
        attempt=job.current_attempt,
        cluster=job.cluster if start is not None else None,
        node=start.nodes[0] if start is not None and start.nodes and row.names_node else None,
        fault=row.signal_fault,
        evidence=evidence,
    )


# --- how long recoveries took ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """The median times of this Job's own recoveries, in seconds; Unknown where none has gone through that stage."""

    save_s: Maybe[float]
    stop_s: Maybe[float]
    start_s: Maybe[float]
    recoveries: int = 0


def measured(timelines: Sequence[Sequence[TimelineEntry]]) -> StageTimes:
    """The median of each stage over earlier Incidents of the Job."""
    saves, stops, starts = [], [], []
    for entries in timelines:
        saves += _spans(entries, Phase.CHECKPOINTING, ended_by="checkpoint.saved")
        stops += _spans(entries, Phase.STOPPING)
        starts += _starts(entries)
    return StageTimes(
        save_s=_median(saves, "no earlier recovery of this Job has saved a checkpoint"),
        stop_s=_median(stops, "no earlier recovery has stopped this Job"),
        start_s=_median(starts, "no earlier recovery has started this Job"),
        recoveries=sum(1 for entries in timelines if entries),
    )


def _spans(entries: Sequence[TimelineEntry], phase: Phase, *, ended_by: str | None = None) -> list[float]:
    """How long each stay in `phase` took; with `ended_by` only those that this rule ended."""
    spans: list[float] = []
    began: datetime | None = None
    for entry in entries:
        if entry.phase is phase:
            began = began or entry.at
        elif began is not None:
            if ended_by in (None, entry.rule):
                spans.append((entry.at - began).total_seconds())
            began = None
    return spans


def _starts(entries: Sequence[TimelineEntry]) -> list[float]:
    """From the order that started an attempt to the first observation that saw it train."""
    spans: list[float] = []
    ordered_at: datetime | None = None
    for entry in entries:
        if "ResubmitJob" in entry.actions:
            ordered_at = ordered_at or entry.at
            continue
        seen = entry.facts.get("attempt")
        trains = isinstance(seen, dict) and seen.get("status") == "running"
        if ordered_at is not None and trains and entry.phase in (Phase.VERIFYING, Phase.RECOVERED):
            spans.append((entry.at - ordered_at).total_seconds())
            ordered_at = None
    return spans


def _median(values: Sequence[float], why: str) -> Maybe[float]:
    from statistics import median  # a cold start of the API does without

    return Known(float(median(values))) if values else Unknown(why)
