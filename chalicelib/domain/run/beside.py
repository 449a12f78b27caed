"""Attempts that others have started beside a Job's own: the Signal of one that lives, and their names. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from rekindle.protocol.signals import FaultClass

BESIDE: Final = "beside"  # in the evidence of the Signal: the other attempt
MAX_BESIDE: Final = 5  # each costs a description


def beside_names(signals: Iterable[Signal], *, besides: str | None) -> tuple[str, ...]:
    """The attempts that were seen to live beside the current one, the newest first (SignalKind.TWO_LIVE)."""
    found = [signal.evidence.get(BESIDE) for signal in signals if signal.kind is SignalKind.TWO_LIVE]
    names = dict.fromkeys(name for name in reversed(found) if isinstance(name, str) and name != besides)
    return tuple(names)[:MAX_BESIDE]


def failed_beside(incident: Incident) -> tuple[str, ...]:
    """Those that failed since the newest order to stop the run came, and none of the Incident's own: it alone has heard
    of that.
    """
    own = {incident.attempt, *(name for item in incident.resubmission.tries for name in (item.name, item.clone_of))}
    orders = [signal.occurred_at for signal in incident.signals if signal.kind is SignalKind.ORDER_STOP]
    ordered_at = max(orders, default=incident.opened_at)
    failed = (
        signal.attempt
        for signal in incident.signals
        if signal.kind is SignalKind.ATTEMPT_STATE and signal.fault is not None and signal.occurred_at > ordered_at
    )
    return tuple(dict.fromkeys(name for name in failed if name is not None and name not in own))[:MAX_BESIDE]


def two_live_signal(job: Job, name: str, *, now: datetime) -> Signal:
    """`name` lives beside the Job's current attempt."""
    return Signal(
        kind=SignalKind.TWO_LIVE,
        source=SignalSource.SWEEP,
        occurred_at=now,
        dedupe_key=f"two-live:{job.current_attempt}:{name}"[:200],
        summary=f"{name}, which others have started, lives beside {job.current_attempt}",
        job_id=job.job_id,
        attempt=job.current_attempt,
        fault=FaultClass.TWO_LIVE,
        evidence={BESIDE: name},
    )
