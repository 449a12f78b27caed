"""The one table: its keys, and how values are laid down in it. docs/storage.md is the reader's view.

Its shape is in `infra/template/storage.yaml`; the tests and the embedded cloud create it from there.

Records travel as one JSON text in the attribute `state`; beside it stand only the attributes that conditions and
indexes need, so that no float, Decimal or empty set of DynamoDB's ever reaches the domain.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from chalicelib.aws.errors import AwsRefusal, call, meaning_of
from chalicelib.domain.model.codec import Record, split
from chalicelib.domain.model.errors import InvalidRequest, Throttled

Item = dict[str, Any]
R = TypeVar("R", bound=Record)

INDEX: Final = "GSI1"
JOBS_ACTIVE: Final = "JOBS#ACTIVE"
JOBS_ENDED: Final = "JOBS#ENDED"
INCIDENTS_OPEN: Final = "INCIDENTS#OPEN"
INCIDENTS_CLOSED: Final = "INCIDENTS#CLOSED"
META: Final = "META"

TTL_ATTRIBUTE: Final = "ttl"
_KEY_NAMES: Final = frozenset({"pk", "sk", "gsi1pk", "gsi1sk"})

_PLAIN_BYTES: Final = 2048  # below this a readable text is worth more than the write units that compression saves
BATCH: Final = 100  # Source: BatchGetItem, 100 items per call
_BATCH_ROUNDS: Final = 8
_CONFLICT: Final = "TransactionConflictException"
_CANCELED: Final = "TransactionCanceledException"
_FAILED: Final = "ConditionalCheckFailed"
CONDITION_FAILED: Final = "ConditionalCheckFailedException"
_CONFLICT_TRIES: Final = 8  # a transaction holds an item for some 10 ms; each try is a round trip of a few


def text(value: str) -> Item:
    return {"S": value}


def number(value: int) -> Item:
    return {"N": str(value)}


def flag(value: bool) -> Item:
    return {"BOOL": value}


def read_text(item: Mapping[str, Any], name: str) -> str | None:
    """The string attribute `name`, None where it is absent."""
    value = item.get(name)
    return None if value is None else str(value["S"])


def read_number(item: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = item.get(name)
    return default if value is None else int(value["N"])


def read_flag(item: Mapping[str, Any], name: str) -> bool:
    """The boolean attribute `name`, False where it is absent."""
    return bool(item.get(name, {}).get("BOOL", False))


def read_at(item: Mapping[str, Any], name: str) -> datetime | None:
    """The time attribute `name` (ISO-8601 text)."""
    value = read_text(item, name)
    return datetime.fromisoformat(value) if value else None


def pack(wire: Any) -> Item:
    """JSON as a string, or compressed where it is long: write units are counted by the kilobyte."""
    raw = json.dumps(wire, separators=(",", ":"))
    if len(raw) <= _PLAIN_BYTES:
        return {"S": raw}
    return {"B": zlib.compress(raw.encode(), 6)}


def attributes(record: Record) -> Item:
    """One attribute for each field: text, numbers and flags as such; a list or an object packed, unless it holds its
    default. A field that is None has none.
    """
    _, packed = split(type(record))
    written = record.to_wire(defaults=True) | dict.fromkeys(packed) | record.to_wire()
    return {name: _attribute(value) for name, value in written.items() if value is not None}


def record_of(kind: type[R], stored: Mapping[str, Any]) -> R:
    """Inverse of `attributes`. Other attributes, and fields that only a newer version knows, are passed over.

    Raises:
        MalformedRecord: names the field that is missing or wrong.
    """
    plain, packed = split(kind)
    wire = {name: unpack(stored[name]) for name in packed & stored.keys()}
    return kind.from_wire(wire | {name: _plain(stored[name]) for name in plain & stored.keys()}, beyond=[])


def unpack_record(kind: type[R], packed: Mapping[str, Any]) -> R:
    """The record in a packed attribute. Fields that only a newer version knows are passed over, so that an older
    version works after a rollback.

    Raises:
        MalformedRecord: names the field that is missing or wrong.
    """
    return kind.from_wire(unpack(packed), beyond=[])


def _attribute(value: Any) -> Item:
    if isinstance(value, bool):
        return flag(value)
    if isinstance(value, int):
        return number(value)
    return text(value) if isinstance(value, str) else pack(value)


def _plain(value: Mapping[str, Any]) -> Any:
    return int(value["N"]) if "N" in value else value["BOOL"] if "BOOL" in value else value["S"]


def squeeze(wire: Any) -> Item:
    """JSON compressed whatever its length."""
    return {"B": zlib.compress(json.dumps(wire, separators=(",", ":")).encode(), 9)}


def packed_bytes(packed: Item) -> int:
    """What a packed value weighs in its item."""
    return len(packed["S"].encode()) if "S" in packed else len(packed["B"])


def unpack(packed: Mapping[str, Any]) -> Any:
    """Inverse of `pack`."""
    if "S" in packed:
        return json.loads(packed["S"])
    return json.loads(zlib.decompress(bytes(packed["B"])))


def key(pk: str, sk: str = META) -> Item:
    return {"pk": text(pk), "sk": text(sk)}


def job_pk(job_id: str) -> str:
    return f"JOB#{job_id}"


def cluster_pk(cluster: str) -> str:
    return f"CLUSTER#{cluster}"


def incident_pk(incident_id: str) -> str:
    return f"INC#{incident_id}"


def attempt_pk(name: str) -> str:
    return f"ATTEMPT#{name}"


def signal_pk(dedupe_key: str) -> str:
    return f"SIG#{dedupe_key}"


def attempt_sk(attempt_number: int) -> str:
    return f"ATTEMPT#{attempt_number:04d}"


def incident_sk(opened_at: datetime, incident_id: str) -> str:
    return f"INCIDENT#{opened_at.isoformat()}#{incident_id}"


def mark_of(dedupe_key: str) -> str:
    """A Signal's short name inside an Incident: 48 bits, so 5,000 of them collide once in 20 million Incidents."""
    return hashlib.sha256(dedupe_key.encode()).hexdigest()[:12]


