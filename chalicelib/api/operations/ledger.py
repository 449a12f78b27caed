"""Routes about what Incidents cost and saved: ledgers, post-mortems, curves, rehearsals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from chalicelib.api.fields import Parameter
from chalicelib.api.operation import Operation
from chalicelib.api.operations.shared import MOMENT, SINCE, moment_of
from chalicelib.api.parts import Parts
from chalicelib.api.problems import ApiResponse, ok
from chalicelib.api.request import Request
from chalicelib.api.schema import (
    Schema,
    any_object,
    any_text,
    flag,
    listing,
    maybe,
    number,
    or_null,
    record,
    ref,
    table,
    timestamp,
    whole,
    word,
)
from chalicelib.domain.fault_specs.faults import FAULTS
from chalicelib.domain.model.approvals import Guard
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.reporting.windows import DEFAULT_MINUTES, MAX_DAYS, MAX_MINUTES
from rekindle.protocol.bounds import OneOf, Whole
from rekindle.protocol.signals import FaultClass

DEFAULT_DAYS: Final = 30
_REHEARSED: Final = tuple(spec.fault for spec in FAULTS if spec.drill is not None)
Until = Annotated[str, MOMENT, "the window's end, now if left out: ISO-8601, UTC without an offset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """what is tried"""

    fault: Annotated[str, OneOf(_REHEARSED), "what is rehearsed"]


def job_curves(parts: Parts, request: Request) -> ApiResponse:
    """A run's curves: loss, steps, step time, gradient norm."""
    minutes = int(request.query.get("minutes", DEFAULT_MINUTES))
    until = moment_of(request.query.get("until"), "until")
    return ok(parts.curves.read(request.names["job_id"], minutes=minutes, until=until))


def job_ledger(parts: Parts, request: Request) -> ApiResponse:
    """What a Job's Incidents cost and saved, and its ETTR."""
    return ok(parts.ledgers.job(request.names["job_id"]))


def incident_ledger(parts: Parts, request: Request) -> ApiResponse:
    """What an Incident cost and saved, stage by stage."""
    return ok(parts.ledgers.incident(request.names["incident_id"]))


def postmortem(parts: Parts, request: Request) -> ApiResponse:
    """An Incident's post-mortem in Markdown."""
    return ok({"markdown": parts.ledgers.postmortem(request.names["incident_id"])})


def fleet_ledger(parts: Parts, request: Request) -> ApiResponse:
    """What all Incidents of so many days cost and saved."""
    return ok(parts.ledgers.fleet(int(request.query.get("days", DEFAULT_DAYS))))


def start_drill(parts: Parts, request: Request) -> ApiResponse:
    """Rehearse a fault on a living run: real reads, real decisions, and nothing is done."""
    result = parts.drills.start(request.names["job_id"], request.form.fault, who=request.who, key=request.key)
    return ok(result, status=201)


def get_drill(parts: Parts, request: Request) -> ApiResponse:
    """A rehearsal's result; kept for 30 days."""
    return ok(parts.drills.get(request.names["drill_id"]))


