"""One Incident as the spans of a trace, made from what its record keeps. Pure.

A recovery runs as many invocations that replay each other, with waits of hours between them, so nothing is measured
while it runs: every span is a fact of the Incident (a phase, an attempt, a question, a hold, a repair). Ids follow from
the Incident and the fact alone, so that a trace that is made again is the same trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from typing import Final

from chalicelib.domain.model.incident import Incident, Phase, TimelineEntry
from chalicelib.domain.model.known import Known
from chalicelib.domain.reporting.ledger import IncidentLedger
from chalicelib.domain.reporting.lost_time import ENDS
from chalicelib.domain.reporting.markdown import one_line
from rekindle.signatures.words import fault_word

MAX_EVENTS: Final = 200  # of the timeline; the oldest and the newest half of them are kept
MAX_CHARS: Final = 300  # of one text
ROOT: Final = "recovery"
PREFIX: Final = "rekindle."  # of attributes' names
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Value = str | int | float | bool | tuple[str, ...]


class SpanStatus(StrEnum):
    """How what a span is about went; the names of OpenTelemetry's status codes."""

    UNSET = "unset"
    OK = "ok"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """One line of the timeline."""

    name: str
    at: datetime
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span. Ids are lower-case hex: 32 digits of the trace, 16 of a span; `parent_id` of the root is empty.
    `dropped_events` counts those that were left out."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start: datetime
    end: datetime
    attributes: Mapping[str, Value] = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    status: SpanStatus = SpanStatus.UNSET
    description: str = ""
    dropped_events: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChildSpan:
    """A child of the root. `key` is its own among the Incident's."""

    key: str
    name: str
    start: datetime
    end: datetime
    attributes: Mapping[str, Value]


def trace_of(incident: Incident, timeline: Sequence[TimelineEntry], ledger: IncidentLedger) -> tuple[Span, ...]:
    """The root first, then its children by their begin. An open Incident's trace ends at the ledger's `until`, and
    says that it is open."""
    stages = list(_stages(incident, ledger))
    pieces = [*stages, *_attempts(incident, ledger.until), *_questions(incident, ledger.until)]
    pieces += [*_holds(incident, ledger.until), *_repairs(incident, ledger.until)]
    trace_id = trace_id_of(incident)
    root_id = span_id_of(incident, ROOT)
    # The first look comes before its Incident's own time where another clock gave that.
    start = min([incident.opened_at, ledger.until, *(stage.start for stage in stages)])
    children = [
        Span(
            trace_id=trace_id,
            span_id=span_id_of(incident, key),
            parent_id=root_id,
            name=piece.name,
            start=min(max(piece.start, start), ledger.until),
            end=max(min(max(piece.start, start), ledger.until), min(piece.end, ledger.until)),
            attributes=piece.attributes,
        )
        for key, piece in _keyed(pieces)
    ]
    status, description = _ended(incident)
    root = Span(
        trace_id=trace_id,
        span_id=root_id,
        parent_id="",
        name=ROOT,
        start=start,
        end=ledger.until,
        attributes=_about(incident, ledger),
        status=status,
        description=description,
    )
    with_events = _with_events([root, *children[: len(stages)]], timeline)
    rest = [*with_events[1:], *children[len(stages) :]]
    return (with_events[0], *sorted(rest, key=lambda span: (span.start, span.end, span.span_id)))


def _keyed(pieces: Sequence[_ChildSpan]) -> Iterator[tuple[str, _ChildSpan]]:
    """Each with a key that no other has: of several that are alike in name and moment the later ones are numbered."""
    alike: Counter[str] = Counter()
    for piece in pieces:
        alike[piece.key] += 1
        yield (piece.key if alike[piece.key] == 1 else f"{piece.key}|{alike[piece.key]}"), piece


def trace_id_of(incident: Incident) -> str:
    """The Incident's own trace. It begins with the time at which it opened, in seconds: X-Ray takes no trace without.

    Source: AWS X-Ray, trace ids (the first 8 hexadecimal digits are the original request's Unix time).
    """
    seconds = max(0, int((incident.opened_at - _EPOCH).total_seconds())) & 0xFFFFFFFF
    return f"{seconds:08x}{sha256(f'trace|{incident.incident_id}'.encode()).hexdigest()[:24]}"


def span_id_of(incident: Incident, key: str) -> str:
    """The id of the fact `key`; never the one of zeros alone, which OpenTelemetry takes for none."""
    digest = sha256(f"span|{incident.incident_id}|{key}".encode()).hexdigest()[:16]
    return digest if int(digest, 16) else "1".zfill(16)


def _ended(incident: Incident) -> tuple[SpanStatus, str]:
    if incident.is_open:
        return SpanStatus.UNSET, ""
    if incident.phase is Phase.RECOVERED:
        return SpanStatus.OK, ""  # OpenTelemetry: only an error has a description
    return SpanStatus.ERROR, ENDS[incident.phase]


