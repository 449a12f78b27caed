"""Which signed requests were accepted: one small item each, which expires when its request is too old to replay."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from chalicelib.aws.dynamodb import items


class DynamoHookMarks:
    """`client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def is_known(self, mark: str) -> bool:
        return items.get(self._client, self._table, _key(mark)) is not None

    def keep(self, mark: str, *, until: datetime) -> None:
        body = {items.TTL_ATTRIBUTE: items.number(int(until.timestamp()))}
        items.retry_in_transaction(self._client.put_item, TableName=self._table, Item=_key(mark) | body)


def _key(mark: str) -> items.Item:
    return items.key(f"HOOK#{mark}")
