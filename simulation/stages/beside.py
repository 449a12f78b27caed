"""A second stage of Rekindle in the same account: the same real service once more, with tables and a bucket of its own.

It gets every event of AWS and looks once a minute, as ours does; ours alone gets what monitors and agents push, which
goes to one stage's bus. What it does to a run goes through the same platform, and counts as the service's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from chalicelib.domain.guards.stages import TAG_STAGE
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.policy.document import Policy
from localcloud.aws.clock import Clock
from localcloud.memory_tables import MemoryJobs
from simulation.runs.memory import Incidents, Tables
from simulation.stages.service import STAGE, RealService
from simulation.stories.source_faults import SourceFaults

DEV: Final = "dev"
DEV_STACK: Final = f"{STAGE}-{DEV}"
BESIDE_BUCKET: Final = "mail-beside"


def own_stage(kinds: frozenset[str]) -> str:
    """The stack's name of the stage that the runs belong to, by the story's source faults."""
    return DEV_STACK if "prod_beside" in kinds else STAGE


def own_tags(kinds: frozenset[str]) -> dict[str, str]:
    """The tags that assign a run to our stage; none for prod, the stage of runs without a stage tag."""
    return {TAG_STAGE: DEV} if "prod_beside" in kinds else {}


def other_tags(kinds: frozenset[str]) -> dict[str, str]:
    """What makes a run the other stage's."""
    return {TAG_STAGE: "prod" if "prod_beside" in kinds else DEV}


class StageBeside(RealService):
    """`kinds`: the story's faults about stages. `recorded` is called with an Incident before and after a write."""

    def __init__(
        self,
        kinds: frozenset[str],
        *,
        clock: Clock,
        source_faults: SourceFaults,
        clients: Mapping[str, Any],
        people: Any,
        policy: Policy,
        recorded: Callable[[Incident | None, Incident], None],
    ) -> None:
        jobs = MemoryJobs()
        super().__init__(
            clock=clock,
            source_faults=source_faults,
            clients=clients,
            tables=Tables(Incidents(jobs, check=source_faults.check_tables, moved=recorded), jobs),
            people=people,
            policy=policy,
            stage=STAGE if "prod_beside" in kinds else DEV_STACK,
            bucket=BESIDE_BUCKET,
        )

    def take(self, event: dict[str, Any]) -> None:
        """An event of AWS's. May raise what `ingress` raises."""
        if str(event["source"]).startswith("aws."):
            self.ingress.take("event", event)
