"""From a raw event to an Incident."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from chalicelib.bootstrap.reporting import ReportingParts

if TYPE_CHECKING:
    from chalicelib.ingress import Ingress
    from chalicelib.services.intake.intake import Intake


class EventParts(ReportingParts):
    """What the event handlers use."""

    @cached_property
    def intake(self) -> Intake:
        from chalicelib.services.intake.intake import Intake

        return Intake(
            store=self.store,
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            clusters=self.clusters,
            executions=self.executions,
            clock=self.clock,
            head_nodes=self.head_nodes,
            announcer=self.announcer,
        )

    @cached_property
    def ingress(self) -> Ingress:
        from chalicelib.ingress import Ingress

        return Ingress(
            intake=self.intake,
            alarms=self.alarms,
            clusters=self.clusters,
            quarantine=self.quarantine,
            clock=self.clock,
            report=self.observability.record,
            account=self.settings.account,
        )

    @property
    def redriver(self) -> Ingress:
        """Feeds quarantined events in again."""
        return self.ingress
