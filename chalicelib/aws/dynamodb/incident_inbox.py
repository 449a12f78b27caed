"""How Signals enter Incidents in DynamoDB: opened, joined, or known already. docs/storage.md lists the items.

Adding a Signal is two plain writes that may be repeated in any state: the mark `SIG#<dedupe_key>` says which Incident
took the fact, and the Incident's own set `marks` says whether it really did. A crash between the two is healed by the
redelivery; and no transaction is held on an Incident that a storm of Signals arrives at.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.incident_items import (
    entry_of,
    holds,
    index_row,
    owner_of,
    pack_signal,
    scope_key,
)
from chalicelib.aws.dynamodb.incident_reader import IncidentReader
from chalicelib.aws.dynamodb.items import Expression, Item
from chalicelib.aws.errors import AwsRefusal
from chalicelib.domain.model.errors import UnknownEntity
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.signal import Signal, SignalSource
from chalicelib.ports.incidents import Entry, JoinOutcome

_LOG = logging.getLogger(__name__)

# Together these keep an Incident's item below DynamoDB's 400 KB whatever arrives: 100 x 1.2 KB inbox, 5,000 x 15 B
# marks, and the state with its 40 kept Signals, which came through the same gate. Taking 100 out by index is 1.5 KB of
# expression; DynamoDB takes 4 KB and 300 operators. They also keep what one look returns below what a durable step may
# (recovery/workflow.py).
MAX_INBOX: Final = 80
MAX_SIGNALS: Final = 5000  # over an Incident's life; sweeps, echoes and storms stay far below
ORDERS_EXTRA: Final = 20  # an operator's cancel must still get in when a storm has filled the inbox

# Longer than EventBridge (24 h) and Lambda (6 h) redeliver, and than a person needs to send a quarantined event again.
SIGNAL_MEMORY: Final = timedelta(days=14)

_CANCELED: Final = "TransactionCanceledException"


class IncidentInbox(IncidentReader):
    """The part of ports.IncidentStore that takes Signals in."""

    def open(self, incident: Incident, signal: Signal, *, now: datetime) -> Entry:
        """See ports.IncidentStore. Raises UnknownEntity for a Job that is not registered."""
        owner: str | None = None
        for _ in range(2):
            reasons = self._try_open(incident, signal, owner=owner, now=now)
            if reasons is None:
                return Entry(
                    outcome=JoinOutcome.OPENED, incident_id=incident.incident_id, generation=incident.generation
                )
            created, pointer, marked = reasons[:3]
            if marked is not None:
                entry = self._seen_before(owner_of(marked), signal)
                if entry is not None:
                    return entry
                owner = owner_of(marked)  # marked for an Incident that closed before it took the fact: take it over
                continue
            if created is not None:  # the mark has expired, the Incident of this very fact is still there
                return entry_of(JoinOutcome.DUPLICATE, created)
            return self._join_pointed(incident, pointer or {}, signal, now=now)
        return Entry(outcome=JoinOutcome.CLOSED, incident_id=incident.incident_id)

    def _try_open(
        self, incident: Incident, signal: Signal, *, owner: str | None, now: datetime
    ) -> list[Item | None] | None:
        """None when it took effect, else per item of the transaction what stood in its way."""
        try:
            items.retry_in_transaction(
                self._client.transact_write_items,
                expect=(_CANCELED,),
                TransactItems=[
                    self._put_incident(incident, signal),
                    self._point(incident),
                    self._put_mark(incident.incident_id, signal, now=now, owner=owner),
                    {"Put": {"TableName": self._table, "Item": index_row(incident)}},
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
            "inbox": {"L": [pack_signal(signal)]},
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
                "Key": scope_key(incident),
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
            stored = items.get(self._client, self._table, scope_key(incident))
            if stored is None and incident.job_id is not None:
                raise UnknownEntity(f"job {incident.job_id!r} is not registered")
            current = items.read_text(stored or {}, "open_incident")
        if current is None:
            return Entry(outcome=JoinOutcome.CLOSED, incident_id=incident.incident_id)
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
        return Entry(outcome=JoinOutcome.CLOSED, incident_id=incident_id)

    def _mark(self, incident_id: str, signal: Signal, *, owner: str | None, now: datetime) -> str:
        """Claim the fact for `incident_id`; the id of the Incident that holds it."""
        put = self._put_mark(incident_id, signal, now=now, owner=owner)["Put"]
        try:
            items.retry_in_transaction(self._client.put_item, expect=(items.CONDITION_FAILED,), **put)
        except AwsRefusal as refusal:
            return owner_of(refusal.response["Item"])
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
            ":signal": {"L": [pack_signal(signal)]},
            ":one": items.number(1),
            ":marks": {"SS": [mark]},
            ":true": items.flag(True),
            ":mark": items.text(mark),
            ":room": items.number(MAX_INBOX + extra),
            ":cap": items.number(MAX_SIGNALS + extra),
        }
        try:
            answer = items.retry_in_transaction(
                self._client.update_item,
                expect=(items.CONDITION_FAILED,),
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
            if holds(stored, signal):
                return entry_of(JoinOutcome.DUPLICATE, stored)
            if not items.read_flag(stored, "is_open"):
                return entry_of(JoinOutcome.CLOSED, stored)
            return self._overflow(incident_id)
        return entry_of(JoinOutcome.JOINED, answer["Attributes"])

    def _overflow(self, incident_id: str) -> Entry:
        """Count a Signal that finds no room. It still wakes the Incident, which reads the world again."""
        _LOG.warning("inbox is full", extra={"incident_id": incident_id})
        answer = items.retry_in_transaction(
            self._client.update_item,
            TableName=self._table,
            Key=items.key(items.incident_pk(incident_id)),
            UpdateExpression="ADD #overflow :one",
            ExpressionAttributeNames={"#overflow": "overflow"},
            ExpressionAttributeValues={":one": items.number(1)},
            ReturnValues="ALL_NEW",
        )
        return replace(entry_of(JoinOutcome.JOINED, answer["Attributes"]), is_full=True)

    def _seen_before(self, owner: str, signal: Signal) -> Entry | None:
        """The Entry of a fact that is marked for `owner`; None if `owner` closed without having taken it."""
        stored = items.get(self._client, self._table, items.key(items.incident_pk(owner)))
        if stored is None:
            return None
        if holds(stored, signal):
            return entry_of(JoinOutcome.DUPLICATE, stored)
        if not items.read_flag(stored, "is_open"):
            return None
        entry = self._add(owner, signal)
        return None if entry.outcome is JoinOutcome.CLOSED else entry
