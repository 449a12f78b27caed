"""What takes one small item each: orders that were given with a key, results of drills, signed requests that were
accepted, and how far the sweep has come. DynamoDB's TTL forgets the first three.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.errors import AwsRefusal
from chalicelib.ports.operator import EarlierOrder
from chalicelib.ports.sweep import SweepMark

KEPT: Final = timedelta(days=14)  # of an order, as the mark of a Signal: so long the same key can do nothing twice


class DynamoAnswers:
    """ports.AnswerMemory; `client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def begin(self, key: str, *, fingerprint: str, now: datetime) -> EarlierOrder | None:
        """See ports.AnswerMemory. An item that its TTL should have removed is as good as gone: DynamoDB takes days."""
        seconds = int(now.timestamp())
        item = _order_key(key) | {
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
        items.update(self._client, self._table, _order_key(key), change, expression)


def _order_key(key: str) -> items.Item:
    return items.key(f"ORDER#{hashlib.sha256(key.encode()).hexdigest()[:40]}")


class DynamoDrillRecords:
    """services.operator.drills.DrillRecords; `client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def load(self, drill_id: str) -> Mapping[str, Any] | None:
        """See the protocol. Read consistently: it is read right after it was ordered."""
        item = items.get(self._client, self._table, _drill_key(drill_id))
        return items.unpack(item["state"]) if item is not None else None

    def save(self, drill_id: str, result: Mapping[str, Any], *, until: datetime) -> bool:
        """See the protocol."""
        item = _drill_key(drill_id) | {
            "state": items.pack(result),
            items.TTL_ATTRIBUTE: items.number(int(until.timestamp())),
        }
        return items.put_new(self._client, self._table, item)


def _drill_key(drill_id: str) -> items.Item:
    return items.key(f"DRILL#{drill_id}")


class DynamoHookMarks:
    """Which signed requests were accepted, until they are too old to replay; `client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def is_known(self, mark: str) -> bool:
        return items.get(self._client, self._table, _hook_key(mark)) is not None

    def keep(self, mark: str, *, until: datetime) -> None:
        body = {items.TTL_ATTRIBUTE: items.number(int(until.timestamp()))}
        items.retry_in_transaction(self._client.put_item, TableName=self._table, Item=_hook_key(mark) | body)


def _hook_key(mark: str) -> items.Item:
    return items.key(f"HOOK#{mark}")


_LOG = logging.getLogger(__name__)
_SWEEP_KEY: Final = items.key("SWEEP")


class DynamoSweepMarks:
    """ports.SweepMarks; `client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def load(self) -> SweepMark:
        """See ports.SweepMarks. A mark that cannot be read counts as none: the next round asks about every Job."""
        stored = items.get(self._client, self._table, _SWEEP_KEY)
        if stored is None:
            return SweepMark()
        try:
            return items.unpack_record(SweepMark, stored["mark"])
        except (KeyError, ValueError, TypeError) as err:
            _LOG.warning("the sweep's mark cannot be read", extra={"error": repr(err)})
            return SweepMark()

    def save(self, mark: SweepMark) -> None:
        item = _SWEEP_KEY | {"mark": items.pack(mark.to_wire())}
        items.retry_in_transaction(self._client.put_item, TableName=self._table, Item=item)
