"""The hardware ledger in DynamoDB: one item per hardware mark (such as a serial number), bounded in size, expiring."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.items import Item
from chalicelib.aws.errors import AwsRefusal
from chalicelib.domain.model.errors import Throttled
from chalicelib.domain.model.hardware_ledger import HardwareFault, HardwareRecord

_LOG = logging.getLogger(__name__)

# Partitions of the index. Marks with more than one fault have their own, because listings usually want only those.
REPEATED: Final = "HARDWARE#REPEATED"
ONCE: Final = "HARDWARE#ONCE"
# An item expires this long after its last fault; longer than any policy's window (90 days).
KEPT_FOR: Final = timedelta(days=120)
# Writes of one item rarely collide: Incidents of one node do not close at the same time, but a step may be repeated.
_TRIES: Final = 6


class DynamoHardwareLedger:
    """ports.HardwareLedger; `client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def add(self, mark: str, fault: HardwareFault) -> HardwareRecord:
        for _ in range(_TRIES):
            stored = items.get(self._client, self._table, _key(mark))
            previous = _record(stored) if stored is not None else None
            record = (previous or HardwareRecord(mark=mark)).with_fault(fault)
            if record is previous:
                return record  # the fault is in it already
            version = items.read_number(stored or {}, "version")
            try:
                items.retry_in_transaction(
                    self._client.put_item,
                    expect=(items.CONDITION_FAILED,),
                    TableName=self._table,
                    Item=_item(record, version=version + 1),
                    ConditionExpression="attribute_not_exists(pk)" if stored is None else "version = :version",
                    **({} if stored is None else {"ExpressionAttributeValues": {":version": items.number(version)}}),
                )
            except AwsRefusal:
                continue  # written concurrently: read again
            return record
        raise Throttled(f"the record of {mark} stays busy")

    def read(self, marks: Sequence[str]) -> tuple[HardwareRecord, ...]:
        keys = [_key(mark) for mark in dict.fromkeys(marks)]
        found = items.get_many(self._client, self._table, keys) if keys else []
        return _readable(found)

    def listing(self, *, limit: int, repeated_only: bool) -> tuple[HardwareRecord, ...]:
        keys = list(islice(self._keys(repeated_only), limit))
        found = items.get_many(self._client, self._table, keys)
        return _readable(found)

    def _keys(self, repeated_only: bool) -> Iterator[Item]:
        """Keys by the time of their last fault, newest first, repeated ones before the others."""
        for partition in (REPEATED,) if repeated_only else (REPEATED, ONCE):
            request = items.index_query(partition, newest_first=True)
            yield from items.keys_of(items.query(self._client, self._table, **request))


def _key(mark: str) -> Item:
    return items.key(f"HARDWARE#{mark}")


def _item(record: HardwareRecord, *, version: int) -> Item:
    last: datetime = record.faults[-1].at
    return _key(record.mark) | {
        "gsi1pk": items.text(REPEATED if len(record.faults) > 1 else ONCE),
        "gsi1sk": items.text(f"{last.isoformat()}#{record.mark}"),
        "record": items.pack(record.to_wire()),
        "version": items.number(version),
        items.TTL_ATTRIBUTE: items.number(int((last + KEPT_FOR).timestamp())),
    }


def _readable(found: Iterable[Item]) -> tuple[HardwareRecord, ...]:
    return tuple(record for record in map(_record, found) if record is not None)


def _record(stored: Item) -> HardwareRecord | None:
    """The item's record. None for an unreadable item (logged), so that it does not block the repair of a node."""
    try:
        return items.unpack_record(HardwareRecord, stored["record"])
    except (KeyError, ValueError, TypeError) as err:
        _LOG.error("a hardware record cannot be read", extra={"pk": items.read_text(stored, "pk"), "error": repr(err)})
        return None
