"""Builds the services that report on Incidents and runs: ledgers, curves, pages, and the Jobs' alarms.

Each is made, and its module imported, at the first use: a cold start pays only for what its trigger needs.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from chalicelib.bootstrap.adapters import AdapterParts

if TYPE_CHECKING:
    from chalicelib.domain.model.incident import Incident
    from chalicelib.domain.reporting.ledger import IncidentLedger
    from chalicelib.services.reporting.alarms import Alarms
    from chalicelib.services.reporting.curves import Curves
    from chalicelib.services.reporting.hardware_ledger import HardwareLedgers
    from chalicelib.services.reporting.ledgers import Ledgers
    from chalicelib.services.reporting.pages import Pages


class ReportingParts(AdapterParts):
    """The services that report."""

    @cached_property
    def alarms(self) -> Alarms:
        from chalicelib.services.reporting.alarms import Alarms

        return Alarms(
            alarm_store=self.alarm_store,
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
            prices=self.prices,
            clock=self.clock,
        )

    def incident_ledger(self, incident: Incident) -> IncidentLedger:
        """The ledger of one Incident. `ledgers` also needs the listings."""
        from chalicelib.services.reporting.ledgers import incident_ledger

        return incident_ledger(incident, registry=self.registry, prices=self.prices, clock=self.clock)

    @cached_property
    def pages(self) -> Pages:
        from chalicelib.services.reporting.pages import Losses, Pages

        return Pages(
            store=self.store,
            registry=self.registry,
            prices=self.prices,
            pages=self.page_store,
            clock=self.clock,
            region=self.settings.region,
            within=self.clients.deadline.within,
            losses=Losses(curves=self.curves),
        )
