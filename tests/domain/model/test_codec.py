"""Every record that is stored or sent can be written and read again, whatever is in it; its form is its fields'."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.newer_version import read_incident
from chalicelib.domain.model.action import ACTIONS, Action, ActionResult, Done, StopJob, read_action
from chalicelib.domain.model.codec import Record, read
from chalicelib.domain.model.errors import MalformedRecord
from chalicelib.domain.model.hardware_ledger import HardwareRecord
from chalicelib.domain.model.incident import CheckpointAsk, Incident, Phase, SkipWindow, TimelineEntry
from chalicelib.domain.model.job import Attempt, Job, WatchPlan
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import Observation
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.notices.threads import StormState, Thread
from chalicelib.domain.policy.guard_rules import Harm
from rekindle.protocol.cluster.documents import NodeFacts
from tests.domain.looks import NOW, incident
from tests.sizes import examples

STORED: tuple[type[Record], ...] = (
    Incident,
    Observation,
    Signal,
    TimelineEntry,
    ActionResult,
    Job,
    Attempt,
    HardwareRecord,
    Thread,
    StormState,
    *ACTIONS,
)
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis wants naive bounds
TEXT = st.text(max_size=8)
JSON: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | TEXT | st.lists(TEXT, max_size=2)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    Any: JSON,
    str: TEXT,
    bool: st.booleans(),
    int: st.integers(-(10**12), 10**12),
    float: st.floats(allow_nan=False, allow_infinity=False),
    types.NoneType: st.none(),
    datetime: MOMENTS,
    timedelta: st.timedeltas(timedelta(0), timedelta(days=90)),
    NodeFacts: st.builds(
        NodeFacts,
        name=st.sampled_from(["n1", "n2"]),
        state=st.sampled_from(["idle", "down"]),
        flags=st.sampled_from([(), ("drain",)]),
    ),
}


def values(kind: Any, met: set[Any] | None = None) -> st.SearchStrategy[Any]:
    """Any value of a field's type, built without the codec's knowledge; `met` gathers the dataclasses on the way."""
    met = set() if met is None else met
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in SCALARS:
        return SCALARS[kind]
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(argument, met) for argument in args])
    if origin is Known:
        return st.builds(Known, values(args[0], met))
    if origin is tuple and args[1:] == (...,):
        return st.lists(values(args[0], met), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*(values(argument, met) for argument in args))
    if origin is Mapping:
        return st.dictionaries(TEXT, values(args[1], met), max_size=2)
    if issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    assert dataclasses.is_dataclass(kind), kind
    met.add(kind)
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: values(hints[field.name], met) for field in dataclasses.fields(kind)})


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
def test_whatever_a_record_holds_is_read_as_it_was_written(kind: type[Record]) -> None:
    @settings(max_examples=examples(25), deadline=None, derandomize=True)
    @given(values(kind))
    def round_trip(one: Record) -> None:
        for defaults in (False, True):
            text = json.dumps(one.to_wire(defaults=defaults), allow_nan=False)
            assert read(Action if kind in ACTIONS else kind, json.loads(text)) == one

    round_trip()


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(values(Job), values(Attempt))
def test_a_job_and_an_attempt_are_read_from_their_items_as_they_were(job: Job, attempt: Attempt) -> None:
    assert items.record_of(Job, items.key("JOB#lm") | items.attributes(job)) == job
    assert items.record_of(Attempt, items.key("JOB#lm") | items.attributes(attempt)) == attempt


def test_the_records_of_a_recovery_are_all_reached() -> None:
    met: set[Any] = set()
    for kind in STORED:
        values(kind, met)
    assert len(met) > 40
    assert {SkipWindow, CheckpointAsk, WatchPlan, *ACTIONS} <= met


def test_what_holds_its_default_is_left_out_and_shown_on_request() -> None:
    one = incident(policy_document=None)
    assert set(one.to_wire()) < {field.name for field in dataclasses.fields(one)} == set(one.to_wire(defaults=True))
    assert len(json.dumps(one.to_wire())) * 3 < len(json.dumps(one.to_wire(defaults=True)))


def test_forms_stay_as_they_are_stored() -> None:
    stop = StopJob(attempt="lm", why="hang")
    assert stop.to_wire() == {"action": "StopJob", "attempt": "lm", "why": "hang"}
    done = ActionResult(action="StopJob", done=Done.DONE, attempt="lm-2")
    assert done.to_wire() == {"action": "StopJob", "done": "done", "attempt": "lm-2"}
    ask = CheckpointAsk(request_id="r", attempt="lm", asked_at=NOW, deadline_at=NOW)
    wire = incident(
        Phase.CHECKPOINTING, skips=(SkipWindow(from_step=1, to_step=9),), target_step=Known(5), ask=ask
    ).to_wire()
    assert wire["loss"] == {"skips": [[1, 9]]}
    assert wire["target_step"] == {"known": 5}
    assert wire["phase"] == "checkpointing"
    at = NOW.isoformat()
    assert wire["halt"]["ask"] == {"request_id": "r", "attempt": "lm", "asked_at": at, "deadline_at": at}


WIRE = incident(Phase.STOPPING, tries=(), target_step=Known(5)).to_wire()
BAD: list[tuple[dict[str, Any], str]] = [
    ({"phase": "migrating"}, "phase"),
    ({"loss": {"rollbacks": "2"}}, "loss.rollbacks"),
    ({"loss": {"rollbacks": True}}, "loss.rollbacks"),
    ({"opened_at": "soon"}, "opened_at"),
    ({"opened_at": 5}, "opened_at"),
    ({"opened_at": "2026-01-01T00:00:00"}, "opened_at"),
    ({"target_step": {"unknown": 5}}, "target_step.unknown"),
    ({"account": {"step_s": {"known": float("nan")}}}, "account.step_s.known"),
    ({"phase": ["open"]}, "phase"),
    ({"halt": {"stop_hold": 1}}, "halt.stop_hold"),
    ({"target_step": {}}, "target_step"),
    ({"target_step": {"known": "x"}}, "target_step.known"),
    ({"loss": {"skips": [[1]]}}, "loss.skips.0"),
    ({"loss": {"skips": [[1, None]]}}, "loss.skips.0.to_step"),
    ({"signals": {}}, "signals"),
    ({"signals": [{"kind": "stall"}]}, "signals.0.source"),
    ({"account": {"restarts": [{"number": 1}]}}, "account.restarts.0.name"),
    ({"repair": []}, "repair"),
    ({"account": {"tariff": 3}}, "account.tariff"),
    ({"escalation": 2}, "escalation"),
    ({"tracking": {"escalation": 2}}, "tracking.escalation"),
]


@pytest.mark.parametrize(("change", "field"), BAD, ids=[f"{change}" for change, _ in BAD])
def test_what_cannot_be_read_names_the_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(MalformedRecord) as caught:
        Incident.from_wire(WIRE | change)
    assert caught.value.field == field


GARBAGE: st.SearchStrategy[Any] = st.one_of(
    JSON,
    st.floats(),
    st.sampled_from(
        [1e308, -1, 10**30, "", "2026-01-01", {"known": []}, {"known": None}, {"unknown": {}}, [[[[]]]], {"a": {}}]
    ),
)


def spoiled(wire: Any, draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    """The document with one member, anywhere in it, replaced, left out or added."""
    if not isinstance(wire, dict | list) or not wire or draw(st.integers(0, 3)) == 0:
        return draw(GARBAGE)
    inner = dict(wire) if isinstance(wire, dict) else dict(enumerate(wire))
    at = draw(st.sampled_from(list(inner)))
    match draw(st.integers(0, 5)):
        case 0:
            del inner[at]
        case 1 if isinstance(wire, dict):
            inner["of_a_newer_version"] = draw(GARBAGE)
        case _:
            inner[at] = spoiled(inner[at], draw)
    return inner if isinstance(wire, dict) else list(inner.values())


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
def test_a_spoiled_document_gives_one_error_and_nothing_else(kind: type[Record]) -> None:
    @settings(max_examples=examples(20), deadline=None, derandomize=True)
    @given(values(kind), st.data())
    def spoil(one: Record, data: st.DataObject) -> None:
        wire = spoiled(one.to_wire(defaults=data.draw(st.booleans())), data.draw)
        for beyond in (None, []):
            try:
                back = read(Action if kind in ACTIONS else kind, wire, beyond=beyond)
            except MalformedRecord as err:
                problem = err.problem
            else:
                problem = ""
                json.dumps(back.to_wire())
            assert len(problem) < 160

    spoil()


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(values(Incident), st.data())
def test_a_spoiled_incident_is_read_as_far_as_it_can_be(one: Incident, data: st.DataObject) -> None:
    wire = spoiled(one.to_wire(), data.draw)
    try:
        back = read_incident(wire)
    except MalformedRecord:
        needed = {"incident_id", "opened_at"}
        is_another = not isinstance(wire, dict) or not wire.keys() & one.to_wire().keys()
        assert is_another or wire.keys() - needed == one.to_wire().keys() - needed
    else:
        assert (back.incident_id, back.opened_at) == (wire["incident_id"], datetime.fromisoformat(wire["opened_at"]))


@pytest.mark.parametrize("wire", [None, [], "x", 3])
def test_what_is_no_object_is_refused(wire: object) -> None:
    with pytest.raises(MalformedRecord):
        Incident.from_wire(wire)
    with pytest.raises(MalformedRecord):
        read_action(wire)  # type: ignore[arg-type]


def test_fields_of_a_newer_version_are_reported_by_their_dotted_names() -> None:
    beyond: list[str] = []
    wire = WIRE | {"escalation": 2, "account": {"tariff": 3, "entered": [["open", NOW.isoformat()]]}}
    read_back = Incident.from_wire(wire, beyond=beyond)
    assert sorted(beyond) == ["account.tariff", "escalation"]
    assert read_back.account.entered[0].phase == "open"


def test_a_field_whose_type_has_no_form_is_refused_at_once() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Odd(Record):
        what: frozenset[str] = frozenset()

    Odd.__annotations__["what"] = frozenset[str]
    with pytest.raises(TypeError, match="frozenset"):
        Odd().to_wire()


def test_classes_of_a_union_name_one_tag() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Other:
        wire_tag: ClassVar[str] = "other"

    with pytest.raises(TypeError, match="wire_tag"):
        read(StopJob | Other, {})


def test_an_unknown_reason_survives() -> None:
    assert incident(target_step=Unknown("gone")).to_wire()["target_step"] == {"unknown": "gone"}


def test_what_guards_may_hold_back_is_what_the_actions_call_harmful() -> None:
    assert {harm.value for harm in Harm} == {kind.__name__ for kind in ACTIONS if kind.harmful}


@pytest.mark.parametrize(("wire", "life"), [(["lm", 5, None, 2], 2), (["lm", 5, None], None), (["lm", 5], None)])
def test_a_row_of_an_earlier_version_lacks_the_fields_that_came_later(wire: list[Any], life: int | None) -> None:
    record = incident().to_wire() | {"loss": {"stretches": [wire]}}
    [stretch] = Incident.from_wire(record).loss.stretches
    assert (stretch.attempt, stretch.from_step, stretch.life) == ("lm", 5, life)


@pytest.mark.parametrize("wire", [["lm"], [], ["lm", 5, None, None, 1]])
def test_a_row_without_what_it_needs_or_with_more_than_is_known_is_refused(wire: list[Any]) -> None:
    with pytest.raises(MalformedRecord):
        Incident.from_wire(incident().to_wire() | {"loss": {"stretches": [wire]}})
