"""The two stores that share the one table: Incidents and the registry. `items` holds the table's shape."""

from __future__ import annotations

from chalicelib.adapters.incident_store import DynamoIncidentStore
from chalicelib.adapters.job_registry import DynamoJobRegistry

__all__ = ["DynamoIncidentStore", "DynamoJobRegistry"]
