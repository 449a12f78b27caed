"""What is measured when an Incident has closed: one Outcome, from which the metrics are projected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Known
from chalicelib.domain.reporting.ledger import ledger_of
from chalicelib.domain.reporting.prices import NO_PRICES
from chalicelib.services.reporting.outcome import GPU_HOURS_LOST, GPU_HOURS_SAVED, MTTD_S, MTTR_S, Outcome, OutcomeKind

if TYPE_CHECKING:
    from chalicelib.domain.model.incident import Incident
    from chalicelib.domain.model.known import Maybe
    from chalicelib.ports.clock import Clock


def closed(incident: Incident, *, gpus: Maybe[int], clock: Clock) -> Outcome:
    """The Outcome of an Incident that has just closed. `gpus`: how big its run is, by the last observation."""
    ledger = ledger_of(incident, size=JobSize(gpus=gpus), prices=NO_PRICES, now=clock.now())
    figures = {
        MTTD_S: ledger.mttd_s,
        MTTR_S: ledger.mttr_s,
        GPU_HOURS_LOST: ledger.gpu_hours_lost,
        GPU_HOURS_SAVED: ledger.gpu_hours_saved,
    }
    return Outcome(
        what=OutcomeKind.CLOSED,
        reason=incident.outcome,
        incident_id=incident.incident_id,
        job_id=incident.job_id,
        facts={
            "fault": incident.fault.value,
            "phase": incident.phase.value,
            **{name: round(value.value, 3) for name, value in figures.items() if isinstance(value, Known)},
        },
    )
