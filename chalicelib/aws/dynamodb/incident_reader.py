"""Incidents in DynamoDB, read: one, its timeline, and lists of them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.incident_items import incident_of, looked_of
from chalicelib.aws.dynamodb.items import Item
from chalicelib.aws.errors import call
from chalicelib.domain.model.errors import UnknownEntity
from chalicelib.domain.model.incident import Incident, TimelineEntry, node_scope
from chalicelib.ports.incidents import Page, StoredIncident


def _in_order(stored: Iterable[Item]) -> tuple[TimelineEntry, ...]:
    recorded: list[TimelineEntry] = []
    appended: list[TimelineEntry] = []
    for item in stored:
        line = items.unpack_record(TimelineEntry, item["line"])
        (appended if item["sk"]["S"].startswith("T#A#") else recorded).append(line)
    appended.sort(key=lambda line: line.at)
    return tuple(heapq.merge(recorded, appended, key=lambda line: line.at))


class IncidentReader:
    """The reading half of ports.IncidentStore over one table; `client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def load(self, incident_id: str) -> StoredIncident:
        return looked_of(self._stored(incident_id))

    def callback_of(self, incident_id: str) -> str | None:
        return items.read_text(self._stored(incident_id), "callback_id")

    def _stored(self, incident_id: str) -> Item:
        stored = items.get(self._client, self._table, items.key(items.incident_pk(incident_id)))
        if stored is None:
            raise UnknownEntity(f"incident {incident_id!r} does not exist")
        return stored

    def timeline(self, incident_id: str) -> tuple[TimelineEntry, ...]:
        """See ports.IncidentStore. Recorded lines keep their order; appended ones are merged in by their time."""
        request = items.query_prefix(items.incident_pk(incident_id), "T#")
        return _in_order(items.query(self._client, self._table, **request))

    def load_with_timeline(self, incident_id: str) -> tuple[StoredIncident, tuple[TimelineEntry, ...]]:
        """See ports.IncidentStore. The Incident's whole partition: its item, and one per line."""
        found = list(items.query(self._client, self._table, **items.query_prefix(items.incident_pk(incident_id), "")))
        stored = next((item for item in found if item["sk"]["S"] == items.META), None)
        if stored is None:
            raise UnknownEntity(f"incident {incident_id!r} does not exist")
        return looked_of(stored), _in_order(item for item in found if item["sk"]["S"].startswith("T#"))

    def list_open(self) -> Iterator[tuple[Incident, datetime | None]]:
        rows = items.query(self._client, self._table, **items.index_query(items.INCIDENTS_OPEN))
        for stored in items.get_many(self._client, self._table, items.keys_of(rows)):
            if items.read_flag(stored, "is_open"):  # the index lags behind
                yield incident_of(stored), items.read_at(stored, "look_by")

    def list_closed(self, *, limit: int, cursor: str | None = None) -> Page:
        """See ports.IncidentStore. Raises InvalidRequest for a cursor that is not ours."""
        request = items.index_query(items.INCIDENTS_CLOSED, newest_first=True) | {"Limit": limit}
        _, start = items.read_cursor(cursor, places=(items.INCIDENTS_CLOSED,))
        if start is not None:
            request["ExclusiveStartKey"] = start
        page = call(self._client.query, TableName=self._table, **request)
        stored = items.get_many(self._client, self._table, items.keys_of(page.get("Items", ())))
        last = page.get("LastEvaluatedKey")
        after = items.cursor_of(items.INCIDENTS_CLOSED, last) if last else None
        return Page(incidents=tuple(incident_of(item) for item in stored), cursor=after)

    def list_for_job(self, job_id: str, *, limit: int) -> tuple[Incident, ...]:
        return self._list_below(items.job_pk(job_id), limit)

    def list_for_node(self, cluster: str, node: str, *, limit: int) -> tuple[Incident, ...]:
        return self._list_below(items.cluster_pk(node_scope(cluster, node)), limit)

    def _list_below(self, pk: str, limit: int) -> tuple[Incident, ...]:
        request = items.query_prefix(pk, "INCIDENT#", newest_first=True) | {"Limit": limit}
        rows = call(self._client.query, TableName=self._table, **request).get("Items", ())
        keys = [items.key(items.incident_pk(row["incident_id"]["S"])) for row in rows]
        return tuple(incident_of(item) for item in items.get_many(self._client, self._table, keys))
