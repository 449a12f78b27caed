"""Rehearsals: which faults can be played on a living run, and what each is assumed to do to it.

Data and pure functions; the assumed world is in `world`, the play itself in services/operator/drills.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from chalicelib.domain.fault_specs.faults import FAULTS
from chalicelib.domain.fault_specs.spec import Drill, Effect
from chalicelib.domain.model.errors import InvalidRequest
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
        """What the Signal suggests."""
        return self.reported_as or self.fault


def _row(fault: FaultClass, drill: Drill) -> DrillRow:
    return DrillRow(fault=fault, **{field.name: getattr(drill, field.name) for field in fields(Drill)})


DRILLS: tuple[DrillRow, ...] = tuple(_row(spec.fault, spec.drill) for spec in FAULTS if spec.drill is not None)

_DRILLABLE = {row.fault.value: row for row in DRILLS}


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
    """The Signal that would tell of the fault. It is shown to decide() and goes nowhere else."""
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


# --- how long it took before ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How long this Job's own recoveries took, in seconds; Unknown where none has gone through that stage."""

    save_s: Maybe[float]
    stop_s: Maybe[float]
    start_s: Maybe[float]
    recoveries: int = 0
