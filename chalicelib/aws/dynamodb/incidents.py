"""Incidents in DynamoDB: inbox, timeline, fences. docs/storage.md lists the items.

Adding a Signal is two plain writes that may be repeated in any state: the mark `SIG#<dedupe_key>` says which Incident
took the fact, and the Incident's own set `marks` says whether it really did. A crash between the two is healed by the
redelivery; and no transaction is held on an Incident that a storm of Signals arrives at.
"""

from __future__ import annotations

import heapq
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.items import Expression, Item
from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.domain.model.errors import Permanent, UnknownEntity, VersionConflict
from chalicelib.domain.model.incident import Incident, TimelineEntry, node_scope
from chalicelib.domain.model.newer_version import read_incident
from chalicelib.domain.model.signal import Signal, SignalSource
from chalicelib.ports.incidents import Entry, Joined, Looked, Page

_LOG = logging.getLogger(__name__)

# Together these keep an Incident's item below DynamoDB's 400 KB whatever arrives: 100 x 1.2 KB inbox, 5,000 x 15 B
# marks, and the state with its 40 kept Signals, which came through the same gate. Taking 100 out by index is 1.5 KB of
# expression; DynamoDB takes 4 KB and 300 operators. They also keep what one look returns below what a durable step may
# (recovery/results.py).
MAX_INBOX: Final = 80
MAX_SIGNALS: Final = 5000  # over an Incident's life; sweeps, echoes and storms stay far below
MAX_SIGNAL_BYTES: Final = 1200
ORDERS_EXTRA: Final = 20  # an operator's cancel must still get in when a storm has filled the inbox

MAX_ENTRY_BYTES: Final = 8 * 1024
MAX_ENTRY_TEXT_CHARS: Final = 2000

# Longer than EventBridge (24 h) and Lambda (6 h) redeliver, and than a person needs to send a quarantined event again.
SIGNAL_MEMORY: Final = timedelta(days=14)

_FAILED: Final = "ConditionalCheckFailedException"
_CANCELED: Final = "TransactionCanceledException"


