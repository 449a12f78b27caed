"""Routes about Incidents: listed, read, their story, and their end by order."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from chalicelib.api.operation import EMPTY, PAGED, Operation
from chalicelib.api.parts import Parts
from chalicelib.api.problems import MAX_ANSWER_BYTES, Answer, ok
from chalicelib.api.request import Request
from chalicelib.api.routes_jobs import taken
from chalicelib.api.schema import ref, text, word
from chalicelib.api.wires import incident_brief
from chalicelib.domain.model.errors import InvalidRequest, UnknownEntity
from chalicelib.ports import Wanted
from rekindle.signatures.faults import FaultClass

LINES_SHOWN: Final = 1000
LINK: Final = timedelta(hours=1)  # it is opened at once, by whoever has asked for it
_STATES: Final = {"open": True, "closed": False, "all": None}
MOMENT: Final = {
    **text(
        "opened then or later: ISO-8601, UTC where it has no offset",
        high=40,
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
        r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?$",
    ),
    "examples": ["2026-11-20T10:00:00Z"],
}


def list_incidents(parts: Parts, request: Request) -> Answer:
    """Incidents, newest first, a page at a time."""
    query = request.query
    wanted = Wanted(
        is_open=_STATES[query.get("state", "open")],
        job_id=query.get("job_id"),
        cluster=query.get("cluster"),
        fault=query.get("fault"),
        since=moment_of(query.get("since"), "since"),
    )
    page = parts.listings.incidents(wanted, limit=request.limit, cursor=request.cursor)
    return ok({"incidents": [incident_brief(incident) for incident in page.incidents], "cursor": page.cursor})


def get_incident(parts: Parts, request: Request) -> Answer:
    """One Incident with the newest of its timeline."""
    incident_id = request.names["incident_id"]
    looked = parts.store.load(incident_id)
    timeline = [entry.to_wire() for entry in parts.store.timeline(incident_id)]
    body = {**looked.incident.to_wire(), "inbox": [signal.to_wire() for signal in looked.inbox]}
    shown = _newest_that_fit(timeline, MAX_ANSWER_BYTES - len(json.dumps(body)))
    return ok({**body, "timeline": shown, "timeline_left_out": len(timeline) - len(shown)})


def get_timeline(parts: Parts, request: Request) -> Answer:
    """The story of an Incident, a page at a time."""
    lines, cursor = parts.listings.timeline(request.names["incident_id"], limit=request.limit, cursor=request.cursor)
    return ok({"timeline": [line.to_wire() for line in lines], "cursor": cursor})


def incident_report(parts: Parts, request: Request) -> Answer:
    """A fresh signed link to an Incident's page."""
    incident_id = request.names["incident_id"]
    link = parts.page_shelf.link(incident_id, lasts=LINK)
    if link is None:
        parts.store.load(incident_id)  # no page, or no such Incident?
        raise UnknownEntity(
            f"incident {incident_id!r} has no page: it is written when people are told of a change, and kept for 90 "
            f"days; `rekindle show {incident_id}` and `rekindle postmortem {incident_id}` tell the same"
        )
    return ok(
        {
            "incident_id": incident_id,
            "url": link.url,
            "until": link.until.isoformat(),
            "written_at": link.written_at.isoformat(),
        }
    )


def cancel_incident(parts: Parts, request: Request) -> Answer:
    """Order the end of an Incident."""
    return taken(parts, parts.orders.cancel(request.names["incident_id"], who=request.who, key=request.key))


def moment_of(given: str | None, name: str) -> datetime | None:
    """A moment in a query.

    Raises:
        InvalidRequest: there is no such day or hour.
    """
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(name, "is no moment in time") from None


def _newest_that_fit(timeline: list[dict[str, Any]], room: int) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for line in reversed(timeline[-LINES_SHOWN:]):
        room -= len(json.dumps(line)) + 2
        if room < 0:
            break
        shown.append(line)
    return shown[::-1]


OPERATIONS = (
    Operation(
        name="list_incidents",
        method="GET",
        path="/incidents",
        tag="incidents",
        summary="Incidents, newest first, a page at a time",
        said="A page may hold fewer rows than `limit`, even none, and yet have a cursor: go on until it is null.",
        run=list_incidents,
        query={
            "state": {**word("open, closed, or all: the open ones first", _STATES), "default": "open"},
            "job_id": text("only this Job's"),
            "cluster": text("only those on this cluster (its name in Slurm, or its ARN)"),
            "fault": word("only those with this fault", FaultClass),
            "since": MOMENT,
            **PAGED,
        },
        answers={200: ref("Incidents")},
    ),
    Operation(
        name="get_incident",
        method="GET",
        path="/incidents/{incident_id}",
        tag="incidents",
        summary="One Incident with everything that its decisions rest on",
        run=get_incident,
        answers={200: ref("Incident")},
    ),
    Operation(
        name="get_timeline",
        method="GET",
        path="/incidents/{incident_id}/timeline",
        tag="incidents",
        summary="The story of an Incident from its beginning, a page at a time",
        run=get_timeline,
        query=PAGED,
        answers={200: ref("Timeline")},
    ),
    Operation(
        name="incident_report",
        method="GET",
        path="/incidents/{incident_id}/report",
        tag="incidents",
        summary="A fresh signed link to an Incident's page",
        said="The page is one HTML document that needs nothing beside itself. The link opens it for whoever has the "
        "link, until `until` at the latest: it ends with the credentials that signed it, which may be sooner.",
        run=incident_report,
        answers={200: ref("IncidentReport")},
    ),
    Operation(
        name="cancel_incident",
        method="POST",
        path="/incidents/{incident_id}/cancel",
        tag="incidents",
        summary="End an Incident at its next look; what has been done stays done",
        run=cancel_incident,
        forms={"": EMPTY},
        answers={202: ref("Taken")},
        is_order=True,
    ),
)
