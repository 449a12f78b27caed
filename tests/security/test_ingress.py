"""Whatever an event holds, the way in takes it, drops it or keeps it apart; it never fails on it."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from typing import Any

import pytest

from tests.cli.service import FakeService
from tests.ingest import golden

NESTED = 900  # what Lambda's own reader of JSON still takes


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def test_a_deeply_nested_event_is_kept_apart_to_the_depth_that_can_be_written_and_fed_in_again() -> None:
    service = FakeService()
    event = copy.deepcopy(golden.load("monitor_stall"))
    event["detail"]["why"] = nested(NESTED)
    (outcome,) = service.ingress.take("monitor_event", event)
    assert outcome["what"] == "quarantined"
    (kept,) = service.quarantine.peek(limit=1)
    assert json.loads(kept["raw"])["id"] == event["id"]
    assert "nested deeper is left out" in kept["raw"]
    assert service.ingress.redrive(limit=1) == {"taken": 1, "quarantined_again": 1}


def test_one_text_that_cannot_be_read_keeps_no_other_from_being_fed_in_again() -> None:
    service = FakeService()
    for raw in ("[" * 100_000, "{", json.dumps(golden.load("monitor_started"))):
        service.quarantine.put(raw=raw, function="monitor_event", error="x", field="y", at=service.clock.now())
    assert service.ingress.redrive(limit=3)["taken"] == 3


@pytest.mark.parametrize("ahead", [timedelta(seconds=30), timedelta(days=3650)])
def test_nothing_has_happened_in_the_future(ahead: timedelta) -> None:
    """Newer readings overrule a claim: one of the year 2036 would stand for ten years."""
    service = FakeService()
    service.scheduler.put("lm", policy_name="default")
    event = copy.deepcopy(golden.load("monitor_stall"))
    event["time"] = (service.clock.now() + ahead).isoformat()
    event["detail"] |= {"job_id": "lm", "attempt": "lm", "at": event["time"]}
    (outcome,) = service.ingress.take("monitor_event", event)
    assert outcome["what"] == "opened", outcome
    inbox = service.store.load(outcome["incident_id"]).inbox
    assert [entry.occurred_at for entry in inbox] == [service.clock.now()]
