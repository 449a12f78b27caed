"""The budget of restarts holds over all Incidents of a Job: a loop of small gains ends at a person."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import Notify
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.job import Attempt
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.run.earlier_attempts import restarts_of_a_day
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import NOW, checkpoint, incident, look, seen, view


def attempt(number: int, hours_ago: float, **more: Any) -> Attempt:
    values: dict[str, Any] = {
        "job_id": "lm",
        "number": number,
        "name": f"lm-r{number}",
        "submitted_at": NOW - timedelta(hours=hours_ago),
        "incident_id": "inc",
        "began": True,
    }
    return Attempt(**(values | more))


def test_only_our_own_that_ran_within_a_day_are_counted() -> None:
    attempts = [
        attempt(1, 30, incident_id=None),
        attempt(2, 25),
        attempt(3, 23),
        attempt(4, 3, began=False),  # got no capacity
        attempt(5, 2, incident_id=None),  # a person's
        attempt(6, 1, began=False, last_step=Known(7)),
    ]
    assert restarts_of_a_day(attempts, now=NOW) == 2


@pytest.mark.parametrize(
    ("count", "rule", "is_warned"),
    [
        (0, "resubmit.now", False),
        (11, "resubmit.now", False),
        (12, "resubmit.now", True),
        (13, "resubmit.now", False),
        (24, "budget.restarts", False),
    ],
)
def test_half_of_the_budget_is_a_warning_and_all_of_it_a_person(count: int, rule: str, is_warned: bool) -> None:
    ended = view(AttemptStatus.FAILED, step=100, ended_at=NOW)
    what = seen(ended, checkpoints=Known((checkpoint(95),)), restarts_of_a_day=count, resumed_at=(85, 90))
    case = incident(Phase.RESUBMITTING, FaultClass.SOFTWARE_CRASH, target_step=Known(100))
    decision = look(case, what)
    assert decision.rule == rule
    told = [one for one in decision.actions if isinstance(one, Notify) and "restarts often" in one.title]
    assert bool(told) is is_warned
    if rule == "budget.restarts":
        assert "85, 90" in decision.reason
        ordered = dataclasses.replace(case.changed(order={"do": "resubmit", "by": "ada"}))
        assert look(ordered, what).rule == "resubmit.now"
