"""Routes about Incidents: listed, read, their story, and their end by order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

from chalicelib.api.fields import Nothing, Parameter, line
from chalicelib.api.operation import Operation
from chalicelib.api.operations.shared import (
    NEXT_PAGE,
    PAGED,
    SINCE,
    incident_brief,
    moment_of,
    order_accepted,
)
from chalicelib.api.parts import Parts
from chalicelib.api.problems import MAX_ANSWER_BYTES, ApiResponse, ok
from chalicelib.api.request import Request
from chalicelib.api.schema import (
    Schema,
    Written,
    any_text,
    listing,
    or_null,
    record,
    ref,
    timestamp,
    whole,
)
from chalicelib.domain.model.approvals import Approval, Hold
from chalicelib.domain.model.errors import UnknownEntity
from chalicelib.domain.model.incident import Incident, TimelineEntry
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.reporting.sentence import HAPPENING, commands_of, sentence_of, suspect_of
from chalicelib.ports.incidents import IncidentQuery
from rekindle.protocol.bounds import OneOf
from rekindle.protocol.signals import FaultClass

LINES_SHOWN: Final = 1000
LINK: Final = timedelta(hours=1)  # a caller opens it at once
_STATES: Final = {"open": True, "closed": False, "all": None}
State = Annotated[str, OneOf(tuple(_STATES)), "open, closed, or all: the open ones first"]


def list_incidents(parts: Parts, request: Request) -> ApiResponse:
    """Incidents, newest first, a page at a time."""
    query = request.query
    wanted = IncidentQuery(
        is_open=_STATES[query.get("state", "open")],
        job_id=query.get("job_id"),
        cluster=query.get("cluster"),
        fault=query.get("fault"),
        since=moment_of(query.get("since"), "since"),
    )
    page = parts.listings.incidents(wanted, limit=request.limit, cursor=request.cursor)
    return ok({"incidents": [incident_brief(incident) for incident in page.incidents], "cursor": page.cursor})


def get_incident(parts: Parts, request: Request) -> ApiResponse:
    """One Incident with everything that its decisions rest on."""
    incident_id = request.names["incident_id"]
    looked, lines = parts.store.load_with_timeline(incident_id)
    timeline = [entry.to_wire(defaults=True) for entry in lines]
    body = {
        **looked.incident.to_wire(defaults=True),
        "summary": _summary(looked.incident),
        "inbox": [signal.to_wire(defaults=True) for signal in looked.inbox],
    }
    shown = _newest_that_fit(timeline, MAX_ANSWER_BYTES - len(json.dumps(body)))
    return ok({**body, "timeline": shown, "timeline_left_out": len(timeline) - len(shown)})


def _summary(incident: Incident) -> dict[str, Any]:
    """What a person reads first."""
    return {
        "title": sentence_of(incident),
        "state": HAPPENING[incident.phase],
        "suspect": suspect_of(incident) or None,
        "commands": [{"label": label, "run": run} for label, run in commands_of(incident, region="")],
    }


def get_timeline(parts: Parts, request: Request) -> ApiResponse:
    """The timeline of an Incident from its beginning, a page at a time."""
    lines, cursor = parts.listings.timeline(request.names["incident_id"], limit=request.limit, cursor=request.cursor)
    return ok({"timeline": [line.to_wire(defaults=True) for line in lines], "cursor": cursor})


def incident_report(parts: Parts, request: Request) -> ApiResponse:
    """A fresh signed link to an Incident's page."""
    incident_id = request.names["incident_id"]
    link = parts.page_store.link(incident_id, lasts=LINK)
    if link is None:
        parts.store.load(incident_id)  # no page, or no such Incident?
        raise UnknownEntity(
            f"incident {incident_id!r} has no page: it is written with the notice of a change, and kept for 90 "
            f"days; `rekindle show {incident_id}` and `rekindle ledger postmortem {incident_id}` show the same"
        )
    return ok(
        {
            "incident_id": incident_id,
            "url": link.url,
            "until": link.until.isoformat(),
            "written_at": link.written_at.isoformat(),
        }
    )


