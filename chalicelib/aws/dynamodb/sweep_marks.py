"""The sweep's own memory: one small item of the table, read and written once per sweep."""

from __future__ import annotations

import logging
from dataclasses import asdict
from datetime import datetime
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
            wire = items.unpack(stored["mark"])
            for name in ("began_at", "last_began_at"):
                wire[name] = _moment(wire[name])
            return SweepMark(**wire)
        except (KeyError, ValueError, TypeError) as err:
            _LOG.warning("the sweep's mark cannot be read", extra={"error": repr(err)})
            return SweepMark()

    def save(self, mark: SweepMark) -> None:
        wire = asdict(mark)
        for name in ("began_at", "last_began_at"):
            wire[name] = wire[name].isoformat() if wire[name] is not None else None
        items.retry_in_transaction(self._client.put_item, TableName=self._table, Item=_KEY | {"mark": items.pack(wire)})


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
