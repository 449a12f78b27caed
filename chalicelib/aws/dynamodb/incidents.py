"""Incidents in DynamoDB: ports.IncidentStore over one table. docs/storage.md lists the items.

Signals come in through incident_inbox.py; every write of the recovery is fenced by version and generation.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.incident_inbox import IncidentInbox
from chalicelib.aws.dynamodb.incident_items import (
    incident_of,
    looked_of,
    pack_line,
    scope_key,
)
from chalicelib.aws.dynamodb.items import Expression, Item
from chalicelib.aws.errors import AwsRefusal
from chalicelib.domain.model.errors import UnknownEntity, VersionConflict
from chalicelib.domain.model.incident import Incident, TimelineEntry
from chalicelib.ports.incidents import StoredIncident

_CANCELED: Final = "TransactionCanceledException"


class DynamoIncidentStore(IncidentInbox):
    """ports.IncidentStore over one table; `client` is a boto3 DynamoDB client."""

    def look(self, incident_id: str, *, generation: int, callback_id: str, look_by: datetime) -> StoredIncident:
        try:
            answer = items.retry_in_transaction(
                self._client.update_item,
                expect=(items.CONDITION_FAILED,),
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
        return looked_of(answer["Attributes"])

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
        stored = replace(incident, version=expected_version + 1)
        line = {
            "Put": {
                "TableName": self._table,
                "Item": items.key(items.incident_pk(incident.incident_id), f"T#{stored.version:06d}")
                | pack_line(entry),
            }
        }
        write = self._update_incident(
            stored, expected_version=expected_version, token=token, absorbed=absorbed, look_by=look_by
        )
        free = [] if incident.is_open else [self._unpoint(incident)]
        for transaction in ([write, line, *free], [write, line]):
            try:
                items.retry_in_transaction(
                    self._client.transact_write_items, expect=(_CANCELED,), TransactItems=transaction
                )
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
                "Key": scope_key(incident),
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
        place = items.key(items.incident_pk(incident_id), f"T#A#{token}")
        items.put_new(self._client, self._table, place | pack_line(entry))  # or it was written under this token before

    def claim(self, incident_id: str, *, token: str) -> bool:
        return items.put_new(self._client, self._table, items.key(items.incident_pk(incident_id), f"CLAIM#{token}"))

    def next_generation(self, incident_id: str, *, generation: int) -> int:
        """See ports.IncidentStore. A closed Incident has no next generation: VersionConflict."""
        try:
            items.retry_in_transaction(
                self._client.update_item,
                expect=(items.CONDITION_FAILED,),
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


def _fenced(incident_id: str, stored: Item | None, generation: int) -> Exception:
    if not stored:
        return UnknownEntity(f"incident {incident_id!r} does not exist")
    found = items.read_number(stored, "generation", 1)
    if found == generation:
        return VersionConflict(f"{incident_id} is closed")
    return VersionConflict(f"{incident_id} is at generation {found}, not {generation}")
