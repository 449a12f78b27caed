"""What is reported about Incidents and runs: ledgers, curves, pages, alarms."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from chalicelib.bootstrap.platforms import PlatformParts

if TYPE_CHECKING:
    from chalicelib.domain.model.incident import Incident
    from chalicelib.domain.reporting.ledger import IncidentLedger
    from chalicelib.services.reporting.alarms import Alarms
    from chalicelib.services.reporting.curves import Curves
    from chalicelib.services.reporting.hardware_ledger import HardwareLedgers
    from chalicelib.services.reporting.ledgers import Ledgers
    from chalicelib.services.reporting.pages import Pages
    from chalicelib.services.reporting.traces import Traces


class ReportingParts(PlatformParts):
    """The services that report."""

    @cached_property
    def alarms(self) -> Alarms:
        """Keeps the alarms, and weighs what they say."""
        from chalicelib.services.reporting.alarms import Alarms

        return Alarms(
            board=self.board,
            registry=self.registry,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            clock=self.clock,
        )

    @cached_property
    def hardware_ledgers(self) -> HardwareLedgers:
        from chalicelib.services.reporting.hardware_ledger import HardwareLedgers

        return HardwareLedgers(ledger=self.hardware_ledger, clock=self.clock)

    @cached_property
    def curves(self) -> Curves:
        from chalicelib.services.reporting.curves import Curves

        return Curves(registry=self.registry, metrics=self.metrics, clock=self.clock)

    @cached_property
    def ledgers(self) -> Ledgers:
        from chalicelib.services.reporting.ledgers import Ledgers

        return Ledgers(
            store=self.store,
            registry=self.registry,
            listings=self.listings,
            scheduler=self.scheduler,
            mailbox=self.mailbox,
            prices=self.prices,
            clock=self.clock,
        )

    def ledger_of_one(self, incident: Incident) -> IncidentLedger:
        """What one Incident took and cost; for functions that see neither platforms nor mailboxes."""
        from chalicelib.services.reporting.ledgers import of_one

        return of_one(incident, registry=self.registry, prices=self.prices, clock=self.clock)

    @cached_property
    def pages(self) -> Pages:
        from chalicelib.services.reporting.losses import Losses
        from chalicelib.services.reporting.pages import Pages

        return Pages(
            store=self.store,
            registry=self.registry,
            prices=self.prices,
            pages=self.page_shelf,
            clock=self.clock,
            region=self.settings.region,
            within=self.clients.deadline.within,
            losses=Losses(curves=self.curves),
        )

    @cached_property
    def traces(self) -> Traces:
        from chalicelib.services.reporting.traces import Traces, resource_of

        settings = self.settings
        return Traces(
            store=self.store,
            ledger=self.ledger_of_one,
            resource=resource_of(stage=settings.stage, region=settings.region, account=settings.account),
        )