class DynamoIncidentStore:
    """ports.IncidentStore over one table; `client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    # ---- open and join ---------------------------------------------------------------------------------------------

    def open(self, incident: Incident, signal: Signal, *, now: datetime) -> Entry:
        """See ports.IncidentStore. Raises UnknownEntity for a Job that is not registered."""
        owner: str | None = None
        for _ in range(2):
            reasons = self._try_open(incident, signal, owner=owner, now=now)
            if reasons is None:
                return Entry(outcome=Joined.OPENED, incident_id=incident.incident_id, generation=incident.generation)
            created, pointer, marked = reasons[:3]
            if marked is not None:
                entry = self._seen_before(_owner(marked), signal)
                if entry is not None:
                    return entry
                owner = _owner(marked)  # marked for an Incident that closed before it took the fact: take it over
                continue
            if created is not None:  # the mark has expired, the Incident of this very fact is still there
                return _entry(Joined.DUPLICATE, created)
            return self._join_pointed(incident, pointer or {}, signal, now=now)
        return Entry(outcome=Joined.CLOSED, incident_id=incident.incident_id)

    def _try_open(
        self, incident: Incident, signal: Signal, *, owner: str | None, now: datetime
    ) -> list[Item | None] | None:
        """None when it took effect, else per item of the transaction what stood in its way."""
        try:
            items.insist(
                self._client.transact_write_items,
                expect=(_CANCELED,),
                TransactItems=[
                    self._put_incident(incident, signal),
                    self._point(incident),
                    self._put_mark(incident.incident_id, signal, now=now, owner=owner),
                    {"Put": {"TableName": self._table, "Item": _index_row(incident)}},
                ],
            )
        except AwsRefusal as refusal:
            return items.reasons_of(refusal)
        return None

    def _put_incident(self, incident: Incident, signal: Signal) -> Item:
        item = items.key(items.incident_pk(incident.incident_id)) | {
            "gsi1pk": items.text(items.INCIDENTS_OPEN),
            "gsi1sk": items.text(f"{incident.opened_at.isoformat()}#{incident.incident_id}"),
            "state": items.pack(incident.to_wire()),
            "version": items.number(incident.version),
            "generation": items.number(incident.generation),
            "is_open": items.flag(True),
            "inbox": {"L": [_pack_signal(signal)]},
            "inbox_seq": items.number(1),
            "marks": {"SS": [items.mark_of(signal.dedupe_key)]},
        }
        return {
            "Put": {
                "TableName": self._table,
                "Item": item,
                "ConditionExpression": "attribute_not_exists(pk)",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        }

    def _point(self, incident: Incident) -> Item:
        expression = Expression()
        pointer = expression.set("open_incident", items.text(incident.incident_id))
        # A Job's item is the registry's; a cluster's exists only for its pointer.
        there = "attribute_exists(pk) AND " if incident.job_id is not None else ""
        return {
            "Update": {
                "TableName": self._table,
                "Key": _scope_key(incident),
                "UpdateExpression": f"SET {pointer}",
                "ConditionExpression": f"{there}attribute_not_exists(#open_incident)",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                **expression.parts(),
            }
        }

    def _put_mark(self, incident_id: str, signal: Signal, *, now: datetime, owner: str | None = None) -> Item:
        expires = int((now + SIGNAL_MEMORY).timestamp())
        item = items.key(items.signal_pk(signal.dedupe_key)) | {
            "incident_id": items.text(incident_id),
            items.TTL_ATTRIBUTE: items.number(expires),
        }
        # DynamoDB deletes expired items within days, so an expired mark can still be there.
        condition = f"attribute_not_exists(pk) OR #{items.TTL_ATTRIBUTE} < :now"
        values = {":now": items.number(int(now.timestamp()))}
        names = {f"#{items.TTL_ATTRIBUTE}": items.TTL_ATTRIBUTE}
        if owner is not None:
            condition += " OR incident_id = :owner"
            values[":owner"] = items.text(owner)
        return {
            "Put": {
                "TableName": self._table,
                "Item": item,
                "ConditionExpression": condition,
                "ExpressionAttributeNames": names,
                "ExpressionAttributeValues": values,
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        }

    def _join_pointed(self, incident: Incident, pointer: Item, signal: Signal, *, now: datetime) -> Entry:
        current = items.read_text(pointer, "open_incident")
        if current is None:  # nothing stood there: the Job itself is missing, or the pointer was freed meanwhile
            stored = items.get(self._client, self._table, _scope_key(incident))
            if stored is None and incident.job_id is not None:
                raise UnknownEntity(f"job {incident.job_id!r} is not registered")
            current = items.read_text(stored or {}, "open_incident")
        if current is None:
            return Entry(outcome=Joined.CLOSED, incident_id=incident.incident_id)
        return self.join(current, signal, now=now)

    def join(self, incident_id: str, signal: Signal, *, now: datetime) -> Entry:
        """See ports.IncidentStore. Raises UnknownEntity for an Incident that does not exist."""
        owner: str | None = None
        for _ in range(2):
            marked = self._mark(incident_id, signal, owner=owner, now=now)
            if marked == incident_id:
                return self._add(incident_id, signal)
            entry = self._seen_before(marked, signal)
            if entry is not None:
                return entry
            owner = marked
        return Entry(outcome=Joined.CLOSED, incident_id=incident_id)

    def _mark(self, incident_id: str, signal: Signal, *, owner: str | None, now: datetime) -> str:
        """Claim the fact for `incident_id`; the id of the Incident that holds it."""
        put = self._put_mark(incident_id, signal, now=now, owner=owner)["Put"]
        try:
            items.insist(self._client.put_item, expect=(_FAILED,), **put)
        except AwsRefusal as refusal:
            return _owner(refusal.response["Item"])
        return incident_id

    def _add(self, incident_id: str, signal: Signal) -> Entry:
        """Put a claimed fact into the inbox unless it is there already: the second write of two."""
        mark = items.mark_of(signal.dedupe_key)
        extra = ORDERS_EXTRA if signal.source is SignalSource.OPERATOR else 0
        expression = Expression()
        update = (
            f"SET {expression.name('inbox')} = list_append(#inbox, :signal)"
            f" ADD {expression.name('inbox_seq')} :one, {expression.name('marks')} :marks"
        )
        condition = (
            f"{expression.name('is_open')} = :true AND NOT contains(#marks, :mark)"
            " AND size(#inbox) < :room AND #inbox_seq < :cap"
        )
        expression.values |= {
            ":signal": {"L": [_pack_signal(signal)]},
            ":one": items.number(1),
            ":marks": {"SS": [mark]},
            ":true": items.flag(True),
            ":mark": items.text(mark),
            ":room": items.number(MAX_INBOX + extra),
            ":cap": items.number(MAX_SIGNALS + extra),
        }
        try:
            answer = items.insist(
                self._client.update_item,
                expect=(_FAILED,),
                TableName=self._table,
                Key=items.key(items.incident_pk(incident_id)),
                UpdateExpression=update,
                ConditionExpression=condition,
                ReturnValues="ALL_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
                **expression.parts(),
            )
        except AwsRefusal as refusal:
            stored = refusal.response.get("Item")
            if not stored:
                raise UnknownEntity(f"incident {incident_id!r} does not exist") from refusal
            if _holds(stored, signal):
                return _entry(Joined.DUPLICATE, stored)
            if not items.read_flag(stored, "is_open"):
                return _entry(Joined.CLOSED, stored)
            return self._overflow(incident_id)
        return _entry(Joined.JOINED, answer["Attributes"])

    def _overflow(self, incident_id: str) -> Entry:
        """Count a Signal that finds no room. It still wakes the Incident, which reads the world again."""
        _LOG.warning("inbox is full", extra={"incident_id": incident_id})
        answer = items.insist(
            self._client.update_item,
            TableName=self._table,
            Key=items.key(items.incident_pk(incident_id)),
            UpdateExpression="ADD #overflow :one",
            ExpressionAttributeNames={"#overflow": "overflow"},
            ExpressionAttributeValues={":one": items.number(1)},
            ReturnValues="ALL_NEW",
        )
        return replace(_entry(Joined.JOINED, answer["Attributes"]), is_full=True)

    def _seen_before(self, owner: str, signal: Signal) -> Entry | None:
        """The Entry of a fact that is marked for `owner`; None if `owner` closed without having taken it."""
        stored = items.get(self._client, self._table, items.key(items.incident_pk(owner)))
        if stored is None:
            return None
        if _holds(stored, signal):
            return _entry(Joined.DUPLICATE, stored)
        if not items.read_flag(stored, "is_open"):
            return None
        entry = self._add(owner, signal)
        return None if entry.outcome is Joined.CLOSED else entry

    # ---- look and record -------------------------------------------------------------------------------------------

    def look(self, incident_id: str, *, generation: int, callback_id: str, look_by: datetime) -> Looked:
        """See ports.IncidentStore."""
        try:
            answer = items.insist(
                self._client.update_item,
                expect=(_FAILED,),
                TableName=self._table,
                Key=items.key(items.incident_pk(incident_id)),
                UpdateExpression="SET #callback_id = :callback, #look_by = :look_by",
                ConditionExpression="#generation = :generation",
                ExpressionAttributeNames={
                    "#callback_id": "callback_id",
                    "#generation": "generation",
                    "#look_by": "look_by",
                },
                ExpressionAttributeValues={
                    ":callback": items.text(callback_id),
                    ":look_by": items.text(look_by.isoformat()),
                    ":generation": items.number(generation),
                },
                ReturnValues="ALL_NEW",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except AwsRefusal as refusal:
            raise _fenced(incident_id, refusal.response.get("Item"), generation) from refusal
        return _looked(answer["Attributes"])

    def record(
        self,
        incident: Incident,
        *,
        expected_version: int,
        token: str,
        absorbed: int,
        entry: TimelineEntry,
        look_by: datetime | None,
    ) -> Incident:
        """See ports.IncidentStore."""
        stored = replace(incident, version=expected_version + 1)
        line = {
            "Put": {
                "TableName": self._table,
                "Item": items.key(items.incident_pk(incident.incident_id), f"T#{stored.version:06d}") | _line(entry),
            }
        }
        write = self._update_incident(
            stored, expected_version=expected_version, token=token, absorbed=absorbed, look_by=look_by
        )
        free = [] if incident.is_open else [self._unpoint(incident)]
        for transaction in ([write, line, *free], [write, line]):
            try:
                items.insist(self._client.transact_write_items, expect=(_CANCELED,), TransactItems=transaction)
            except AwsRefusal as refusal:
                current = items.reasons_of(refusal)[0]
                if current is not None:
                    return self._already_recorded(incident, current, token=token, expected_version=expected_version)
                continue  # the pointer is not this Incident's any more: close without freeing it
            return stored
        raise VersionConflict(f"{incident.incident_id} could not be recorded")

    def _update_incident(
        self, stored: Incident, *, expected_version: int, token: str, absorbed: int, look_by: datetime | None
    ) -> Item:
        expression = Expression()
        sets = [
            expression.set("state", items.pack(stored.to_wire())),
            expression.set("version", items.number(stored.version)),
            expression.set("token", items.text(token)),
        ]
        # By index from the front: what arrives meanwhile is appended behind and stays.
        removes = [f"{expression.name('inbox')}[{index}]" for index in range(absorbed)]
        if look_by is not None:
            sets.append(expression.set("look_by", items.text(look_by.isoformat())))
        else:
            removes.append(expression.name("look_by"))
        if not stored.is_open:
            sets.append(expression.set("is_open", items.flag(False)))
            sets.append(expression.set("gsi1pk", items.text(items.INCIDENTS_CLOSED)))
            removes.append(expression.name("callback_id"))
        expression.values |= {
            ":expected": items.number(expected_version),
            ":generation": items.number(stored.generation),
        }
        condition = f"#version = :expected AND {expression.name('generation')} = :generation"
        condition += " AND (attribute_not_exists(#token) OR #token <> :token)"
        if not stored.is_open:
            # A Signal that came after the look would go down with the Incident, and its redelivery would be a
            # duplicate: closing has to take it in first.
            condition += f" AND size({expression.name('inbox')}) <= :absorbed"
            expression.values[":absorbed"] = items.number(absorbed)
        removal = f" REMOVE {', '.join(removes)}" if removes else ""
        return {
            "Update": {
                "TableName": self._table,
                "Key": items.key(items.incident_pk(stored.incident_id)),
                "UpdateExpression": f"SET {', '.join(sets)}{removal}",
                "ConditionExpression": condition,
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                **expression.parts(),
            }
        }

    def _unpoint(self, incident: Incident) -> Item:
        return {
            "Update": {
                "TableName": self._table,
                "Key": _scope_key(incident),
                "UpdateExpression": "REMOVE #open_incident",
                "ConditionExpression": "#open_incident = :id",
                "ExpressionAttributeNames": {"#open_incident": "open_incident"},
                "ExpressionAttributeValues": {":id": items.text(incident.incident_id)},
            }
        }

    def _already_recorded(self, incident: Incident, current: Item, *, token: str, expected_version: int) -> Incident:
        if not current:
            raise UnknownEntity(f"incident {incident.incident_id!r} does not exist")
        if items.read_text(current, "token") == token:
            return incident_of(current)
        found = (items.read_number(current, "version"), items.read_number(current, "generation"))
        if found == (expected_version, incident.generation):
            raise VersionConflict(f"Signals reached {incident.incident_id} while it was closing")
        raise VersionConflict(
            f"{incident.incident_id} is at version {found[0]} generation {found[1]},"
            f" not {expected_version} and {incident.generation}"
        )

    def append(self, incident_id: str, *, token: str, entry: TimelineEntry) -> None:
        """See ports.IncidentStore."""
        try:
            items.insist(
                self._client.put_item,
                expect=(_FAILED,),
                TableName=self._table,
                Item=items.key(items.incident_pk(incident_id), f"T#A#{token}") | _line(entry),
                ConditionExpression="attribute_not_exists(pk)",
            )
        except AwsRefusal:
            return  # written before under this token

    def claim(self, incident_id: str, *, token: str) -> bool:
        """See ports.IncidentStore."""
        try:
            items.insist(
                self._client.put_item,
                expect=(_FAILED,),
                TableName=self._table,
                Item=items.key(items.incident_pk(incident_id), f"CLAIM#{token}"),
                ConditionExpression="attribute_not_exists(pk)",
            )
        except AwsRefusal:
            return False
        return True

    def next_generation(self, incident_id: str, *, generation: int) -> int:
        """See ports.IncidentStore. A closed Incident has no next generation: VersionConflict."""
        try:
            items.insist(
                self._client.update_item,
                expect=(_FAILED,),
                TableName=self._table,
                Key=items.key(items.incident_pk(incident_id)),
                UpdateExpression="SET #generation = :next REMOVE #callback_id",
                ConditionExpression="#generation = :generation AND #is_open = :true",
                ExpressionAttributeNames={
                    "#generation": "generation",
                    "#callback_id": "callback_id",
                    "#is_open": "is_open",
                },
                ExpressionAttributeValues={
                    ":generation": items.number(generation),
                    ":next": items.number(generation + 1),
                    ":true": items.flag(True),
                },
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except AwsRefusal as refusal:
            raise _fenced(incident_id, refusal.response.get("Item"), generation) from refusal
        return generation + 1

    # ---- reading ---------------------------------------------------------------------------------------------------

    def load(self, incident_id: str) -> Looked:
        """See ports.IncidentStore."""
        return _looked(self._stored(incident_id))

    def callback_of(self, incident_id: str) -> str | None:
        """See ports.IncidentStore."""
        return items.read_text(self._stored(incident_id), "callback_id")

    def _stored(self, incident_id: str) -> Item:
        stored = items.get(self._client, self._table, items.key(items.incident_pk(incident_id)))
        if stored is None:
            raise UnknownEntity(f"incident {incident_id!r} does not exist")
        return stored

    def timeline(self, incident_id: str) -> tuple[TimelineEntry, ...]:
        """See ports.IncidentStore. Recorded lines keep their order; appended ones are merged in by their time."""
        recorded: list[TimelineEntry] = []
        appended: list[TimelineEntry] = []
        for item in items.query(self._client, self._table, **items.begins(items.incident_pk(incident_id), "T#")):
            line = items.unpack_record(TimelineEntry, item["line"])
            (appended if item["sk"]["S"].startswith("T#A#") else recorded).append(line)
        appended.sort(key=lambda line: line.at)
        return tuple(heapq.merge(recorded, appended, key=lambda line: line.at))

    def list_open(self) -> Iterator[tuple[Incident, datetime | None]]:
        """See ports.IncidentStore."""
        rows = items.query(self._client, self._table, **items.index_query(items.INCIDENTS_OPEN))
        for stored in items.get_many(self._client, self._table, items.keys_of(rows)):
            if items.read_flag(stored, "is_open"):  # the index lags behind
                yield incident_of(stored), items.read_at(stored, "look_by")

    def list_closed(self, *, limit: int, cursor: str | None = None) -> Page:
        """See ports.IncidentStore. Raises InvalidRequest for a cursor that is not ours."""
        request = items.index_query(items.INCIDENTS_CLOSED, newest_first=True) | {"Limit": limit}
        if cursor is not None:
            _, start = items.read_cursor(cursor)
            if start is not None:
                request["ExclusiveStartKey"] = start
        page = call(self._client.query, TableName=self._table, **request)
        stored = items.get_many(self._client, self._table, items.keys_of(page.get("Items", ())))
        return Page(
            incidents=tuple(incident_of(item) for item in stored), cursor=items.cursor_of(page.get("LastEvaluatedKey"))
        )

    def list_for_job(self, job_id: str, *, limit: int) -> tuple[Incident, ...]:
        """See ports.IncidentStore."""
        return self._list_below(items.job_pk(job_id), limit)

    def list_for_node(self, cluster: str, node: str, *, limit: int) -> tuple[Incident, ...]:
        """See ports.IncidentStore."""
        return self._list_below(items.cluster_pk(node_scope(cluster, node)), limit)

    def _list_below(self, pk: str, limit: int) -> tuple[Incident, ...]:
        request = items.begins(pk, "INCIDENT#", newest_first=True) | {"Limit": limit}
        rows = call(self._client.query, TableName=self._table, **request).get("Items", ())
        keys = [items.key(items.incident_pk(row["incident_id"]["S"])) for row in rows]
        return tuple(incident_of(item) for item in items.get_many(self._client, self._table, keys))


def _scope_key(incident: Incident) -> Item:
    """The item that points at the open Incident: its Job's, else its node's, else its cluster's."""
    if incident.job_id is not None:
        return items.key(items.job_pk(incident.job_id))
    scope = incident.scope
    if scope is None:
        raise Permanent(f"incident {incident.incident_id!r} names neither a job nor a cluster")
    return items.key(items.cluster_pk(scope))


