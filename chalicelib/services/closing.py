"""What is measured when an Incident has closed: one Outcome, from which the metrics are projected."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.incidents import Incident
from chalicelib.domain.instances import JobSize
from chalicelib.domain.known import Known, Maybe
from chalicelib.domain.ledger import ledger_of
from chalicelib.domain.prices import Prices
from chalicelib.ports import Clock
from chalicelib.services.outcome import Outcome, What

# Names of the facts that are numbers; what is not known has none, so that no metric ever says zero for it.
MTTD_S: Final = "mttd_s"
MTTR_S: Final = "mttr_s"
GPU_HOURS_LOST: Final = "gpu_hours_lost"
GPU_HOURS_SAVED: Final = "gpu_hours_saved"


def closed(incident: Incident, *, gpus: Maybe[int], clock: Clock) -> Outcome:
    """The Outcome of an Incident that has just closed. `gpus`: how big its run is, as the last look saw it."""
    ledger = ledger_of(incident, size=JobSize(gpus=gpus), prices=Prices(instances={}), now=clock.now())
    figures = {
        MTTD_S: ledger.mttd_s,
        MTTR_S: ledger.mttr_s,
        GPU_HOURS_LOST: ledger.gpu_hours_lost,
        GPU_HOURS_SAVED: ledger.gpu_hours_saved,
    }
    return Outcome(
        what=What.CLOSED,
        reason=incident.outcome,
        incident_id=incident.incident_id,
        job_id=incident.job_id,
        facts={
            "fault": incident.fault.value,
            "phase": incident.phase.value,
            **{name: round(one.value, 3) for name, one in figures.items() if isinstance(one, Known)},
        },
    )