class Expression:
    """Builds one request's expression parts; every attribute name goes through a placeholder (reserved words)."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Item] = {}

    def name(self, attribute: str) -> str:
        self.names[f"#{attribute}"] = attribute
        return f"#{attribute}"

    def value(self, label: str, value: Item) -> str:
        self.values[f":{label}"] = value
        return f":{label}"

    def set(self, attribute: str, value: Item) -> str:
        return f"{self.name(attribute)} = {self.value(attribute, value)}"

    def parts(self) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        if self.names:
            parts["ExpressionAttributeNames"] = self.names
        if self.values:
            parts["ExpressionAttributeValues"] = self.values
        return parts


def retry_in_transaction(method: Any, /, *, expect: tuple[str, ...] = (), **request: Any) -> Any:
    """`call`, tried again at once while a transaction holds the item.

    Raises:
        Throttled: the item stayed busy.
    """
    for _ in range(_CONFLICT_TRIES):
        try:
            return call(method, expect=(*expect, _CONFLICT, _CANCELED), **request)
        except AwsRefusal as refusal:
            if not _is_conflict(refusal):
                raise
    raise Throttled("an item stayed busy with other transactions")


def _is_conflict(refusal: AwsRefusal) -> bool:
    if refusal.code == _CONFLICT:
        return True
    codes = {reason.get("Code") for reason in refusal.response.get("CancellationReasons", ())}
    return refusal.code == _CANCELED and "TransactionConflict" in codes


def reasons_of(refusal: AwsRefusal) -> list[Item | None]:
    """Per item of a cancelled transaction what its condition met: {} where it met nothing, None where it held.

    Raises:
        Retryable: cancelled for another reason than a condition.
    """
    reasons: list[dict[str, Any]] = refusal.response.get("CancellationReasons") or []
    others = [code for code in (reason.get("Code") for reason in reasons) if code not in (None, "None", _FAILED)]
    if others or not reasons:
        raise meaning_of(others[0] if others else refusal.code, f"transaction cancelled: {refusal.message}")
    return [reason.get("Item") or {} if reason.get("Code") == _FAILED else None for reason in reasons]


def put_new(client: Any, table: str, item: Item) -> bool:
    """Write an item whose key has none yet; whether it was written."""
    try:
        retry_in_transaction(
            client.put_item,
            expect=(CONDITION_FAILED,),
            TableName=table,
            Item=item,
            ConditionExpression="attribute_not_exists(pk)",
        )
    except AwsRefusal:
        return False
    return True


def update(
    client: Any, table: str, item_key: Item, change: str, expression: Expression, *, condition: str = ""
) -> bool:
    """Change an item, where `condition` holds; whether it did."""
    try:
        retry_in_transaction(
            client.update_item,
            expect=(CONDITION_FAILED,) if condition else (),
            TableName=table,
            Key=item_key,
            UpdateExpression=change,
            **({"ConditionExpression": condition} if condition else {}),
            **expression.parts(),
        )
    except AwsRefusal:
        if condition:
            return False
        raise
    return True


def query(client: Any, table: str, **request: Any) -> Iterator[Item]:
    """All items of a query, page by page."""
    while True:
        page = call(client.query, TableName=table, **request)
        yield from page.get("Items", ())
        if not page.get("LastEvaluatedKey"):
            return
        request["ExclusiveStartKey"] = page["LastEvaluatedKey"]


def index_query(partition: str, *, newest_first: bool = False) -> dict[str, Any]:
    return {
        "IndexName": INDEX,
        "KeyConditionExpression": "gsi1pk = :p",
        "ExpressionAttributeValues": {":p": text(partition)},
        "ScanIndexForward": not newest_first,
    }


def query_prefix(pk: str, prefix: str, *, newest_first: bool = False) -> dict[str, Any]:
    """The request for the items of `pk` whose sort key begins with `prefix` ("": all), strongly consistent."""
    values = {":p": text(pk)} | ({":s": text(prefix)} if prefix else {})
    return {
        "KeyConditionExpression": "pk = :p AND begins_with(sk, :s)" if prefix else "pk = :p",
        "ExpressionAttributeValues": values,
        "ScanIndexForward": not newest_first,
        "ConsistentRead": True,
    }


def get(client: Any, table: str, item_key: Item) -> Item | None:
    """One item, strongly consistent."""
    found: Item | None = call(client.get_item, TableName=table, Key=item_key, ConsistentRead=True).get("Item")
    return found


def get_many(client: Any, table: str, keys: Iterable[Item]) -> list[Item]:
    """The items that exist, in the order of `keys`, strongly consistent.

    Raises:
        Throttled: DynamoDB keeps handing keys back unprocessed.
    """
    wanted = list(keys)
    found: dict[tuple[str, str], Item] = {}
    for start in range(0, len(wanted), BATCH):
        left: dict[str, Any] = {table: {"Keys": wanted[start : start + BATCH], "ConsistentRead": True}}
        for _ in range(_BATCH_ROUNDS):
            answer = call(client.batch_get_item, RequestItems=left)
            for item in answer["Responses"].get(table, ()):
                found[item["pk"]["S"], item["sk"]["S"]] = item
            left = answer.get("UnprocessedKeys") or {}
            if not left:
                break
        else:
            raise Throttled("batch_get_item keeps leaving keys unprocessed")
    places = ((item["pk"]["S"], item["sk"]["S"]) for item in wanted)
    return [found[place] for place in places if place in found]


def keys_of(items: Iterable[Item]) -> list[Item]:
    """The primary keys of index rows."""
    return [{"pk": item["pk"], "sk": item["sk"]} for item in items]


def cursor_of(place: str, row: Item | None) -> str:
    """Opaque, and bound to its place. Rows and LastEvaluatedKeys hold the same key attributes."""
    key = {name: value["S"] for name, value in (row or {}).items() if name in _KEY_NAMES}
    return base64.urlsafe_b64encode(json.dumps([place, key], separators=(",", ":")).encode()).decode()


def read_cursor(cursor: str | None, *, places: tuple[str, ...]) -> tuple[str | None, Item | None]:
    """Place and ExclusiveStartKey.

    Raises:
        InvalidRequest: not made by `cursor_of` for one of these places.
    """
    if cursor is None:
        return None, None
    try:
        place, key = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        start = {str(name): text(str(value)) for name, value in key.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as err:
        raise InvalidRequest("cursor", "is not one that this API gave out for this question") from err
    of_index = place in (INCIDENTS_OPEN, INCIDENTS_CLOSED, JOBS_ACTIVE, JOBS_ENDED)
    wanted = _KEY_NAMES if of_index else {"pk", "sk"}
    fits = not start or (set(start) == wanted and start["gsi1pk" if of_index else "pk"]["S"] == place)
    if place not in places or not fits or not all(value["S"] for value in start.values()):
        raise InvalidRequest("cursor", "is not one that this API gave out for this question")
    return place, start or None
