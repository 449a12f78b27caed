"""The switches that people set, and the breaker that trips by itself: what is true for every Incident at once. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class ShadowScope(StrEnum):
    """What a shadow switch is about."""

    EVERYWHERE = "everywhere"
    JOB = "job"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """The fleet-wide breaker. Open from `tripped_at` until a person lifts it; `lifted_at` is when that was done last.

    `incident_id` is the Incident whose Action would have been one too many, `said` in words what was counted.
    """

    tripped_at: datetime | None = None
    incident_id: str = ""
    said: str = ""
    lifted_at: datetime | None = None
    lifted_by: str = ""

    @property
    def is_open(self) -> bool:
        """It holds everything."""
        if self.tripped_at is None:
            return False
        return self.lifted_at is None or self.lifted_at < self.tripped_at

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "open": self.is_open,
            "tripped_at": _at(self.tripped_at),
            "incident_id": self.incident_id,
            "said": self.said,
            "lifted_at": _at(self.lifted_at),
            "lifted_by": self.lifted_by,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Breaker:
        """Inverse of `to_wire`."""
        return cls(
            tripped_at=_from_at(wire["tripped_at"]),
            incident_id=wire["incident_id"],
            said=wire["said"],
            lifted_at=_from_at(wire["lifted_at"]),
            lifted_by=wire["lifted_by"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Everything that people, or the breaker, have switched. `jobs`, `clusters`: those in shadow mode."""

    paused: bool = False
    paused_by: str = ""
    paused_at: datetime | None = None
    paused_why: str = ""
    everywhere: bool = False
    jobs: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    shadow_by: str = ""
    shadow_at: datetime | None = None
    breaker: Breaker = Breaker()

    def shadow_of(self, *, job_id: str | None, cluster: str | None) -> str:
        """Which switch puts a run or a node of `cluster` into shadow mode, in words; empty: none does."""
        if self.everywhere:
            return "everywhere"
        if job_id is not None and job_id in self.jobs:
            return f"for job {job_id}"
        if cluster and cluster in self.clusters:
            return f"for cluster {cluster}"
        return ""

    def to_wire(self) -> dict[str, Any]:
        """JSON form, for people and programs."""
        return {
            "paused": self.paused,
            "paused_by": self.paused_by,
            "paused_at": _at(self.paused_at),
            "paused_why": self.paused_why,
            "shadow": {
                "everywhere": self.everywhere,
                "jobs": list(self.jobs),
                "clusters": list(self.clusters),
                "changed_by": self.shadow_by,
                "changed_at": _at(self.shadow_at),
            },
            "breaker": self.breaker.to_wire(),
        }


def _at(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def _from_at(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
