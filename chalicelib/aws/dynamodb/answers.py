"""The memory of orders that were given with a key: one item per key, which DynamoDB's TTL forgets after two weeks.

As long as the mark of a Signal (incident_store.py): for that long an order with the same key can do nothing twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.errors import AwsRefusal
from chalicelib.ports.operator import EarlierOrder

KEPT: Final = timedelta(days=14)


class DynamoAnswers:
    """ports.AnswerMemory; `client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def begin(self, key: str, *, fingerprint: str, now: datetime) -> EarlierOrder | None:
        """See ports.AnswerMemory. An item that its TTL should have removed is as good as gone: DynamoDB takes days."""
        seconds = int(now.timestamp())
        item = _key(key) | {
            "fingerprint": items.text(fingerprint),
            items.TTL_ATTRIBUTE: items.number(seconds + int(KEPT.total_seconds())),
        }
        try:
            items.retry_in_transaction(
                self._client.put_item,
                expect=(items.CONDITION_FAILED,),
                TableName=self._table,
                Item=item,
                ConditionExpression="attribute_not_exists(pk) OR #ttl < :now",
                ExpressionAttributeNames={"#ttl": items.TTL_ATTRIBUTE},
                ExpressionAttributeValues={":now": items.number(seconds)},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except AwsRefusal as refusal:
            stored = refusal.response.get("Item") or {}
            return EarlierOrder(
                same=items.read_text(stored, "fingerprint") == fingerprint,
                answer=items.unpack(stored["answer"]) if "answer" in stored else None,
            )
        return None

    def finish(self, key: str, *, answer: Mapping[str, Any]) -> None:
        expression = items.Expression()
        change = f"SET {expression.set('answer', items.pack(dict(answer)))}"
        items.update(self._client, self._table, _key(key), change, expression)


def _key(key: str) -> items.Item:
    return items.key(f"ORDER#{hashlib.sha256(key.encode()).hexdigest()[:40]}")
