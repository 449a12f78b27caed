"""Parameters, answers and schemas that several operations share: paging, times, accepted orders, Incident summaries."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from chalicelib.api.fields import Parameter, line, name_of
from chalicelib.api.parts import Parts
from chalicelib.api.problems import ApiResponse, ok
from chalicelib.api.request import DEFAULT_LIMIT, MAX_LIMIT
from chalicelib.api.schema import (
    Schema,
    Written,
    any_text,
    listing,
    maybe,
    or_null,
    record,
    ref,
    timestamp,
    whole,
    word,
)
from chalicelib.domain.guards.standing import StandingHold
from chalicelib.domain.model.approvals import Guard
from chalicelib.domain.model.errors import InvalidRequest, RecoveryError
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import maybe_to_wire
from chalicelib.domain.reporting.sentence import sentence_of
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from rekindle.protocol.bounds import Whole
from rekindle.protocol.signals import FaultClass

Limit = Annotated[int, Whole(1, MAX_LIMIT), "rows of one page"]
Cursor = Annotated[
    str, name_of(1024, pattern=r"[A-Za-z0-9_=-]+"), "`cursor` of the page before; only this API makes any"
]
PAGED: Final[Mapping[str, Parameter]] = {"limit": Parameter(Limit, DEFAULT_LIMIT), "cursor": Parameter(Cursor)}
_EXAMPLE_MOMENT: Final = "2026-11-20T10:00:00Z"
MOMENT: Final = line(
    40,
    pattern=r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
    r"([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})?)?",
    problem=f"must be a text of 1 to 40 characters, as in {_EXAMPLE_MOMENT}; in a query + is written %2B",
)
Since = Annotated[str, MOMENT, "opened then or later: ISO-8601, UTC where it has no offset"]
SINCE: Final = Parameter(Since, example=_EXAMPLE_MOMENT)
STEP: Final = ref("Step")
MAYBE_TEXT: Final = or_null(any_text())
NEXT_PAGE: Final = or_null(any_text("where the next page begins; null: this was the last one"))


def order_accepted(parts: Parts, outcome: Outcome, *, is_order: bool = True, is_held: bool = True) -> ApiResponse:
    """The answer to an order that was accepted and that an Incident will carry out: status 202.

    is_order: a person orders the step itself. is_held: guards hold such an order at all.
    """
    parts.report(outcome)
    held: list[dict[str, Any]] | None = []
    if is_held and outcome.incident_id is not None:
        try:
            held = [hold.to_wire() for hold in parts.holds.of_incident(outcome.incident_id, is_order=is_order)]
        except RecoveryError:  # the order is taken, whatever cannot be read about it
            held = None
    body = {"what": outcome.what.value, "reason": outcome.reason, "incident_id": outcome.incident_id, "held_by": held}
    return ok(body, status=202)


def moment_of(given: str | None, name: str) -> datetime | None:
    """The time in the query parameter `name`, in UTC; without an offset it is taken as UTC. None where it is absent.

    Raises:
        InvalidRequest: there is no such date or time.
    """
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRequest(name, "is no moment in time") from None


def incident_brief(incident: Incident) -> dict[str, Any]:
    """The summary of an Incident in lists; its schema is BRIEF_FIELDS."""
    return {
        "incident_id": incident.incident_id,
        "title": sentence_of(incident),
        "job_id": incident.job_id,
        "cluster": incident.cluster,
        "node": incident.node,
        "fault": incident.fault.value,
        "phase": incident.phase.value,
        "outcome": incident.outcome,
        "opened_at": incident.opened_at.isoformat(),
        "closed_at": incident.closed_at.isoformat() if incident.closed_at else None,
        "attempt": incident.attempt,
        "tries": len(incident.repair.steps) if incident.repair else len(incident.resubmission.tries),
        "target_step": maybe_to_wire(incident.target_step),
        "approvals_pending": sum(1 for approval in incident.approvals if approval.is_pending),
        "held_by": _held_by(incident),
    }


def _held_by(incident: Incident) -> list[str]:
    """The guards that hold an action back now."""
    return sorted({hold.guard.value for hold in incident.holds if hold.until is None})


def time_or_null(description: str) -> Schema:
    """The schema of a time in an answer, or null."""
    return or_null(timestamp(description))


BRIEF_FIELDS: Final[Mapping[str, Schema]] = {
    "incident_id": any_text(),
    "title": any_text("the Incident in one sentence"),
    "job_id": or_null(any_text("null for a node's or a cluster's own")),
    "cluster": MAYBE_TEXT,
    "node": MAYBE_TEXT,
    "fault": word("what is wrong", FaultClass),
    "phase": word("where the recovery stands", Phase),
    "outcome": any_text("how it ended; empty while it is open"),
    "opened_at": timestamp("when the first Signal was taken in"),
    "closed_at": time_or_null("when it ended"),
    "attempt": or_null(any_text("the attempt under care")),
    "tries": whole("resubmissions, or repairs of the node, so far"),
    "target_step": STEP,
    "approvals_pending": whole("questions that wait for an answer"),
    "held_by": listing(word("a guard", Guard), "guards that hold something back now"),
}
ANSWERS: Final[Mapping[str, Schema | Written]] = {
    "StandingHold": Written(StandingHold, {"text": any_text("the same in words for people")}),
    "Step": maybe(or_null(whole("a training step"))),
    "IncidentBrief": record(BRIEF_FIELDS),
    "Taken": record(
        {
            "what": word("how the order was taken", OutcomeKind),
            "reason": any_text("in a few stable words"),
            "incident_id": or_null(any_text("where to follow it")),
            "held_by": or_null(listing(ref("StandingHold"), "what holds it now; null: that could not be read")),
        }
    ),
}
