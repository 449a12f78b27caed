"""A second stage of Rekindle in the same account: the same real service once more, with tables and a bucket of its own.

It gets every event of AWS and looks once a minute, as ours does; ours alone gets what monitors and agents push, which
goes to one stage's bus. What it does to a run goes through the same platform, and counts as the service's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from chalicelib.domain.incidents import Incident
from chalicelib.domain.stages import TAG_STAGE
from localcloud.memory_tables import MemoryJobs
from simulation.memory import Incidents, Tables
from simulation.service import STAGE, RealService

if TYPE_CHECKING:
    from simulation.world import World

DEV: Final = "dev"
DEV_STACK: Final = f"{STAGE}-{DEV}"
BESIDE_BUCKET: Final = "mail-beside"


def own_stage(kinds: frozenset[str]) -> str:
    """The stack's name of the stage that the runs belong to, by the story's lies."""
    return DEV_STACK if "prod_beside" in kinds else STAGE


def own_tags(kinds: frozenset[str]) -> dict[str, str]:
    """What a run of ours carries so that it belongs to our stage: prod is whoever carries nothing."""
    return {TAG_STAGE: DEV} if "prod_beside" in kinds else {}


def other_tags(kinds: frozenset[str]) -> dict[str, str]:
    """What makes a run the other stage's."""
    return {TAG_STAGE: "prod" if "prod_beside" in kinds else DEV}


class StageBeside(RealService):
    """`world` is the one in which it stands."""

    def __init__(self, world: World, kinds: frozenset[str]) -> None:
        jobs = MemoryJobs()
        self._world = world
        super().__init__(
            clock=world.sim,
            lies=world.lies,
            clients=world.aws_clients(),
            tables=Tables(Incidents(jobs, check=world.lies.check_tables, moved=self._incident_moves), jobs),
            people=world.people,
            policy=world.policy,
            stage=STAGE if "prod_beside" in kinds else DEV_STACK,
            bucket=BESIDE_BUCKET,
        )

    def take(self, event: dict[str, Any]) -> None:
        """An event of AWS's. May raise what `ingress` raises."""
        if str(event["source"]).startswith("aws."):
            self.ingress.take("event", event)

    def _incident_moves(self, before: Incident | None, after: Incident) -> None:
        self._world.watcher.recorded(before, after)