_QUANTITY: Final = ref("Quantity")
_TOTAL: Final = ref("Total")
_RANGE: Final = ref("Range")
_RANGE_TOTAL: Final = ref("RangeTotal")
_SPREAD: Final = ref("Spread")
_STAGE: Final = record({"phase": any_text(), "seconds": number()})
_SUMS: Final[Mapping[str, Schema]] = {
    "incidents": table(whole("how many"), "all, open, and by how they ended"),
    "mttd_s": _SPREAD,
    "mttr_s": _SPREAD,
    "steps_lost": _TOTAL,
    "steps_saved": _TOTAL,
    "lost_s": _TOTAL,
    "gpu_hours_lost": _TOTAL,
    "gpu_hours_saved": _TOTAL,
    "dollars_lost": _TOTAL,
    "dollars_saved": _TOTAL,
    "spared_gpu_hours": _RANGE_TOTAL,
    "spared_dollars": _RANGE_TOTAL,
    "spared_assumes": any_text("what the two figures above take for granted, in one line"),
    "lost_by_stage_s": table(number(), "stage -> seconds"),
    "lost_by_fault_s": table(number(), "fault -> seconds"),
    "ettr": _QUANTITY,
    "ettr_at_most": _QUANTITY,
    "prices": any_object("the price table that counted"),
    "truncated": flag("not all Incidents were counted"),
    "text": any_text("what was left out"),
}
ANSWERS: Final[Mapping[str, Schema]] = {
    "Quantity": {"oneOf": [number("a figure"), record({"unknown": any_text("why it is not known")})]},
    "Total": record(
        {"sum": _QUANTITY, "counted": whole("of how many"), "not_counted": whole("Incidents that have no figure")}
    ),
    "Range": {
        "oneOf": [
            record({"low": number("against an automatic requeue"), "high": number("against a person")}, "an estimate"),
            record({"unknown": any_text("why it is not known")}),
        ]
    },
    "RangeTotal": record(
        {"sum": _RANGE, "counted": whole("of how many"), "not_counted": whole("Incidents that have no figure")}
    ),
    "Spread": record(
        {"median": _QUANTITY, "p90": _QUANTITY, "counted": whole("of how many"), "not_counted": whole("without one")}
    ),
    "Baseline": record(
        {"waiting_s": _QUANTITY, "lost_s": _QUANTITY, "gpu_hours_lost": _QUANTITY, "dollars_lost": _QUANTITY}
    ),
    "IncidentLedger": record(
        {
            "incident_id": any_text(),
            "job_id": or_null(any_text()),
            "fault": word("what was wrong", FaultClass),
            "phase": word("where it stands", Phase),
            "outcome": any_text(),
            "opened_at": timestamp("when it was taken in"),
            "closed_at": or_null(timestamp("when it ended")),
            "until": timestamp("until when is counted"),
            "onset_at": {"oneOf": [timestamp("when it began"), record({"unknown": any_text()})]},
            "onset_from": any_text("where that time comes from"),
            "mttd_s": _QUANTITY,
            "mttr_s": _QUANTITY,
            "elapsed_s": _QUANTITY,
            "stages": listing(
                record({"phase": any_text(), "at": timestamp("began"), "after_s": _QUANTITY, "seconds": number()})
            ),
            "steps_lost": _QUANTITY,
            "steps_saved": _QUANTITY,
            "step_s": _QUANTITY,
            "lost_s": _QUANTITY,
            "lost_stages": listing(_STAGE),
            "instances": listing({"type": "array"}, "[instance type, how many]"),
            "gpus": _QUANTITY,
            "gpu_hours_lost": _QUANTITY,
            "gpu_hours_saved": _QUANTITY,
            "dollars_lost": _QUANTITY,
            "dollars_saved": _QUANTITY,
            "counterfactual": record(
                {
                    "requeue": ref("Baseline"),
                    "person": ref("Baseline"),
                    "recompute_s": _QUANTITY,
                    "spared_s": _RANGE,
                    "spared_gpu_hours": _RANGE,
                    "spared_dollars": _RANGE,
                    "assumes": any_text("what these figures take for granted, in one line"),
                },
                "the same Incident with an automatic requeue, and with a person",
            ),
            "assumptions": listing(any_text()),
        },
        is_open=True,
    ),
    "JobLedger": record(
        {
            "job_id": any_text(),
            "name": any_text(),
            "active": flag("it runs"),
            "gpus": _QUANTITY,
            "instances": listing({"type": "array"}, "[instance type, how many]"),
            "attempts": whole("so far"),
            "began_at": timestamp("the first attempt"),
            "until": or_null(timestamp("until when is counted; null where the end is not known")),
            "wall_s": _QUANTITY,
            **_SUMS,
        },
        is_open=True,
    ),
    "FleetLedger": record(
        {
            "days": whole("the window"),
            "since": timestamp("its begin"),
            "until": timestamp("its end"),
            "jobs": whole("Jobs in the ETTR"),
            **_SUMS,
        },
        is_open=True,
    ),
    "Postmortem": record({"markdown": any_text("the whole document")}),
    "Curves": record(
        {
            "job_id": any_text(),
            "attempt": any_text("the present one"),
            "source": word("whose metrics", ("monitor", "training_job")),
            "since": timestamp("the window's begin"),
            "until": timestamp("its end"),
            "period_s": whole("of one point"),
            "curves": table(
                maybe(listing(listing(number()), "[seconds since 1970, value]")), "name of the curve -> its points"
            ),
        }
    ),
    "Drill": record(
        {
            "drill_id": any_text(),
            "job_id": any_text(),
            "fault": word("what was rehearsed", FaultClass),
            "by": any_text("who ordered it"),
            "at": timestamp("when"),
            "policy": record({"name": any_text(), "version": any_text()}),
            "seen": any_object("what was real"),
            "outcome": any_object("how it would have ended"),
            "looks": listing(any_object("one observation with its decision")),
            "looks_left_out": whole("more than were kept"),
            "guards": listing(
                record(
                    {
                        "guard": word("what would have held", Guard),
                        "after_s": number(),
                        "text": any_text(),
                        "lifted": flag("the rehearsal continued without it"),
                    }
                )
            ),
            "resume": or_null(any_object("where the new attempt would have resumed")),
            "stages": listing(any_object("one stage and how long it would have taken")),
            "total_s": maybe(number()),
            "would_do": {"description": "the actions, in order"},
            "assumptions": listing(any_text()),
        },
        is_open=True,
    ),
}

OPERATIONS = (
    Operation(
        method="GET",
        path="/jobs/{job_id}/curves",
        tag="jobs",
        run=job_curves,
        query={
            "minutes": Parameter(Annotated[int, Whole(1, MAX_MINUTES), "the window"], DEFAULT_MINUTES),
            "until": Parameter(Until, example=SINCE.example),
        },
        answers={200: ref("Curves")},
    ),
    Operation(
        method="GET",
        path="/jobs/{job_id}/ledger",
        tag="ledger",
        run=job_ledger,
        answers={200: ref("JobLedger")},
    ),
    Operation(
        method="GET",
        path="/incidents/{incident_id}/ledger",
        tag="ledger",
        run=incident_ledger,
        answers={200: ref("IncidentLedger")},
    ),
    Operation(
        method="GET",
        path="/incidents/{incident_id}/postmortem",
        tag="ledger",
        run=postmortem,
        answers={200: ref("Postmortem")},
    ),
    Operation(
        method="GET",
        path="/ledger",
        tag="ledger",
        run=fleet_ledger,
        query={"days": Parameter(Annotated[int, Whole(1, MAX_DAYS), "the window"], DEFAULT_DAYS)},
        answers={200: ref("FleetLedger")},
    ),
    Operation(
        method="POST",
        path="/jobs/{job_id}/drills",
        tag="drills",
        run=start_drill,
        forms={"": Rehearsal},
        answers={201: ref("Drill")},
        is_order=True,
        example={"fault": _REHEARSED[0].value},
    ),
    Operation(
        method="GET",
        path="/drills/{drill_id}",
        tag="drills",
        run=get_drill,
        answers={200: ref("Drill")},
    ),
)
