"""Budgets hold over all Incidents of a Job: a loop of small gains, or of rollbacks, ends at a person."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import ActionResult, Done, Notify, ResubmitJob
from chalicelib.domain.model.evidence import Suspicion, SuspicionKind
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.job import Attempt, Job, NewestSave
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, JobRecord
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.domain.policy.groups import Nodes
from chalicelib.domain.run.job_record import furthest_saved, job_record, trained
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import NOW, checkpoint, incident, look, seen, view

A_JOB = Job(
    job_id="lm",
    name="lm",
    platform="training_job",
    policy_name="default",
    created_at=NOW - timedelta(days=2),
    current_attempt="lm-r2",
    attempt_number=2,
    attempt_started_at=NOW - timedelta(hours=1),
)


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
    found = record_of(attempts)
    assert (found.restarts_of_an_hour, found.restarts_of_last_hours, found.restarts_of_a_day) == (0, 1, 2)
    assert (found.resumed_at[-1], found.came_to[-1]) == (None, 7)


def record_of(attempts: Sequence[Attempt], **seen_as: Any) -> JobRecord:
    return job_record(A_JOB, attempts, incident(), Known(view(**seen_as)), now=NOW)


def trained_of(*attempts: Attempt, step_s: float | None = 36.0) -> Maybe[float]:
    return trained(attempts, Known(view(step_s=step_s)), now=NOW)


def test_the_share_that_trained_is_the_steps_gained_and_not_those_made_again() -> None:
    first = attempt(1, 30, last_step=Known(1000), first_step=Known(1))
    again = attempt(2, 6, resume_step=Known(900), last_step=Known(1100))
    third = attempt(3, 2, resume_step=Known(1050), last_step=Known(1150))
    assert trained_of(first, again, third) == Known(0.25)  # 150 steps of 36 s within six hours
    back = dataclasses.replace(third, resume_step=Known(900), went_back=True, last_step=Known(960))
    assert trained_of(first, again, back) == Known(0.1)  # what lay beyond 900 was given up; 60 steps are gained
    assert trained_of(attempt(1, 1, first_step=Known(1), last_step=Known(50))) == Known(0.5)  # of its own hour
    assert isinstance(trained_of(first, again, step_s=None), Unknown)
    assert isinstance(trained_of(), Unknown)


def test_the_newest_save_is_known_until_a_rollback_gives_it_up() -> None:
    saved = dataclasses.replace(A_JOB, newest_save=NewestSave(attempt="lm-r2", step=900))
    line = [attempt(1, 9, went_back=True, resume_step=Known(3)), attempt(2, 8), attempt(3, 7, resume_step=Known(0))]
    assert furthest_saved(saved, line) == Known(900)
    assert furthest_saved(saved, [*line, attempt(4, 6, went_back=True, resume_step=Known(500))]) == Known(500)
    assert isinstance(furthest_saved(A_JOB, line[1:2]), Unknown)
    resumed = attempt(4, 6, resume_step=Known(950))  # that save's manifest was never seen
    assert furthest_saved(saved, [*line, resumed]) == furthest_saved(A_JOB, [*line, resumed]) == Known(950)


def test_ends_by_the_own_limit_are_counted_in_a_row() -> None:
    ends = [attempt(n, 9 - n, status=word) for n, word in enumerate(("expired", "failed", "expired", "expired"), 1)]
    assert record_of(ends).capped == 2
    newest = [*ends, attempt(5, 1)]
    assert record_of(newest, status=AttemptStatus.EXPIRED, name="lm-r5").capped == 3
    assert record_of(newest, status=AttemptStatus.FAILED, name="lm-r5").capped == 0


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
    record = JobRecord(restarts_of_a_day=count, resumed_at=(85, 90), came_to=(91, None))
    what = seen(ended, checkpoints=Known((checkpoint(95),)), record=record)
    case = incident(Phase.RESUBMITTING, FaultClass.SOFTWARE_CRASH, target_step=Known(100))
    decision = look(case, what)
    assert decision.rule == rule
    told = [action for action in decision.actions if isinstance(action, Notify) and "restarts often" in action.title]
    assert bool(told) is is_warned
    if rule == "budget.restarts":
        assert "85 to 91, 90 to ?" in decision.reason
        ordered = dataclasses.replace(case.changed(order={"do": "resubmit", "by": "ada"}))
        assert look(ordered, what).rule == "resubmit.now"


@pytest.mark.parametrize(
    ("record", "rollbacks", "rule", "is_warned"),
    [
        ({"restarts_of_an_hour": 5}, 0, "resubmit.now", False),
        ({"restarts_of_an_hour": 6}, 0, "resubmit.now", True),
        ({"restarts_of_an_hour": 12}, 0, "budget.restarts", False),
        ({"restarts_of_last_hours": 4, "trained": Known(0.5)}, 0, "resubmit.now", True),
        ({"restarts_of_last_hours": 4, "trained": Known(0.6)}, 0, "resubmit.now", False),
        ({"restarts_of_last_hours": 4, "trained": Unknown("no pace")}, 0, "resubmit.now", False),
        ({"restarts_of_last_hours": 8, "trained": Known(0.21)}, 0, "resubmit.now", False),
        ({"restarts_of_last_hours": 8, "trained": Known(0.2)}, 0, "budget.restarts", False),
        ({"restarts_of_last_hours": 8, "trained": Unknown("no pace")}, 0, "resubmit.now", False),
        ({"rollbacks_of_a_day": 3}, 1, "resubmit.now", True),
        ({"rollbacks_of_a_day": 8}, 1, "resubmit.now", False),
        ({"rollbacks_of_a_day": 9}, 1, "budget.rollbacks", False),
        ({"rollbacks_of_a_day": 9}, 0, "resubmit.now", False),  # this one goes back nowhere
        ({"capped": 3}, 0, "resubmit.now", True),
        ({"capped": 4}, 0, "resubmit.now", False),  # told once
    ],
)
def test_little_progress_is_told_and_then_a_persons(
    record: dict[str, Any], rollbacks: int, rule: str, is_warned: bool
) -> None:
    ended = view(AttemptStatus.FAILED, step=100, ended_at=NOW)
    what = seen(ended, checkpoints=Known((checkpoint(95),)), record=JobRecord(**record))
    case = incident(Phase.RESUBMITTING, FaultClass.SOFTWARE_CRASH, target_step=Known(100), rollbacks=rollbacks)
    decision = look(case, what)
    assert decision.rule == rule
    assert is_warned is any(
        isinstance(action, Notify) and "restarts often" in action.title for action in decision.actions
    )


@pytest.mark.parametrize(
    ("fault", "ranks", "is_wanted", "checks"),
    [
        (FaultClass.NODE_HARDWARE, (), True, True),
        (FaultClass.NODE_LOST, (), True, True),
        (FaultClass.NODE_HARDWARE, (), False, False),
        (FaultClass.SOFTWARE_CRASH, (), True, False),
        (FaultClass.HANG, (), True, False),
        (FaultClass.HANG, (3,), True, True),
    ],
)
def test_a_start_after_suspected_hardware_has_it_checked_where_the_policy_says_so(
    fault: FaultClass, ranks: tuple[int, ...], is_wanted: bool, checks: bool
) -> None:
    ended = view(AttemptStatus.FAILED, step=100, ended_at=NOW)
    told = Suspicion(attempt="lm", kind=SuspicionKind.HANG, rule="minority", text="it stands apart", ranks=ranks)
    case = incident(Phase.RESUBMITTING, fault, target_step=Known(100), suspicions=(told,))
    policy = dataclasses.replace(DEFAULT_POLICY, nodes=Nodes(deep_health_check=timedelta(minutes=30 * is_wanted)))
    decision = look(case, seen(ended, checkpoints=Known((checkpoint(95),))), policy)
    (action,) = (action for action in decision.actions if isinstance(action, ResubmitJob))
    assert action.checks_hardware is checks
    if checks:
        answer = ActionResult(action="ResubmitJob", done=Done.CHECKING, detail="a check is under way")
        waits = look(decision.incident, seen(ended, results=(answer,)), policy)
        assert (waits.rule, waits.actions, waits.incident.resubmission.tries) == ("resubmit.checking", (), ())
        assert waits.incident.resubmission.capacity_since == NOW
