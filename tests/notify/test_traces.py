"""An Incident as a trace: what its spans are made of, and that a receiver of OpenTelemetry takes them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chalicelib.domain.model.account import Account
from chalicelib.domain.model.approvals import Approval, ApprovalAnswer, Guard, Hold
from chalicelib.domain.model.incident import CheckpointAsk, Incident, Phase, TimelineEntry, Try
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.otlp import otlp_of
from chalicelib.domain.reporting.trace import MAX_EVENTS, Span, SpanStatus, trace_of
from tests.ledger.books import T0, at, incident, ledger, restart
from tests.ledger.test_postmortem import HOSTILE
from tests.notify.otlp_receiver import attributes, received

LINES = [
    TimelineEntry(at=at(61), phase=Phase.RESUBMITTING, rule="run.crashed", text="it exited with 1", actions=("stop",)),
    TimelineEntry(at=at(95), phase=Phase.VERIFYING, rule="verify.started", text="lm-r2 runs"),
    TimelineEntry(at=at(660), phase=Phase.RECOVERED, rule="verify.passed", text="step 1001"),
]


def told(**more: object) -> Incident:
    """One with a fact of every kind that becomes a span."""
    one = Try(number=2, name="lm-r2", clone_of="lm", at=at(80), resume_step=Known(900), gained=True, exclude=("n7",))
    asked = Approval(
        approval_id="a1",
        key="resubmit",
        actions=("ResubmitJob",),
        what="submit it again",
        why="the policy asks",
        asked_at=at(62),
        deadline_at=at(900),
        default=ApprovalAnswer.DENIED,
        answer=ApprovalAnswer.APPROVED,
        by="jane@example.com",
        answered_at=at(75),
    )
    held = Hold(guard=Guard.BACK_OFF, since=at(76), text="one minute between attempts", until=at(79))
    made = incident(restarts=(restart(),)).changed(tries=(one,), approvals=(asked,), holds=(held,))
    return made.changed(**more)


def traced(one: Incident, lines: list[TimelineEntry] | None = None) -> tuple[Span, ...]:
    return trace_of(one, LINES if lines is None else lines, ledger(one))


def test_every_fact_of_the_incident_is_a_span_once_and_all_hang_together() -> None:
    root, *children = spans = traced(told())
    assert sorted(child.name for child in children) == [
        "approval",
        "attempt",
        "detect",
        "held by back_off",
        "resubmitting",
        "verifying",
    ]
    assert len({span.span_id for span in spans}) == len(spans)
    assert {span.trace_id for span in spans} == {root.trace_id}
    assert (root.name, root.parent_id, root.start, root.end) == ("recovery", "", T0, at(660))
    assert {child.parent_id for child in children} == {root.span_id}
    assert all(root.start <= child.start <= child.end <= root.end for child in children)
    by_name = {child.name: child for child in children}
    assert (by_name["attempt"].start, by_name["attempt"].end) == (at(80), at(660))
    assert by_name["attempt"].attributes["rekindle.resume_step"] == 900
    assert by_name["attempt"].attributes["rekindle.excluded_nodes"] == ("n7",)
    assert (by_name["approval"].start, by_name["approval"].end) == (at(62), at(75))
    assert (by_name["held by back_off"].start, by_name["held by back_off"].end) == (at(76), at(79))
    assert root.attributes["rekindle.fault"] == "software_crash"
    assert root.attributes["rekindle.steps_lost"] == 100
    assert root.status is SpanStatus.OK


def test_the_stages_of_a_trace_are_the_ledgers_own_and_leave_no_gap() -> None:
    one = told()
    spans = {span.name: span for span in traced(one)}
    for stage in ledger(one).stages:
        assert (spans[stage.name].end - spans[stage.name].start).total_seconds() == stage.seconds
    assert spans["detect"].end == spans["resubmitting"].start
    assert spans["resubmitting"].end == spans["verifying"].start


def test_each_line_of_the_timeline_is_an_event_of_the_stage_it_belongs_to() -> None:
    spans = {span.name: span for span in traced(told())}
    assert [event.name for event in spans["resubmitting"].events] == ["run.crashed"]
    assert [event.name for event in spans["verifying"].events] == ["verify.started", "verify.passed"]
    long = [replace(LINES[0], at=at(61 + n), rule=f"look.{n}") for n in range(MAX_EVENTS + 7)]
    root, *rest = traced(told(), long)
    events = [event.name for span in (root, *rest) for event in span.events]
    assert len(events) == MAX_EVENTS == len(set(events))
    assert {"look.0", f"look.{MAX_EVENTS + 6}"} <= set(events)
    assert root.dropped_events == 7


def test_who_answered_leaves_no_account() -> None:
    assert "jane" not in json.dumps(otlp_of(traced(told()), resource={}))


@pytest.mark.parametrize("phase", [Phase.HANDED_OVER, Phase.STOPPED])
def test_an_incident_that_was_not_recovered_is_an_error_and_what_is_not_known_is_left_out(phase: Phase) -> None:
    root = traced(incident(phases=((Phase.RESUBMITTING, 60), (phase, 90)), restarts=()))[0]
    assert root.status is SpanStatus.ERROR
    assert root.description
    assert not {"rekindle.steps_lost", "rekindle.mttr_s", "rekindle.gpu_hours_lost"} & set(root.attributes)


def test_what_an_open_incident_has_closed_keeps_its_ids_when_it_is_traced_again() -> None:
    open_one = incident(phases=((Phase.RESUBMITTING, 60), (Phase.VERIFYING, 90)))
    early = {span.name: span for span in traced(open_one)}
    late = {span.name: span for span in traced(told())}
    assert early["recovery"].attributes["rekindle.open"] is True
    assert early["recovery"].status is SpanStatus.UNSET
    assert early["resubmitting"] == replace(late["resubmitting"], events=early["resubmitting"].events)
    assert early["recovery"].span_id == late["recovery"].span_id
    assert traced(told(incident_id="inc-lm-2"))[0].trace_id != late["recovery"].trace_id


def test_an_incident_that_was_never_looked_at_is_a_root_alone_with_its_timeline() -> None:
    one = replace(told(tries=(), approvals=(), holds=()), account=Account())
    (root,) = traced(one)
    assert (root.start, root.end) == (one.opened_at, one.closed_at)
    assert [event.name for event in root.events] == [line.rule for line in LINES]
    assert len(received(json.dumps(otlp_of((root,), resource={})))) == 1


def test_a_trace_begins_with_the_incidents_own_second_as_x_ray_wants_it() -> None:
    assert int(traced(told())[0].trace_id[:8], 16) == int(at(50).timestamp())


def test_the_checkpoint_that_was_asked_for_stands_on_its_stage() -> None:
    ask = CheckpointAsk(
        request_id="r1", attempt="lm", asked_at=at(65), deadline_at=at(185), outcome="saved", step=990, why="hang"
    )
    phases = ((Phase.CHECKPOINTING, 60), (Phase.RESUBMITTING, 90), (Phase.RECOVERED, 660))
    spans = {span.name: span for span in traced(incident(phases=phases).changed(ask=ask))}
    assert spans["checkpointing"].attributes["rekindle.checkpoint"] == "saved"
    assert spans["checkpointing"].attributes["rekindle.checkpoint_step"] == 990


@pytest.mark.parametrize("text", HOSTILE)
def test_other_peoples_words_are_one_line_of_text_that_a_receiver_takes(text: str) -> None:
    one = told(outcome=text, job_id=f"lm {text}")
    body = json.dumps(otlp_of(traced(one, [replace(LINES[0], rule=text, text=text)]), resource={"service.name": text}))
    for span in received(body):
        for value in (*attributes(span).values(), *(v for e in span.events for v in attributes(e).values()), span.name):
            assert not isinstance(value, str) or ("\n" not in value and len(value) <= 300)


MOMENTS = st.floats(min_value=-90_000, max_value=90_000, allow_nan=False)


@given(
    onset=st.one_of(st.just(Unknown("not told")), st.builds(Known, MOMENTS)),
    looks=st.lists(MOMENTS, min_size=1, max_size=6),
    tries=st.lists(MOMENTS, max_size=3),
    held=MOMENTS,
    now=MOMENTS,
    lines=st.lists(MOMENTS, max_size=8),
)
def test_whatever_the_clocks_said_a_receiver_takes_the_trace_and_its_spans_lie_in_each_other(
    onset: Maybe[float], looks: list[float], tries: list[float], held: float, now: float, lines: list[float]
) -> None:
    cycle = [Phase.RESUBMITTING, Phase.VERIFYING] * 3
    phases = [(phase, seconds) for phase, seconds in zip(cycle, sorted(looks), strict=False)]
    one = incident(onset=onset, phases=phases).changed(
        tries=tuple(
            Try(number=n, name=f"lm-r{n}", clone_of="lm", at=at(seconds), resume_step=Unknown("not told"))
            for n, seconds in enumerate(tries)
        ),
        holds=(Hold(guard=Guard.WINDOW, since=at(held), text="x"),),
    )
    timeline = [replace(LINES[0], at=at(seconds)) for seconds in lines]
    spans = trace_of(one, timeline, ledger(one, now=now))
    root = spans[0]
    assert all(root.start <= span.start <= span.end <= root.end for span in spans)
    assert sum(len(span.events) for span in spans) == len(timeline)
    got = received(json.dumps(otlp_of(spans, resource={})))
    assert [(moment(span.start_time_unix_nano), moment(span.end_time_unix_nano)) for span in got] == [
        (span.start, span.end) for span in spans
    ]
    assert len({span.span_id for span in got}) == len(spans)


def moment(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(0, tz=T0.tzinfo) + timedelta(microseconds=nanoseconds // 1000)
