"""What cannot be read for an hour is waited for and told of once; it is never given up for that."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import ActionResult, Done, Notify, Severity
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, Observation
from chalicelib.domain.policy.document import DEFAULT_POLICY
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import NOW, UNSEEN, a_try, checkpoint, decide, incident, seen, view

HOUR = timedelta(hours=1)
DOWN = (ActionResult(action="ResubmitJob", done=Done.UNAVAILABLE, detail="throttled"),)
PENDING: dict[str, Any] = {"tries": (a_try(at=NOW),), "attempt": "lm-r2", "attempt_number": 2}
CASES: dict[str, tuple[Incident, Observation]] = {
    "the run, before anything is done": (incident(), seen(UNSEEN)),
    "the run, while it is stopped": (incident(Phase.STOPPING, FaultClass.HANG), seen(UNSEEN)),
    "the run, while it is verified": (incident(Phase.VERIFYING, FaultClass.HANG), seen(UNSEEN)),
    "the checkpoints": (
        incident(Phase.RESUBMITTING, FaultClass.HANG, phase_entered_at=NOW),
        seen(view(AttemptStatus.STOPPED), checkpoints=Unknown("storage is away")),
    ),
    "the platform, when ours is submitted": (
        incident(Phase.RESUBMITTING, FaultClass.HANG, **PENDING),
        seen(UNSEEN, results=DOWN),
    ),
    "the checkpoints of a poisoned run": (
        incident(Phase.HOLDING, FaultClass.NON_FINITE, onset_attempt="lm", onset_step=Known(85)),
        seen(view(step=100), checkpoints=Unknown("storage is away")),
    ),
}


def waits(case: Incident, what: Observation, span: timedelta) -> tuple[Incident, list[Notify]]:
    now, told = NOW, []
    while case.is_open and now < NOW + span:
        decision = decide(case, dataclasses.replace(what, observed_at=now), now=now, policy=DEFAULT_POLICY)
        told += [action for action in decision.actions if isinstance(action, Notify)]
        case = decision.incident
        now += max(decision.look_again_in or timedelta(0), timedelta(seconds=1))
    return case, told


def pages(told: list[Notify]) -> int:
    """How many; beside them a run that is known to be down is told once before (domain/run/down.py)."""
    assert [notice.title for notice in told if notice.severity is not Severity.PAGE] in ([], ["lm: still down"])
    return sum(finding.severity is Severity.PAGE for finding in told)


@pytest.mark.parametrize("name", CASES)
def test_an_outage_of_two_hours_is_waited_for_and_paged_once(name: str) -> None:
    case, told = waits(*CASES[name], 2 * HOUR)
    assert case.is_open
    assert pages(told) == 1


@pytest.mark.parametrize("name", CASES)
def test_an_outage_without_an_end_is_handed_over_like_one_of_capacity(name: str) -> None:
    case, told = waits(*CASES[name], 12 * HOUR)
    assert case.phase is Phase.HANDED_OVER
    assert case.outcome.endswith("_limit")
    assert pages(told) == 2


def test_a_stop_goes_on_after_an_outage_as_if_there_had_been_none() -> None:
    case, _ = waits(incident(Phase.STOPPING, FaultClass.HANG), seen(UNSEEN), 2 * HOUR)
    now = NOW + 2 * HOUR
    back = dataclasses.replace(seen(view(AttemptStatus.RUNNING)), observed_at=now)
    decision = decide(case, back, now=now, policy=DEFAULT_POLICY)
    assert (decision.rule, decision.incident.tracking.told) == ("stop.again", ("stop.unseen",))


def test_the_checkpoints_that_are_back_are_used() -> None:
    case, _ = waits(*CASES["the checkpoints"], 2 * HOUR)
    now = NOW + 2 * HOUR
    back = seen(view(AttemptStatus.STOPPED), checkpoints=Known((checkpoint(90),)))
    decision = decide(case, dataclasses.replace(back, observed_at=now), now=now, policy=DEFAULT_POLICY)
    assert decision.rule == "resubmit.now"