def cancel_incident(parts: Parts, request: Request) -> ApiResponse:
    """End an Incident at its next observation; what has been done stays done."""
    outcome = parts.orders.cancel(request.names["incident_id"], who=request.who, key=request.key)
    return order_accepted(parts, outcome, is_held=False)


def _newest_that_fit(timeline: list[dict[str, Any]], room: int) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for entry in reversed(timeline[-LINES_SHOWN:]):
        room -= len(json.dumps(entry)) + 2
        if room < 0:
            break
        shown.append(entry)
    return shown[::-1]


ANSWERS: Final[Mapping[str, Schema | Written]] = {
    "Incidents": record({"incidents": listing(ref("IncidentBrief")), "cursor": NEXT_PAGE}),
    "Line": Written(TimelineEntry),
    "Timeline": record({"timeline": listing(ref("Line")), "cursor": NEXT_PAGE}),
    "Signal": Written(Signal),
    "Approval": Written(Approval),
    "Hold": Written(Hold),
    "Incident": Written(
        Incident,
        {
            "signals": listing(ref("Signal"), "the newest that were taken in"),
            "approvals": listing(ref("Approval")),
            "holds": listing(ref("Hold"), "what has held something back"),
            "summary": record(
                {
                    "title": any_text("the Incident in one sentence"),
                    "state": any_text("what its phase means, in one sentence"),
                    "suspect": or_null(any_text("the newest suspect: ranks and hosts, or a node")),
                    "commands": listing(
                        record(
                            {"label": any_text("what for"), "run": any_text("a command, or an address")},
                            "a command to copy; names in it are quoted for a shell",
                        )
                    ),
                },
                "what a person reads first",
            ),
            "timeline": listing(ref("Line"), "the newest lines, in order"),
            "timeline_left_out": whole("older lines that did not fit: see /incidents/{id}/timeline"),
            "inbox": listing(ref("Signal"), "to be read by its next observation"),
        },
    ),
    "IncidentReport": record(
        {
            "incident_id": any_text(),
            "url": any_text("the page, for a browser; a signed link, to be kept from others while it lasts"),
            "until": timestamp("when it ends at the latest"),
            "written_at": timestamp("when the page was written"),
        }
    ),
}

OPERATIONS = (
    Operation(
        method="GET",
        path="/incidents",
        tag="incidents",
        details="A page may hold fewer rows than `limit`, even none, and yet have a cursor: go on until it is null.",
        run=list_incidents,
        query={
            "state": Parameter(State, "open"),
            "job_id": Parameter(Annotated[str, line(), "only this Job's"]),
            "cluster": Parameter(Annotated[str, line(), "only those on this cluster (its name in Slurm, or its ARN)"]),
            "fault": Parameter(Annotated[str, OneOf(tuple(FaultClass)), "only those with this fault"]),
            "since": SINCE,
            **PAGED,
        },
        answers={200: ref("Incidents")},
    ),
    Operation(
        method="GET",
        path="/incidents/{incident_id}",
        tag="incidents",
        run=get_incident,
        answers={200: ref("Incident")},
    ),
    Operation(
        method="GET",
        path="/incidents/{incident_id}/timeline",
        tag="incidents",
        run=get_timeline,
        query=PAGED,
        answers={200: ref("Timeline")},
    ),
    Operation(
        method="GET",
        path="/incidents/{incident_id}/report",
        tag="incidents",
        details="The page is one HTML document that loads nothing else. The link opens it for everyone who has the "
        "link, until `until` at the latest: it ends with the credentials that signed it, which may be sooner.",
        run=incident_report,
        answers={200: ref("IncidentReport")},
    ),
    Operation(
        method="POST",
        path="/incidents/{incident_id}/cancel",
        tag="incidents",
        run=cancel_incident,
        forms={"": Nothing},
        answers={202: ref("Taken")},
        is_order=True,
    ),
)
