"""Incidents as traces, read from the store: for the channel that exports them, and for the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chalicelib.domain.model.incident import Incident
from chalicelib.domain.reporting.ledger import IncidentLedger
from chalicelib.domain.reporting.otlp import otlp_of
from chalicelib.domain.reporting.trace import trace_of
from chalicelib.ports.incidents import IncidentStore

# Source: OpenTelemetry semantic conventions, resource (service.*, deployment.environment.name, cloud.*).
SERVICE: Final = "rekindle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """`resource`: attributes of the deployment, besides the service's name; empty ones are left out."""

    store: IncidentStore
    ledger: Callable[[Incident], IncidentLedger]
    resource: Mapping[str, str] = field(default_factory=dict)

    def load(self, incident_id: str) -> Incident:
        """The Incident as it is stored. Raises UnknownEntity."""
        return self.store.load(incident_id).incident

    def of(self, incident: Incident) -> dict[str, Any]:
        """OTLP's JSON of the Incident in hand."""
        spans = trace_of(incident, self.store.timeline(incident.incident_id), self.ledger(incident))
        return otlp_of(spans, resource={"service.name": SERVICE, **self.resource})


def resource_of(*, stage: str, region: str, account: str) -> dict[str, str]:
    """The attributes of a deployment."""
    return {
        "deployment.environment.name": stage,
        "cloud.provider": "aws",
        "cloud.region": region,
        "cloud.account.id": account,
    }
