"""Routes about what Incidents cost and saved: ledgers, post-mortems, curves, rehearsals."""

from __future__ import annotations

from typing import Final

from chalicelib.api.operation import Operation
from chalicelib.api.parts import Parts
from chalicelib.api.problems import Answer, ok
from chalicelib.api.request import Request
from chalicelib.api.routes_incidents import MOMENT, moment_of
from chalicelib.api.schema import record, ref, whole, word
from chalicelib.domain.drills.catalogue import DRILLS
from chalicelib.services.operator.curves import DEFAULT_MINUTES, MAX_MINUTES
from chalicelib.services.reporting.ledgers import MAX_DAYS

DEFAULT_DAYS: Final = 30


def job_curves(parts: Parts, request: Request) -> Answer:
    """A run's curves."""
    minutes = int(request.query.get("minutes", DEFAULT_MINUTES))
    until = moment_of(request.query.get("until"), "until")
    return ok(parts.curves.read(request.names["job_id"], minutes=minutes, until=until))


def job_ledger(parts: Parts, request: Request) -> Answer:
    """A Job's ledger."""
    return ok(parts.ledgers.job(request.names["job_id"]))


def incident_ledger(parts: Parts, request: Request) -> Answer:
    """An Incident's ledger."""
    return ok(parts.ledgers.incident(request.names["incident_id"]))


def postmortem(parts: Parts, request: Request) -> Answer:
    """An Incident's post-mortem."""
    return ok({"markdown": parts.ledgers.postmortem(request.names["incident_id"])})


def fleet_ledger(parts: Parts, request: Request) -> Answer:
    """The fleet's ledger."""
    return ok(parts.ledgers.fleet(int(request.query.get("days", DEFAULT_DAYS))))


def start_drill(parts: Parts, request: Request) -> Answer:
    """Rehearse a fault."""
    result = parts.drills.start(request.names["job_id"], request.body["fault"], who=request.who, key=request.key)
    return ok(result, status=201)


def get_drill(parts: Parts, request: Request) -> Answer:
    """A rehearsal's result."""
    return ok(parts.drills.get(request.names["drill_id"]))


OPERATIONS = (
    Operation(
        name="job_curves",
        method="GET",
        path="/jobs/{job_id}/curves",
        tag="jobs",
        summary="A run's curves: loss, steps, step time, gradient norm",
        run=job_curves,
        query={
            "minutes": {**whole("the window", low=1, high=MAX_MINUTES), "default": DEFAULT_MINUTES},
            "until": {**MOMENT, "description": "the window's end, now if left out: ISO-8601, UTC without an offset"},
        },
        answers={200: ref("Curves")},
    ),
    Operation(
        name="job_ledger",
        method="GET",
        path="/jobs/{job_id}/ledger",
        tag="ledger",
        summary="What a Job's Incidents cost and saved, and its ETTR",
        run=job_ledger,
        answers={200: ref("JobLedger")},
    ),
    Operation(
        name="incident_ledger",
        method="GET",
        path="/incidents/{incident_id}/ledger",
        tag="ledger",
        summary="What an Incident cost and saved, stage by stage",
        run=incident_ledger,
        answers={200: ref("IncidentLedger")},
    ),
    Operation(
        name="postmortem",
        method="GET",
        path="/incidents/{incident_id}/postmortem",
        tag="ledger",
        summary="An Incident's post-mortem in Markdown",
        run=postmortem,
        answers={200: ref("Postmortem")},
    ),
    Operation(
        name="fleet_ledger",
        method="GET",
        path="/ledger",
        tag="ledger",
        summary="What all Incidents of so many days cost and saved",
        run=fleet_ledger,
        query={"days": {**whole("the window", low=1, high=MAX_DAYS), "default": DEFAULT_DAYS}},
        answers={200: ref("FleetLedger")},
    ),
    Operation(
        name="start_drill",
        method="POST",
        path="/jobs/{job_id}/drills",
        tag="drills",
        summary="Rehearse a fault on a living run: real reads, real decisions, and nothing is done",
        run=start_drill,
        forms={"": record({"fault": word("what is rehearsed", [row.fault for row in DRILLS])})},
        answers={201: ref("Drill")},
        is_order=True,
        example={"fault": DRILLS[0].fault.value},
    ),
    Operation(
        name="get_drill",
        method="GET",
        path="/drills/{drill_id}",
        tag="drills",
        summary="A rehearsal's result; kept for 30 days",
        run=get_drill,
        answers={200: ref("Drill")},
    ),
)
