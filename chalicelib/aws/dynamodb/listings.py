"""Pages of Incidents, Jobs and timelines out of the one table: bounded reads, whatever is stored.

A page is read through a Query of keys and a BatchGetItem of what they name. Where a filter cannot be asked of the
index (cluster, fault), at most `MAX_READ` Incidents are read for one page, and the cursor continues behind them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Any, Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.incident_items import incident_of
from chalicelib.aws.dynamodb.items import Item
from chalicelib.aws.dynamodb.jobs import job_of
from chalicelib.aws.errors import call
from chalicelib.domain.model.errors import UnknownEntity
from chalicelib.domain.model.incident import Incident, TimelineEntry
from chalicelib.domain.model.job import Job
from chalicelib.ports.incidents import IncidentQuery, Page

MAX_READ: Final = 500  # Incidents looked at for one page: five BatchGetItem calls
_RECORDED_END: Final = "T#A"  # recorded lines are T#000001 …, appended ones T#A#<token>


class DynamoListings:
    """ports.Listings; `client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str, max_read: int = MAX_READ) -> None:
        self._client = client
        self._table = table
        self._max_read = max_read

    # ---- Incidents -------------------------------------------------------------------------------------------------

    def incidents(self, wanted: IncidentQuery, *, limit: int, cursor: str | None = None) -> Page:
        sources = self._of_job(wanted) if wanted.job_id is not None else self._of_index(wanted)
        place, start = items.read_cursor(cursor, places=tuple(sources))
        found: list[Incident] = []
        left = self._max_read
        names = list(sources)
        for name in names[names.index(place) :] if place else names:
            request = sources[name]
            while True:
                keys, last = self._keys(request, start, limit=min(left, limit if _is_plain(wanted) else items.BATCH))
                left -= len(keys)
                for key, incident in self._incidents_of(keys):
                    if not _fits(incident, wanted):
                        continue
                    found.append(incident)
                    if len(found) == limit:
                        more = key is not keys[-1] or last is not None or name != names[-1]
                        return Page(incidents=tuple(found), cursor=items.cursor_of(name, key) if more else None)
                start = last
                if start is None:
                    break
                if left <= 0:
                    return Page(incidents=tuple(found), cursor=items.cursor_of(name, start))
        return Page(incidents=tuple(found), cursor=None)

    def _of_index(self, wanted: IncidentQuery) -> dict[str, dict[str, Any]]:
        """Name of the place -> the request for its keys."""
        both = {True: items.INCIDENTS_OPEN, False: items.INCIDENTS_CLOSED}
        chosen = both.values() if wanted.is_open is None else [both[wanted.is_open]]
        found: dict[str, dict[str, Any]] = {}
        for partition in chosen:
            request = items.index_query(partition, newest_first=True)
            if wanted.since is not None:
                request["KeyConditionExpression"] += " AND gsi1sk >= :since"
                request["ExpressionAttributeValues"] |= {":since": items.text(_moment(wanted))}
            found[partition] = request
        return found

    def _of_job(self, wanted: IncidentQuery) -> dict[str, dict[str, Any]]:
        job_id = wanted.job_id or ""
        request = items.query_prefix(items.job_pk(job_id), "INCIDENT#", newest_first=True)
        if wanted.since is not None:
            request["KeyConditionExpression"] = "pk = :p AND sk BETWEEN :s AND :end"
            request["ExpressionAttributeValues"] |= {
                ":s": items.text(f"INCIDENT#{_moment(wanted)}"),
                ":end": items.text("INCIDENT#~"),
            }
        return {items.job_pk(job_id): request}

    def _keys(self, request: Mapping[str, Any], start: Item | None, *, limit: int) -> tuple[list[Item], Item | None]:
        asked = {**request, "Limit": limit} | ({"ExclusiveStartKey": start} if start else {})
        page = call(self._client.query, TableName=self._table, **asked)
        return list(page.get("Items", ())), page.get("LastEvaluatedKey") or None

    def _incidents_of(self, rows: list[Item]) -> Iterator[tuple[Item, Incident]]:
        """The rows with the Incidents they name. A row whose Incident is gone is left out."""
        wanted = [_incident_key(row) for row in rows]
        stored = {item["pk"]["S"]: item for item in items.get_many(self._client, self._table, wanted)}
        for row, key in zip(rows, wanted, strict=True):
            item = stored.get(key["pk"]["S"])
            if item is not None:
                yield row, incident_of(item)

    def open_incidents(self) -> int:
        return self._count(items.INCIDENTS_OPEN)

    # ---- Jobs ------------------------------------------------------------------------------------------------------

    def jobs(self, *, active: bool | None, limit: int, cursor: str | None = None) -> tuple[tuple[Job, ...], str | None]:
        both = {True: items.JOBS_ACTIVE, False: items.JOBS_ENDED}
        names = list(both.values()) if active is None else [both[active]]
        place, start = items.read_cursor(cursor, places=tuple(names))
        rows: list[Item] = []
        after: str | None = None
        for name in names[names.index(place) :] if place else names:
            keys, last = self._keys(items.index_query(name), start, limit=limit - len(rows))
            rows += keys
            start = None
            if last is not None:
                after = items.cursor_of(name, last)
                break
            if len(rows) == limit and name != names[-1]:
                after = items.cursor_of(names[-1], None)
                break
        stored = items.get_many(self._client, self._table, items.keys_of(rows))
        return tuple(job_of(item) for item in stored), after

    def active_jobs(self) -> int:
        return self._count(items.JOBS_ACTIVE)

    def _count(self, partition: str) -> int:
        request = items.index_query(partition) | {"Select": "COUNT"}
        count, start = 0, None
        while True:
            page = call(
                self._client.query,
                TableName=self._table,
                **request,
                **({"ExclusiveStartKey": start} if start else {}),
            )
            count += int(page.get("Count", 0))
            start = page.get("LastEvaluatedKey")
            if not start:
                return count

    # ---- timelines -------------------------------------------------------------------------------------------------

    def timeline(
        self, incident_id: str, *, limit: int, cursor: str | None = None
    ) -> tuple[tuple[TimelineEntry, ...], str | None]:
        """See ports.Listings. Recorded lines come by the page; the few appended ones are put where their time is."""
        pk = items.incident_pk(incident_id)
        place, start = items.read_cursor(cursor, places=(pk,))
        if cursor is None and items.get(self._client, self._table, items.key(pk)) is None:
            raise UnknownEntity(f"incident {incident_id!r} does not exist")
        recorded = {
            "KeyConditionExpression": "pk = :p AND sk BETWEEN :s AND :end",
            "ExpressionAttributeValues": {
                ":p": items.text(pk),
                ":s": items.text("T#0"),
                ":end": items.text(_RECORDED_END),
            },
            "ConsistentRead": True,
        }
        rows, last = self._keys(recorded, start if place else None, limit=limit)
        lines = [_line(row) for row in rows]
        appended = [_line(row) for row in items.query(self._client, self._table, **items.query_prefix(pk, "T#A#"))]
        latest = lines[-1].at if lines and last is not None else None
        # A line that lies between two pages belongs to the later one.
        before = self._line_at(pk, start) if place and start else None
        floor = before.at if before is not None else None
        between = [
            line for line in appended if (floor is None or line.at > floor) and (latest is None or line.at <= latest)
        ]
        story = sorted([*lines, *between], key=lambda line: line.at)
        return tuple(story), items.cursor_of(pk, last) if last is not None else None

    def _line_at(self, pk: str, start: Item) -> TimelineEntry | None:
        stored = items.get(self._client, self._table, items.key(pk, start["sk"]["S"]))
        return None if stored is None else _line(stored)


def _line(row: Item) -> TimelineEntry:
    return items.unpack_record(TimelineEntry, row["line"])


def _is_plain(wanted: IncidentQuery) -> bool:
    """True where every key that is read is wanted."""
    return wanted.cluster is None and wanted.fault is None and (wanted.job_id is None or wanted.is_open is None)


def _fits(incident: Incident, wanted: IncidentQuery) -> bool:
    return (
        (wanted.is_open is None or incident.is_open is wanted.is_open)  # the index lags behind
        and (wanted.cluster is None or wanted.cluster == incident.cluster)
        and (wanted.fault is None or incident.fault.value == wanted.fault)
    )


def _moment(wanted: IncidentQuery) -> str:
    return wanted.since.astimezone(UTC).isoformat() if wanted.since is not None else ""


def _incident_key(row: Item) -> Item:
    if "incident_id" in row:
        return items.key(items.incident_pk(row["incident_id"]["S"]))
    return {"pk": row["pk"], "sk": row["sk"]}
