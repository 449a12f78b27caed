"""What is measured when an Incident has closed: one Outcome, from which the metrics are projected."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.errors import RecoveryError
from chalicelib.domain.incidents import Incident
from chalicelib.domain.instances import JobSize
from chalicelib.domain.known import Known, Unknown
from chalicelib.domain.ledger import ledger_of
from chalicelib.domain.prices import Prices
from chalicelib.ports import Clock, JobRegistry
from chalicelib.services.outcome import Outcome, What

# Names of the facts that are numbers; what is not known has none, so that no metric ever says zero for it.
MTTD_S: Final = "mttd_s"
MTTR_S: Final = "mttr_s"
GPU_HOURS_LOST: Final = "gpu_hours_lost"
GPU_HOURS_SAVED: Final = "gpu_hours_saved"


def closed(incident: Incident, *, registry: JobRegistry, clock: Clock) -> Outcome:
    """The Outcome of an Incident that has just closed. Reads the Job's size, nothing else."""
    ledger = ledger_of(incident, size=_size(incident, registry), prices=Prices(instances={}), now=clock.now())
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


def _size(incident: Incident, registry: JobRegistry) -> JobSize:
    if incident.job_id is None:
        return JobSize(gpus=Unknown("it is about no run"))
    try:
        return registry.get(incident.job_id).size
    except RecoveryError as err:  # a metric is not worth a recovery's step
        return JobSize(gpus=Unknown(f"its Job cannot be read: {err}"[:200]))
