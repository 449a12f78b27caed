"""Incidents as their accounts leave them, for tests of the ledger's formulas."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from chalicelib.domain.model.account import Account, PhaseEntry, Restart
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.ledger import IncidentLedger, ledger_of
from chalicelib.domain.reporting.prices import Prices
from rekindle.protocol.signals import FaultClass

T0 = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
POD = JobSize.of_instances((("ml.p5.48xlarge", 4),))  # 32 GPUs
PRICES = Prices(instances={"p5.48xlarge": 50.0}, source="the test")  # 200 USD an hour for the pod


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def restart(
    number: int = 2,
    *,
    furthest: Maybe[int] = Known(1000),
    resume: Maybe[int] = Known(900),
    kind: str = "periodic",
    periodic: Maybe[int] = Known(900),
    ended: float | None = None,
) -> Restart:
    return Restart(
        number=number,
        name=f"lm-r{number}",
        after="lm" if number == 2 else f"lm-r{number - 1}",
        furthest=furthest,
        ended_at=None if ended is None else at(ended),
        resume_step=resume,
        kind=kind,
        periodic_step=periodic,
    )


def incident(
    *,
    fault: FaultClass = FaultClass.SOFTWARE_CRASH,
    phases: Sequence[tuple[Phase, float]] = ((Phase.RESUBMITTING, 60), (Phase.VERIFYING, 90), (Phase.RECOVERED, 660)),
    onset: Maybe[float] = Known(0.0),
    restarts: Sequence[Restart] = (restart(),),
    step_s: Maybe[float] = Known(2.0),
    closed_step: Maybe[int] = Known(1000),
    **more: Any,
) -> Incident:
    """By default: a crash at T0, seen after a minute, over after eleven, exactly where the old run had ended."""
    last, closed_at = phases[-1]
    account = Account(
        onset_at=Known(at(onset.value)) if isinstance(onset, Known) else onset,
        onset_from="the test",
        looked_at=at(phases[0][1]),
        entered=tuple(PhaseEntry(phase=phase.value, at=at(seconds)) for phase, seconds in phases),
        restarts=tuple(restarts),
        step_s=step_s,
        closed_step=closed_step,
    )
    made: dict[str, Any] = {
        "incident_id": "inc-lm-1",
        "job_id": "lm",
        "cluster": None,
        "opened_at": at(50),
        "phase": last,
        "phase_entered_at": at(closed_at),
        "fault": fault,
        "attempt": "lm-r2" if restarts else "lm",
        "outcome": "verify.passed",
        "closed_at": at(closed_at) if last.is_terminal else None,
        "account": account,
    }
    return Incident(**made).changed(**more)


def ledger(one: Incident, *, size: JobSize = POD, prices: Prices = PRICES, now: float = 5000) -> IncidentLedger:
    return ledger_of(one, size=size, prices=prices, now=at(now))


UNKNOWN = Unknown("the test does not say")
