"""The two stores that share the one table: Incidents and the registry. `items` holds the table's shape."""

from __future__ import annotations

from chalicelib.aws.dynamodb.incidents import DynamoIncidentStore
from chalicelib.aws.dynamodb.jobs import DynamoJobRegistry

__all__ = ["DynamoIncidentStore", "DynamoJobRegistry"]