def _index_row(incident: Incident) -> Item:
    scope = _scope_key(incident)["pk"]
    sk = items.incident_sk(incident.opened_at, incident.incident_id)
    return {"pk": scope, "sk": items.text(sk), "incident_id": items.text(incident.incident_id)}


def _owner(mark: Item) -> str:
    return str(mark["incident_id"]["S"])


def _holds(stored: Item, signal: Signal) -> bool:
    return items.mark_of(signal.dedupe_key) in stored.get("marks", {}).get("SS", ())


def _entry(outcome: Joined, stored: Item) -> Entry:
    return Entry(
        outcome=outcome,
        incident_id=stored["pk"]["S"].removeprefix("INC#"),
        generation=items.read_number(stored, "generation", 1),
        callback_id=items.read_text(stored, "callback_id"),
    )


def incident_of(stored: Item) -> Incident:
    """The Incident in its record."""
    incident = read_incident(items.unpack(stored["state"]))
    return replace(
        incident,
        version=items.read_number(stored, "version"),
        generation=items.read_number(stored, "generation", 1),
    )


def _looked(stored: Item) -> Looked:
    incident = incident_of(stored)
    try:
        inbox = tuple(Signal.from_wire(items.unpack(packed)) for packed in stored.get("inbox", {}).get("L", ()))
    except (KeyError, TypeError, ValueError) as err:  # of a newer version, like what `newer` says of the Incident
        return Looked(incident=replace(incident, newer=incident.newer or f"inbox: {err}"[:120]), inbox=())
    return Looked(incident=incident, inbox=inbox)


