"""Whatever arrives, a parser gives Signals that keep the contract, or raises MalformedEvent or Skip alone."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from chalicelib.domain.model.errors import MalformedEvent, Skip
from chalicelib.domain.model.signal import MAX_EVIDENCE_BYTES, MAX_SUMMARY_CHARS, Signal
from chalicelib.ingest import logs
from chalicelib.ingest.dispatch import parse
from chalicelib.ingest.evidence import MAX_KEY_CHARS, bounded, dedupe_key, one_line
from chalicelib.ingest.hyperpod import enrich
from tests.ingest import golden
from tests.sizes import examples

_ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=30),
    st.sampled_from(
        ["", "\x00", "\ud800", "i-0a1b2c3d4e5f60718", "../x", "9" * 400, "2026-11-20", "0001-01-01T00:00:00+23:59"]
    ),
)
_JSON = st.recursive(
    _ODD,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
_GOLDEN = [golden.load(name) for name in golden.names()]
_CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from _paths(child, (*path, key))


_PATHS = [list(_paths(event)) for event in _GOLDEN]


def _set(event: Any, path: tuple[str | int, ...], value: Any) -> None:
    for key in path[:-1]:
        event = event[key]
    event[path[-1]] = value


def _check(event: Any) -> None:
    try:
        signals = parse(event)
    except (MalformedEvent, Skip):
        return
    assert signals
    for signal in signals:
        _check_signal(signal)


def _check_signal(signal: Signal) -> None:
    assert signal.occurred_at.utcoffset() is not None
    assert not signal.occurred_at.utcoffset()
    assert len(signal.dedupe_key) <= MAX_KEY_CHARS
    assert signal.dedupe_key.isascii()
    assert len(signal.summary) <= MAX_SUMMARY_CHARS
    text = json.dumps(signal.to_wire(), allow_nan=False, ensure_ascii=False)
    text.encode()  # no lone surrogate survives
    assert (
        len(json.dumps(dict(signal.evidence), ensure_ascii=False, separators=(",", ":")).encode()) <= MAX_EVIDENCE_BYTES
    )
    assert Signal.from_wire(json.loads(text)) == signal


@st.composite
def _mutated(draw: st.DrawFn) -> Any:
    index = draw(st.integers(0, len(_GOLDEN) - 1))
    event = copy.deepcopy(_GOLDEN[index])
    for path in draw(st.lists(st.sampled_from(_PATHS[index]), min_size=1, max_size=3)):
        try:
            _set(event, path, draw(_JSON))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took this place away
    return event


@settings(_CALM, max_examples=examples(600))
@given(_mutated())
def test_a_mutated_golden_event_never_breaks_a_parser(event: Any) -> None:
    _check(event)


def _nested(depth: int, *, lists: bool) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value] if lists else {"a": value}
    return value


_DEEP = [_nested(depth, lists=lists) for depth in (40, 300, 900, 960, 980, 990) for lists in (True, False)]


@pytest.mark.parametrize("index", range(len(_GOLDEN)), ids=list(golden.names()))
def test_what_is_nested_deep_is_malformed_wherever_it_stands(index: int) -> None:
    """Lambda hands over what is nested thousands deep, and everything that recurses fails on it."""
    for path in _PATHS[index]:
        event = copy.deepcopy(_GOLDEN[index])
        for deep in _DEEP:
            _set(event, path, deep)
            with pytest.raises((MalformedEvent, Skip)):
                parse(event)


@settings(_CALM, max_examples=examples(200))
@given(_JSON)
@example([])
@example("[" * 100_000)
@example("{")
@example(b"\xff\xfe")
@example({"awslogs": None})
@example(7)
def test_arbitrary_json_never_breaks_the_dispatch(event: Any) -> None:
    _check(event)


@settings(_CALM, max_examples=examples(200))
@given(st.sampled_from(["", "{}", '{"msg": 1}', "[]"]), _JSON)
def test_arbitrary_records_never_break_the_log_parser(prefix: str, record: Any) -> None:
    message = prefix if record is None else json.dumps(record)
    shaped = [
        message,
        json.dumps({"Event detail": record}),
        json.dumps({"details: ": record, "condition details": record}),
    ]
    shaped.append(
        json.dumps({"HealthMonitoringAgentDetectionEvent": "HealthEvent", "condition: ": "XID", "data: ": record})
    )
    for text in shaped:
        finding = logs._finding_in(text)
        assert finding is None or finding.reason


@settings(_CALM, max_examples=examples(200))
@given(
    st.dictionaries(st.sampled_from(["EventDetails", "EventMetadata", "FailureMessage", "NodeHealthInfo"]), _JSON),
    _JSON,
)
def test_any_answer_can_enrich_a_signal_or_is_malformed(answer: dict[str, Any], metadata: Any) -> None:
    signal = parse(golden.load("sagemaker_cluster_event_null_metadata"))[0]
    for response in (answer, {"EventDetails": {"EventDetails": {"EventMetadata": metadata}}}):
        try:
            richer = enrich(signal, response)
        except MalformedEvent:
            continue
        _check_signal(richer)
        assert richer.dedupe_key == signal.dedupe_key


@settings(_CALM, max_examples=examples(200))
@given(st.dictionaries(st.text(max_size=100), _JSON, max_size=8), st.text(max_size=9000))
def test_evidence_is_always_bounded_strict_json(evidence: dict[str, Any], long: str) -> None:
    body = bounded({"long": long, **evidence})
    assert (
        len(json.dumps(body, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()) <= MAX_EVIDENCE_BYTES
    )
    if len(long) > 4096:
        assert body["truncated"] is True or "long" in evidence


def test_evidence_too_wide_to_shorten_keeps_what_was_named_first() -> None:
    wide = {f"name-{index:02d}": ["x" * 40] * 64 for index in range(40)}
    body = bounded({"status": "Failed", **wide})
    assert body["status"] == "Failed"
    assert body["truncated"] is True
    assert len(json.dumps(body, separators=(",", ":")).encode()) <= MAX_EVIDENCE_BYTES


def test_evidence_that_is_no_json_becomes_text() -> None:
    at = datetime(2026, 11, 20, 10, tzinfo=UTC)
    deep: Any = "bottom"
    for _ in range(12):
        deep = {"down": deep}
    body = bounded({"at": at, "huge": 10**400, "big": 10**25, "nan": math.nan, "deep": deep, "none": None})
    assert body["at"] == str(at)
    assert (body["huge"], body["big"], body["nan"]) == ("huge", "1.000000e+25", "nan")
    assert "none" not in body
    assert body["truncated"] is True


@given(st.lists(st.none() | st.text(max_size=300), max_size=4), st.lists(st.none() | st.text(max_size=300), max_size=4))
def test_keys_are_equal_exactly_when_the_facts_are(left: list[str | None], right: list[str | None]) -> None:
    assert (dedupe_key("x", *left) == dedupe_key("x", *right)) == (left == right)
    assert len(dedupe_key("x", *left)) <= MAX_KEY_CHARS


@pytest.mark.parametrize(("text", "line"), [("a\x1b[31mb\r\nc", "a [31mb c"), ("x\u202ey", "x y"), ("  ", "")])
def test_a_summary_is_one_clean_line(text: str, line: str) -> None:
    assert one_line(text) == line
