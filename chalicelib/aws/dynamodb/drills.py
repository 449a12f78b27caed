"""Results of drills in the one table: one item each, gone after its time to live."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from chalicelib.aws.dynamodb import items


class DynamoDrillRecords:
    """services.operator.drills.DrillRecords; `client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def load(self, drill_id: str) -> Mapping[str, Any] | None:
        """See the protocol. Read consistently: it is read right after it was ordered."""
        item = items.get(self._client, self._table, _key(drill_id))
        return items.unpack(item["state"]) if item is not None else None

    def save(self, drill_id: str, result: Mapping[str, Any], *, until: datetime) -> bool:
        """See the protocol."""
        item = _key(drill_id) | {
            "state": items.pack(result),
            items.TTL_ATTRIBUTE: items.number(int(until.timestamp())),
        }
        return items.put_new(self._client, self._table, item)


def _key(drill_id: str) -> items.Item:
    return items.key(f"DRILL#{drill_id}")