def _fenced(incident_id: str, stored: Item | None, generation: int) -> Exception:
    if not stored:
        return UnknownEntity(f"incident {incident_id!r} does not exist")
    found = items.read_number(stored, "generation", 1)
    if found == generation:
        return VersionConflict(f"{incident_id} is closed")
    return VersionConflict(f"{incident_id} is at generation {found}, not {generation}")


def _pack_signal(signal: Signal) -> Item:
    """The inbox form; evidence that would not fit gives way to its size, everything else stays."""
    packed = items.pack(signal.to_wire())
    if items.packed_bytes(packed) <= MAX_SIGNAL_BYTES:
        return packed
    wire = signal.to_wire(defaults=True)
    tight = items.squeeze(wire)
    if items.packed_bytes(tight) <= MAX_SIGNAL_BYTES:
        return tight
    dropped = len(json.dumps(wire["evidence"]))
    kept = {name: value for name, value in wire["evidence"].items() if len(json.dumps(value)) <= 100}
    slim = items.squeeze(wire | {"evidence": kept | {"evidence_dropped_bytes": dropped}})
    if items.packed_bytes(slim) <= MAX_SIGNAL_BYTES:
        return slim
    return items.squeeze(wire | {"evidence": {"evidence_dropped_bytes": dropped}})


def _line(entry: TimelineEntry) -> Item:
    wire = {"facts": {}} | entry.to_wire()
    wire["text"] = wire["text"][:MAX_ENTRY_TEXT_CHARS]
    packed = items.pack(wire)
    if items.packed_bytes(packed) > MAX_ENTRY_BYTES:
        packed = items.pack(wire | {"facts": {"facts_dropped_bytes": len(json.dumps(wire["facts"]))}})
    return {"line": packed}
