"""An attempt that has ended, as its platform describes it, as the Signal of that end. Pure: no ports, no clock."""

from __future__ import annotations

from datetime import datetime

from chalicelib.domain.faults.failure_reasons import failure_of
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource, ended_job_key
from rekindle.protocol.cluster.documents import EndedBy
from rekindle.protocol.signals import FaultClass


def signal_from_state(job_id: str | None, view: AttemptView, *, now: datetime) -> Signal | None:
    """The Signal that the platform's own event would have been, had it arrived; None while the run is well.

    The dedupe key is that of the event, so event and sweep count as one fact.
    """
    if not view.status.has_ended:
        return None
    status, fault = _ended(view)
    successor = {"successor": view.successor} if view.successor is not None else {}  # put back: it goes on by itself
    if view.start is not None and successor:
        fault = FaultClass.NODE_LOST if view.start.lost_node else None
    return Signal(
        kind=SignalKind.ATTEMPT_STATE,
        source=SignalSource.SWEEP,
        occurred_at=view.ended_at or now,
        dedupe_key=ended_job_key(view.name, status),
        summary=f"{view.name} is {status}: {view.failure_reason or view.detail}"[:400],
        job_id=job_id,
        attempt=view.name,
        fault=fault,
        triggers=fault is not None,
        evidence={"status": status, "failure_reason": view.failure_reason[:1024], "found_by": "sweep"} | successor,
    )


def _ended(view: AttemptView) -> tuple[str, FaultClass | None]:
    match view.status:
        case AttemptStatus.FAILED:
            return "Failed", failure_of(view).fault
        case AttemptStatus.EXPIRED:
            return "Stopped", FaultClass.PLANNED_END
        case AttemptStatus.GONE:
            return "Gone", FaultClass.JOB_MISSING
        case AttemptStatus.COMPLETED:
            return "Completed", None
        case AttemptStatus.STOPPED if view.start is not None and view.start.ended_by is EndedBy.ADMIN:
            return "Stopped", FaultClass.UNCLEAR
        case _:
            return "Stopped", None
