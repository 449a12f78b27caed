"""What a service call did: one value, from which the log line and the metrics are projected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

# Facts of a closed Incident that are numbers; what is not known has none, so that no metric ever says zero for it.
MTTD_S: Final = "mttd_s"
MTTR_S: Final = "mttr_s"
GPU_HOURS_LOST: Final = "gpu_hours_lost"
GPU_HOURS_SAVED: Final = "gpu_hours_saved"


class OutcomeKind(StrEnum):
    """How a call ended; low-cardinality, a metric dimension."""

    OPENED = "opened"
    JOINED = "joined"
    OVERFLOWED = "overflowed"  # woke its Incident, whose inbox had no room to keep it
    DUPLICATE = "duplicate"
    DROPPED = "dropped"
    QUARANTINED = "quarantined"
    REGISTERED = "registered"
    SWEPT = "swept"
    DECIDED = "decided"
    CLOSED = "closed"
    ROUTED = "routed"  # a notice, to its channels
    DELIVERED = "delivered"
    POSTPONED = "postponed"  # a delivery that failed, and comes again
    UNDELIVERED = "undelivered"  # one that was given up
    SWITCHED = "switched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One outcome. `reason` is a stable word group; `facts` are small and safe to log."""

    what: OutcomeKind
    reason: str = ""
    incident_id: str | None = None
    job_id: str | None = None
    signal: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
