"""Answers about what Incidents cost: ledgers, post-mortems, curves, drills. Named schemas, as in shapes.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chalicelib.api.schema import (
    Schema,
    any_text,
    at,
    flag,
    free,
    listing,
    maybe,
    number,
    or_null,
    record,
    ref,
    table,
    whole,
    word,
)
from chalicelib.domain.model.approvals import Guard
from chalicelib.domain.model.incident import Phase
from rekindle.signatures.faults import FaultClass

_QUANTITY: Final = ref("Quantity")
_TOTAL: Final = ref("Total")
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
    "spared_gpu_hours": _TOTAL,
    "spared_dollars": _TOTAL,
    "lost_by_stage_s": table(number(), "stage -> seconds"),
    "lost_by_fault_s": table(number(), "fault -> seconds"),
    "ettr": _QUANTITY,
    "ettr_at_most": _QUANTITY,
    "prices": free("the price table that counted"),
    "truncated": flag("not all Incidents were counted"),
    "said": any_text("what was left out"),
}

LEDGER_COMPONENTS: Final[Mapping[str, Schema]] = {
    "PriceTable": record(
        {
            "version": whole("counts its writings; what the next PUT names; 0: nothing is stored"),
            "is_builtin": flag("only the built-in prices count"),
            "modified_at": or_null(any_text("when it was written")),
            "document": free("as it is stored"),
            "problem": or_null(any_text("why what is stored prices nothing")),
            "rows": listing(
                record(
                    {
                        "instance": any_text("EC2's name of the type"),
                        "usd_per_hour": number("US dollars"),
                        "as_of": any_text("the source's own date; empty: not said"),
                        "source": any_text("where the figure comes from"),
                    }
                )
            ),
            "usd_per_gpu_hour": or_null(number("for runs whose instance types are not known")),
            "without_price": listing(any_text("a type with GPUs whose cost is unknown")),
        }
    ),
    "Quantity": {"oneOf": [number("a figure"), record({"unknown": any_text("why it is not known")})]},
    "Total": record(
        {"sum": _QUANTITY, "counted": whole("of how many"), "not_counted": whole("Incidents that have no figure")}
    ),
    "Spread": record(
        {"median": _QUANTITY, "p90": _QUANTITY, "counted": whole("of how many"), "not_counted": whole("without one")}
    ),
    "IncidentLedger": record(
        {
            "incident_id": any_text(),
            "job_id": or_null(any_text()),
            "fault": word("what was wrong", FaultClass),
            "phase": word("where it stands", Phase),
            "outcome": any_text(),
            "opened_at": at("when it was taken in"),
            "closed_at": or_null(at("when it ended")),
            "until": at("until when is counted"),
            "onset_at": {"oneOf": [at("when it began"), record({"unknown": any_text()})]},
            "onset_from": any_text("who told that"),
            "mttd_s": _QUANTITY,
            "mttr_s": _QUANTITY,
            "elapsed_s": _QUANTITY,
            "stages": listing(
                record({"phase": any_text(), "at": at("began"), "after_s": _QUANTITY, "seconds": number()})
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
                    "waiting_s": _QUANTITY,
                    "recompute_s": _QUANTITY,
                    "lost_s": _QUANTITY,
                    "gpu_hours_lost": _QUANTITY,
                    "dollars_lost": _QUANTITY,
                    "spared_s": _QUANTITY,
                    "spared_gpu_hours": _QUANTITY,
                    "spared_dollars": _QUANTITY,
                    "assumptions": listing(any_text()),
                },
                "the same Incident with NCCL's time-out and a person",
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
            "began_at": at("the first attempt"),
            "until": or_null(at("until when is counted; null where the end is not known")),
            "wall_s": _QUANTITY,
            "ettr_by_steps": _QUANTITY,
            **_SUMS,
        },
        is_open=True,
    ),
    "FleetLedger": record(
        {
            "days": whole("the window"),
            "since": at("its begin"),
            "until": at("its end"),
            "jobs": whole("Jobs in the ETTR"),
            **_SUMS,
        },
        is_open=True,
    ),
    "IncidentReport": record(
        {
            "incident_id": any_text(),
            "url": any_text("the page, for a browser; a signed link, to be kept from others while it lasts"),
            "until": at("when it ends at the latest"),
            "written_at": at("when the page was written"),
        }
    ),
    "Postmortem": record({"markdown": any_text("the whole document")}),
    "Curves": record(
        {
            "job_id": any_text(),
            "attempt": any_text("the present one"),
            "source": word("whose metrics", ("monitor", "training_job")),
            "since": at("the window's begin"),
            "until": at("its end"),
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
            "at": at("when"),
            "policy": record({"name": any_text(), "version": any_text()}),
            "seen": free("what was real"),
            "outcome": free("how it would have ended"),
            "looks": listing(free("one look with its decision")),
            "looks_left_out": whole("more than were kept"),
            "guards": listing(
                record(
                    {
                        "guard": word("what would have held", Guard),
                        "after_s": number(),
                        "said": any_text(),
                        "lifted": flag("the rehearsal went on without it"),
                    }
                )
            ),
            "resume": or_null(free("where the new attempt would have gone on")),
            "stages": listing(free("one stage and how long it would have taken")),
            "total_s": maybe(number()),
            "would_do": {"description": "the actions, in order"},
            "assumptions": listing(any_text()),
        },
        is_open=True,
    ),
}
