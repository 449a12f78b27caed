"""The switches that people set, and the breaker that trips automatically: what holds for all Incidents. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from chalicelib.domain.model.codec import Record


class ShadowScope(StrEnum):
    """What a shadow switch is about."""

    EVERYWHERE = "everywhere"
    JOB = "job"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker(Record):
    """The fleet-wide breaker. Open from `tripped_at` until a person lifts it; `lifted_at` is when that was done last.

    `incident_id` is the Incident whose Action would have been one too many, `text` in words what was counted.
    """

    tripped_at: datetime | None = None
    incident_id: str = ""
    text: str = ""
    lifted_at: datetime | None = None
    lifted_by: str = ""

    @property
    def is_open(self) -> bool:
        """It holds everything."""
        if self.tripped_at is None:
            return False
        return self.lifted_at is None or self.lifted_at < self.tripped_at


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

    def shadow_scopes(self, *, job_id: str | None, cluster: str | None) -> tuple[ShadowScope, ...]:
        """Every switch that puts a run or a node of `cluster` into shadow mode."""
        on = {
            ShadowScope.EVERYWHERE: self.everywhere,
            ShadowScope.JOB: job_id in self.jobs,
            ShadowScope.CLUSTER: bool(cluster) and cluster in self.clusters,
        }
        return tuple(scope for scope, is_on in on.items() if is_on)

    def to_wire(self) -> dict[str, Any]:
        """JSON form, for people and programs. By hand: it is not stored (DynamoDB holds a switch in an attribute of its
        own), and `open` is computed.
        """
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
            "breaker": {"open": self.breaker.is_open, **self.breaker.to_wire(defaults=True)},
        }


def _at(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None
