"""The sweep's own memory: one small item of the table, read and written once per sweep."""

from __future__ import annotations

import logging
from typing import Any, Final

from chalicelib.aws.dynamodb import items
from chalicelib.ports.sweep import SweepMark

_LOG = logging.getLogger(__name__)
_KEY: Final = items.key("SWEEP")


class DynamoSweepMarks:
    """ports.SweepMarks; `client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def load(self) -> SweepMark:
        """See ports.SweepMarks. A mark that cannot be read counts as none: the next round asks about every Job."""
        stored = items.get(self._client, self._table, _KEY)
        if stored is None:
            return SweepMark()
        try:
            return items.unpack_record(SweepMark, stored["mark"])
        except (KeyError, ValueError, TypeError) as err:
            _LOG.warning("the sweep's mark cannot be read", extra={"error": repr(err)})
            return SweepMark()

    def save(self, mark: SweepMark) -> None:
        item = _KEY | {"mark": items.pack(mark.to_wire())}
        items.retry_in_transaction(self._client.put_item, TableName=self._table, Item=item)
