"""Routes about what people switch and answer: pause, shadow mode, approvals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from chalicelib.api.fields import NAMES, Nothing, Parameter, line
from chalicelib.api.operation import Operation
from chalicelib.api.operations.shared import MAYBE_TEXT, order_accepted, time_or_null
from chalicelib.api.parts import Parts
from chalicelib.api.problems import ApiResponse, ok
from chalicelib.api.request import Request
from chalicelib.api.schema import Schema, Written, any_text, flag, listing, record, ref, timestamp, word
from chalicelib.domain.model.approvals import Approval
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.switches import ShadowScope
from chalicelib.services.operator.approvals import MAX_COMMENT_CHARS
from chalicelib.services.operator.switches import MAX_NAME_CHARS, MAX_WHY_CHARS
from rekindle.protocol.signals import FaultClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """the global pause"""

    paused: Annotated[bool, "true: do nothing, everywhere"]
    why: Annotated[Annotated[str, line(MAX_WHY_CHARS)] | None, "for the record"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """where shadow mode is switched"""

    scope: Annotated[ShadowScope, "for what"]
    on: Annotated[bool, "true: decide and notify, do nothing"]
    name: Annotated[
        Annotated[str, line(MAX_NAME_CHARS)] | None,
        "the Job's id or the cluster's name; left out for everywhere",
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """the answer to a question"""

    answer: Annotated[Literal["approve", "deny"], "the answer"]
    comment: Annotated[Annotated[str, line(MAX_COMMENT_CHARS)] | None, "for the record"] = None


def read_switches(parts: Parts, _: Request) -> ApiResponse:
    """How pause, shadow mode and the breaker stand."""
    return ok(parts.switches.read())


def read_holds(parts: Parts, request: Request) -> ApiResponse:
    """What holds an order about a Job or a cluster's nodes now, or an Incident's next step."""
    found = parts.holds.of(**{name: request.query.get(name) for name in ("job_id", "cluster", "incident_id")})
    return ok({"held_by": [hold.to_wire() for hold in found]})


def set_pause(parts: Parts, request: Request) -> ApiResponse:
    """Set or lift the global pause."""
    form: Pause = request.form
    parts.report(parts.switches.set_pause(form.paused, who=request.who, why=form.why or ""))
    return ok(parts.switches.read())


def set_shadow(parts: Parts, request: Request) -> ApiResponse:
    """Shadow mode for a Job, a cluster or everything: decide and notify, do nothing."""
    form: Shadow = request.form
    if form.scope is ShadowScope.CLUSTER and form.on and form.name:
        parts.slurm_clusters.known(form.name)  # a name that is misspelt would hold nothing, and look as if it did
    parts.report(parts.switches.set_shadow(form.scope, form.name, form.on, who=request.who))
    return ok(parts.switches.read())


def lift_breaker(parts: Parts, request: Request) -> ApiResponse:
    """Let everything go on that the fleet-wide breaker holds."""
    parts.report(parts.switches.lift_breaker(who=request.who))
    return ok(parts.switches.read())


def list_approvals(parts: Parts, _: Request) -> ApiResponse:
    """Every open question, the one that runs out first at the top."""
    return ok({"approvals": parts.approvals.pending()})


def answer_approval(parts: Parts, request: Request) -> ApiResponse:
    """Approve or deny; the first answer counts."""
    form: Answer = request.form
    outcome = parts.approvals.answer(
        request.names["incident_id"],
        request.names["approval_id"],
        answer=form.answer,
        who=request.who,
        key=request.key,
        comment=form.comment or "",
    )
    return order_accepted(parts, outcome, is_order=False)


ANSWERS: Final[Mapping[str, Schema | Written]] = {
    "Switches": record(
        {
            "paused": flag("the global pause"),
            "paused_by": any_text(),
            "paused_at": time_or_null("since when"),
            "paused_why": any_text(),
            "shadow": record(
                {
                    "everywhere": flag("nothing is done for any Job or cluster"),
                    "jobs": listing(any_text()),
                    "clusters": listing(any_text()),
                    "changed_by": any_text(),
                    "changed_at": time_or_null("when"),
                }
            ),
            "breaker": record(
                {
                    "open": flag("it holds everything"),
                    "tripped_at": time_or_null("when it tripped last"),
                    "incident_id": any_text("whose action would have been one too many"),
                    "text": any_text("what was counted"),
                    "lifted_at": time_or_null("when it was lifted last"),
                    "lifted_by": any_text(),
                }
            ),
        }
    ),
    "Holds": record({"held_by": listing(ref("StandingHold"), "empty: an order would be carried out")}),
    "PendingApproval": Written(
        Approval,
        {
            "incident": record(
                {
                    "incident_id": any_text(),
                    "job_id": MAYBE_TEXT,
                    "cluster": MAYBE_TEXT,
                    "node": MAYBE_TEXT,
                    "fault": word("what is wrong", FaultClass),
                    "phase": word("where the recovery stands", Phase),
                    "opened_at": timestamp("since when"),
                }
            ),
        },
    ),
    "Approvals": record({"approvals": listing(ref("PendingApproval"))}),
}

OPERATIONS = (
    Operation(
        method="GET",
        path="/switches",
        tag="switches",
        run=read_switches,
        answers={200: ref("Switches")},
    ),
    Operation(
        method="GET",
        path="/holds",
        tag="switches",
        details="The first of `incident_id`, `job_id` and `cluster` that is given counts; without any, what holds "
        "everywhere. What only the step itself can meet (a question to people, a budget) is not foretold.",
        run=read_holds,
        query={
            "job_id": Parameter(NAMES["job_id"]),
            "cluster": Parameter(NAMES["cluster"]),
            "incident_id": Parameter(NAMES["incident_id"]),
        },
        answers={200: ref("Holds")},
        refuses=(404,),
    ),
    Operation(
        method="PUT",
        path="/pause",
        tag="switches",
        details="While it is set, Incidents are opened and watched, and nothing is done. "
        "It takes effect at the next observation.",
        run=set_pause,
        forms={
            "": Pause,
        },
        answers={200: ref("Switches")},
        is_order=True,
        example={"paused": True, "why": "maintenance of the fabric"},
    ),
    Operation(
        method="PUT",
        path="/shadow",
        tag="switches",
        run=set_shadow,
        forms={"": Shadow},
        answers={200: ref("Switches")},
        is_order=True,
        refuses=(404,),
        example={"scope": "everywhere", "on": True},
    ),
    Operation(
        method="POST",
        path="/breaker/lift",
        tag="switches",
        run=lift_breaker,
        forms={"": Nothing},
        answers={200: ref("Switches")},
        is_order=True,
    ),
    Operation(
        method="GET",
        path="/approvals",
        tag="approvals",
        run=list_approvals,
        answers={200: ref("Approvals")},
    ),
    Operation(
        method="POST",
        path="/incidents/{incident_id}/approvals/{approval_id}",
        tag="approvals",
        run=answer_approval,
        forms={
            "": Answer,
        },
        answers={202: ref("Taken")},
        is_order=True,
        example={"answer": "approve"},
    ),
)
