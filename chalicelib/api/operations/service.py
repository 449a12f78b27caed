"""Routes about the service itself: health, status, quarantine, notices that were given up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from chalicelib.api.fields import Nothing, Parameter
from chalicelib.api.operation import Operation
from chalicelib.api.operations.shared import incident_brief, time_or_null
from chalicelib.api.parts import Parts
from chalicelib.api.problems import ApiResponse, ok
from chalicelib.api.request import DEFAULT_LIMIT, MAX_LIMIT, Request
from chalicelib.api.schema import Schema, any_object, any_text, flag, listing, record, ref, timestamp, whole
from chalicelib.ports.incidents import IncidentQuery
from rekindle.protocol.bounds import Whole

MAX_QUARANTINED = 10  # of one page: SQS gives ten messages at once
MAX_REDRIVEN = 100
_FEW: Final = {
    "limit": Parameter(Annotated[int, Whole(1, MAX_LIMIT), f"at most {MAX_QUARANTINED} are shown"], DEFAULT_LIMIT)
}


def health(parts: Parts, _: Request) -> ApiResponse:
    """Alive, and which stage."""
    return ok({"status": "ok", "stage": parts.stage, "at": parts.clock.now().isoformat()})


def status(parts: Parts, _: Request) -> ApiResponse:
    """How many Jobs and open Incidents, and whether all is paused."""
    newest = parts.listings.incidents(IncidentQuery(is_open=True), limit=DEFAULT_LIMIT)
    return ok(
        {
            "paused": parts.registry.is_paused(),
            "jobs_active": parts.listings.active_jobs(),
            "incidents_open": parts.listings.open_incidents(),
            "incidents": [incident_brief(incident) for incident in newest.incidents],
            "at": parts.clock.now().isoformat(),
        }
    )


def list_quarantine(parts: Parts, request: Request) -> ApiResponse:
    """Events that could not be read."""
    return ok({"events": list(parts.quarantine.peek(limit=min(request.limit, MAX_QUARANTINED)))})


def redrive_quarantine(parts: Parts, _: Request) -> ApiResponse:
    """Feed quarantined events in again, at most 100."""
    return ok(parts.ingress.redrive(limit=MAX_REDRIVEN))


def list_undelivered(parts: Parts, request: Request) -> ApiResponse:
    """Notices that did not reach a channel, and why."""
    return ok({"notices": list(parts.undelivered.peek(limit=min(request.limit, MAX_QUARANTINED)))})


def redrive_undelivered(parts: Parts, _: Request) -> ApiResponse:
    """Send notices that were given up again, at most 100."""
    return ok(parts.undelivered.send_again(limit=MAX_REDRIVEN))


ANSWERS: Final[Mapping[str, Schema]] = {
    "Health": record({"status": {"const": "ok"}, "stage": any_text(), "at": timestamp("now")}),
    "Status": record(
        {
            "paused": flag("the global pause"),
            "jobs_active": whole("Jobs under protection"),
            "incidents_open": whole("open Incidents"),
            "incidents": listing(ref("IncidentBrief"), "the newest 50 of them"),
            "at": timestamp("now"),
        }
    ),
    "QuarantinedEvent": any_object("an event that could not be read, with what is wrong with it"),
    "Quarantine": record({"events": listing(ref("QuarantinedEvent"))}),
    "Redriven": record(
        {"taken": whole("events fed in again"), "quarantined_again": whole("of them, still not readable")}
    ),
    "UndeliveredNotice": record(
        {
            "id": any_text("the queue's own id of it"),
            "channel": any_text("by its name in the channels document; empty: the message cannot be read"),
            "why": any_text("what the channel answered, or what is wrong"),
            "given_up_at": time_or_null("when it was given up; null: not known"),
            "notice_id": any_text("equal for the same notice on other channels"),
            "written_at": time_or_null("when it was written; null: not known"),
            "severity": any_text(),
            "kind": any_text(),
            "title": any_text(),
            "incident_id": any_text("empty: about none"),
            "job_id": any_text("empty: about none"),
        }
    ),
    "Undelivered": record({"notices": listing(ref("UndeliveredNotice"))}),
    "SentAgain": record(
        {"sent_again": whole("notices on their way again"), "unreadable": whole("messages that are no notice; left")}
    ),
}

OPERATIONS = (
    Operation(
        method="GET",
        path="/health",
        tag="service",
        run=health,
        answers={200: ref("Health")},
    ),
    Operation(
        method="GET",
        path="/status",
        tag="service",
        run=status,
        answers={200: ref("Status")},
    ),
    Operation(
        method="GET",
        path="/quarantine",
        tag="service",
        run=list_quarantine,
        query=_FEW,
        answers={200: ref("Quarantine")},
    ),
    Operation(
        method="POST",
        path="/quarantine/redrive",
        tag="service",
        run=redrive_quarantine,
        forms={"": Nothing},
        answers={200: ref("Redriven")},
        is_order=True,
    ),
    Operation(
        method="GET",
        path="/undelivered",
        tag="service",
        run=list_undelivered,
        query=_FEW,
        answers={200: ref("Undelivered")},
    ),
    Operation(
        method="POST",
        path="/undelivered/redrive",
        tag="service",
        details="What has arrived meanwhile is not sent twice; what fails again comes back here with the new reason.",
        run=redrive_undelivered,
        forms={"": Nothing},
        answers={200: ref("SentAgain")},
        is_order=True,
    ),
)
