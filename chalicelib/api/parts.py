"""What the routes use: the composition root's parts, each made when the first route asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from chalicelib.aws.sqs.undelivered import SqsUndelivered
    from chalicelib.ports.clock import Clock
    from chalicelib.ports.incidents import IncidentStore, Listings
    from chalicelib.ports.jobs import JobRegistry
    from chalicelib.ports.notices import IncidentPages
    from chalicelib.ports.operator import AnswerMemory
    from chalicelib.ports.sweep import Quarantine
    from chalicelib.services.operator.approvals import Approvals
    from chalicelib.services.operator.clusters import Clusters
    from chalicelib.services.operator.drills import Drills
    from chalicelib.services.operator.holds import Holds
    from chalicelib.services.operator.orders import Orders
    from chalicelib.services.operator.policy_documents import PolicyDocuments
    from chalicelib.services.operator.switches import Switches
    from chalicelib.services.reporting.curves import Curves
    from chalicelib.services.reporting.hardware_ledger import HardwareLedgers
    from chalicelib.services.reporting.ledgers import Ledgers
    from chalicelib.services.reporting.outcome import Outcome


class Redriver(Protocol):
    """Feeds quarantined events in again (ingress.py, which lies on this floor)."""

    def redrive(self, *, limit: int) -> dict[str, int]: ...


class Parts(Protocol):
    """bootstrap.Service has all of these; a route's cold start makes only what that route touches."""

    @property
    def stage(self) -> str: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def store(self) -> IncidentStore: ...

    @property
    def registry(self) -> JobRegistry: ...

    @property
    def page_store(self) -> IncidentPages: ...

    @property
    def listings(self) -> Listings: ...

    @property
    def answers(self) -> AnswerMemory: ...

    @property
    def orders(self) -> Orders: ...

    @property
    def ingress(self) -> Redriver: ...

    @property
    def quarantine(self) -> Quarantine: ...

    @property
    def undelivered(self) -> SqsUndelivered: ...

    @property
    def slurm_clusters(self) -> Clusters: ...

    @property
    def policy_documents(self) -> PolicyDocuments: ...

    @property
    def approvals(self) -> Approvals: ...

    @property
    def switches(self) -> Switches: ...

    @property
    def holds(self) -> Holds: ...

    @property
    def curves(self) -> Curves: ...

    @property
    def ledgers(self) -> Ledgers: ...

    @property
    def drills(self) -> Drills: ...

    @property
    def hardware_ledgers(self) -> HardwareLedgers: ...

    @property
    def report(self) -> Callable[[Outcome], None]: ...