def _about(incident: Incident, ledger: IncidentLedger) -> dict[str, Value]:
    """Names, and the figures that are known: one that is not is left out, never zero."""
    return {
        **_texts(
            incident_id=incident.incident_id,
            job_id=incident.job_id,
            cluster=incident.cluster,
            node=incident.node,
            fault=incident.fault.value,
            fault_word=fault_word(incident.fault),
            fault_rule=incident.fault_rule,
            phase=incident.phase.value,
            outcome=incident.outcome,
            policy=incident.policy_name,
            policy_version=incident.policy_version,
        ),
        PREFIX + "open": incident.is_open,
        **{PREFIX + name: value.value for name, value in ledger.figures.items() if isinstance(value, Known)},
    }


def _stages(incident: Incident, ledger: IncidentLedger) -> Iterator[_ChildSpan]:
    ask = incident.halt.ask
    for number, stage in enumerate(ledger.stages):
        end = ledger.stages[number + 1].at if number + 1 < len(ledger.stages) else ledger.until
        attributes = _texts(phase=stage.name)
        if stage.name == Phase.CHECKPOINTING and ask is not None and stage.at <= ask.asked_at <= end:
            attributes |= _texts(request_id=ask.request_id, checkpoint=ask.outcome or "not answered", why=ask.why)
            attributes |= {} if ask.step is None else {PREFIX + "checkpoint_step": ask.step}
        yield _ChildSpan(
            key=f"stage|{stage.name}|{stage.at.isoformat()}",
            name=stage.name,
            start=stage.at,
            end=end,
            attributes=attributes,
        )


def _attempts(incident: Incident, until: datetime) -> Iterator[_ChildSpan]:
    """Each resubmission, from its order until the next one took its place, or to the end."""
    tries = incident.resubmission.tries
    replaced = {
        restart.after: restart.ended_at for restart in incident.account.restarts if restart.ended_at is not None
    }
    for number, attempt in enumerate(tries):
        end = replaced.get(attempt.name) or (tries[number + 1].at if number + 1 < len(tries) else until)
        attributes = _texts(
            attempt=attempt.name,
            instead_of=attempt.clone_of,
            how=attempt.how.value,
            resume_from=attempt.resume_manifest,
        )
        attributes[PREFIX + "number"] = attempt.number
        for name, step in (("resume_step", attempt.resume_step), ("last_step", attempt.last_step)):
            if isinstance(step, Known):
                attributes[PREFIX + name] = step.value
        if attempt.gained is not None:
            attributes[PREFIX + "gained"] = attempt.gained
        if attempt.exclude:
            attributes[PREFIX + "excluded_nodes"] = tuple(one_line(node, MAX_CHARS) for node in attempt.exclude)
        yield _ChildSpan(
            key=f"attempt|{attempt.number}|{attempt.name}",
            name="attempt",
            start=attempt.at,
            end=end,
            attributes=attributes,
        )


def _questions(incident: Incident, until: datetime) -> Iterator[_ChildSpan]:
    """What people were asked. Who answered is left out: traces leave the account."""
    for approval in incident.approvals:
        yield _ChildSpan(
            key=f"approval|{approval.approval_id}",
            name="approval",
            start=approval.asked_at,
            end=approval.answered_at or approval.lapsed_at or until,
            attributes=_texts(
                what=approval.what, why=approval.why, answer=approval.answer.value if approval.answer else "none"
            ),
        )


def _holds(incident: Incident, until: datetime) -> Iterator[_ChildSpan]:
    for hold in incident.holds:
        yield _ChildSpan(
            key=f"hold|{hold.guard.value}|{hold.since.isoformat()}",
            name=f"held by {hold.guard.value}",
            start=hold.since,
            end=hold.until or until,
            attributes=_texts(guard=hold.guard.value, text=hold.text, actions=", ".join(hold.actions)),
        )


def _repairs(incident: Incident, until: datetime) -> Iterator[_ChildSpan]:
    for step in incident.repair.steps if incident.repair is not None else ():
        yield _ChildSpan(
            key=f"repair|{step.number}",
            name=f"repair: {step.rung.value}",
            start=step.at,
            end=step.back_at or until,
            attributes=_texts(instance_id=step.instance_id, route=step.route.value, state=step.state.value),
        )


def _with_events(spans: Sequence[Span], timeline: Sequence[TimelineEntry]) -> list[Span]:
    """Each line of the timeline on the newest of these spans that had begun by then."""
    kept = list(timeline)
    if len(kept) > MAX_EVENTS:
        kept = kept[: MAX_EVENTS // 2] + kept[-MAX_EVENTS // 2 :]
    events: list[list[SpanEvent]] = [[] for _ in spans]
    for entry in kept:
        begun = [number for number, span in enumerate(spans) if span.parent_id and span.start <= entry.at]
        attributes = _texts(phase=entry.phase.value, rule=entry.rule, text=entry.text, actions=", ".join(entry.actions))
        name = one_line(entry.rule, MAX_CHARS) or "look"
        events[begun[-1] if begun else 0].append(SpanEvent(name=name, at=entry.at, attributes=attributes))
    dropped = len(timeline) - len(kept)
    return [
        replace(span, events=tuple(found), dropped_events=0 if span.parent_id else dropped)
        for span, found in zip(spans, events, strict=True)
    ]


def _texts(**given: str | None) -> dict[str, Value]:
    """Those that are there, on one line, cut to size."""
    return {PREFIX + name: one_line(value, MAX_CHARS) for name, value in given.items() if value}
