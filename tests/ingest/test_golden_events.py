"""Each golden event gives what its row of events/EXPECTED.json says: Signals, a reason to skip it, or a wrong field."""

from __future__ import annotations

import json
from datetime import UTC
from typing import Any

import pytest

from chalicelib.domain.model.errors import MalformedEvent, Noise, NotOurs, Skip
from chalicelib.domain.model.signal import MAX_EVIDENCE_BYTES, MAX_SUMMARY_CHARS, Signal
from chalicelib.ingest.dispatch import parse
from chalicelib.ingest.envelope import MAX_EVENT_BYTES
from tests.ingest import golden

Expected = dict[str, Any]

SKIPS: dict[str, type[Skip]] = {"noise": Noise, "not ours": NotOurs}
WHAT_IT_IS_ABOUT = ("job_id", "attempt", "cluster", "node")


def _outcome(event: dict[str, Any]) -> Expected:
    """As a row of EXPECTED.json says it, without its source."""
    try:
        signals = parse(event)
    except Skip as skip:
        return {"skip": next(word for word, kind in SKIPS.items() if type(skip) is kind), "reason": skip.reason}
    return {"signals": [_row(signal) for signal in signals]}


def _row(signal: Signal) -> Expected:
    found = {name: getattr(signal, name) for name in ("kind", "fault", "triggers", *WHAT_IT_IS_ABOUT)}
    return {name: value for name, value in found.items() if value is not None}


def _expected(name: str) -> Expected:
    return {key: value for key, value in golden.EXPECTED[f"{name}.json"].items() if key != "source"}


def _all_signals() -> list[tuple[str, Signal]]:
    names = [name for name in golden.names() if "signals" in golden.EXPECTED.get(f"{name}.json", {})]
    return [(name, signal) for name in names for signal in parse(golden.load(name))]


def test_every_file_has_its_row_and_every_row_its_file() -> None:
    assert set(golden.EXPECTED) == set(golden.files())


@pytest.mark.parametrize("name", golden.names())
def test_a_golden_event_gives_what_its_row_says(name: str) -> None:
    assert _outcome(golden.load(name)) == _expected(name)


@pytest.mark.parametrize("name", golden.names())
def test_an_event_reads_alike_as_text_bytes_and_object(name: str) -> None:
    text = json.dumps(golden.load(name))
    assert _outcome(text) == _outcome(text.encode()) == _expected(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", golden.names())
def test_every_golden_event_says_where_its_shape_comes_from(name: str) -> None:
    assert golden.EXPECTED[f"{name}.json"]["source"].strip()


@pytest.mark.parametrize(("name", "signal"), _all_signals())
def test_a_signal_keeps_its_contract(name: str, signal: Signal) -> None:
    assert signal.occurred_at.tzinfo is UTC
    assert 0 < len(signal.dedupe_key) <= 200
    assert 0 < len(signal.summary) <= MAX_SUMMARY_CHARS
    assert signal.summary.isprintable()
    assert len(json.dumps(signal.evidence, ensure_ascii=False).encode()) <= MAX_EVIDENCE_BYTES + 200
    assert Signal.from_wire(json.loads(json.dumps(signal.to_wire(), allow_nan=False))) == signal
    if signal.triggers:
        assert signal.fault is not None, "news must never open an Incident"


@pytest.mark.parametrize("name", golden.malformed())
def test_a_malformed_twin_names_its_field(name: str) -> None:
    field = golden.EXPECTED[name]["field"]
    with pytest.raises(MalformedEvent) as caught:
        parse(json.loads((golden.EVENTS / name).read_text()))
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_an_oversized_event_is_refused_as_object_text_and_bytes() -> None:
    event = golden.load("sagemaker_training_job_failed_crash")
    event["detail"]["HyperParameters"] = {"x": "y" * (MAX_EVENT_BYTES - len(json.dumps(event)))}
    event["detail"]["HyperParameters"]["x"] += "é" * 40
    for raw in (event, json.dumps(event), json.dumps(event).encode()):
        with pytest.raises(MalformedEvent, match="event: larger than") as caught:
            parse(raw)
        assert caught.value.field == "event"
    event["detail"]["HyperParameters"]["x"] = "y" * (MAX_EVENT_BYTES - 4096)
    assert parse(event)


def test_a_foreign_account_or_owner_is_refused_by_name() -> None:
    event = golden.load("ec2_spot_interruption")
    parse(event, expected_account="111122223333")
    with pytest.raises(MalformedEvent) as caught:
        parse(event, expected_account="999999999999")
    assert caught.value.field == "account"
    with pytest.raises(MalformedEvent) as caught:
        parse(golden.load("logs_batch_mixed"), expected_account="999999999999")
    assert caught.value.field == "awslogs.data.owner"


def test_an_unknown_event_type_is_not_ours() -> None:
    event = golden.load("ec2_spot_interruption") | {"detail-type": "EC2 Instance Sang"}
    with pytest.raises(NotOurs, match="unknown event type"):
        parse(event)
