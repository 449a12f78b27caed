"""A start that throws away more training than lies between two saves is told; one beyond the bound is asked about."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import Notify, ResubmitJob, Severity
from chalicelib.domain.model.approvals import ApprovalAnswer
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, CheckpointView, JobRecord, Observation
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.domain.resume.passed_over import PassedOver, passed_over
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import NOW, a_try, checkpoint, incident, seen, view
from tests.guardrails.made import look_on, names, only, policy

SAVES = tuple(checkpoint(step) for step in (400, 300, 200, 100))
CRASH = FaultClass.SOFTWARE_CRASH


def torn(step: int, **more: Any) -> CheckpointView:
    return checkpoint(step, problems=("rank-1.bin is missing",), **more)


def dead(at: int, *saves: CheckpointView, step_s: float | None = 1.0) -> Observation:
    ended = view(AttemptStatus.FAILED, step=at, step_s=step_s, heartbeat_at=NOW, ended_at=NOW, is_heartbeat_last=True)
    return seen(ended, checkpoints=Known(saves))


def case(at: int = 450, **more: Any) -> Incident:
    return incident(Phase.RESUBMITTING, CRASH, target_step=Known(at), **more)


def lost(at: int, *saves: CheckpointView, resume: int, step_s: float | None = 1.0) -> PassedOver:
    what = dead(at, *saves, step_s=step_s)
    assert isinstance(what.attempt, Known)
    found = passed_over(case(at), what, Known(resume))
    assert isinstance(found, Known)
    return found.value


def test_what_is_lost_is_counted_from_where_the_run_had_come_to() -> None:
    found = lost(450, *SAVES, resume=400)
    assert (found.steps, found.usual_steps, found.saves, found.is_unusual) == (50, 100, (), False)
    assert found.time == Known(timedelta(seconds=50))


def test_each_save_that_is_passed_over_has_its_reason() -> None:
    found = lost(450, torn(400), torn(300), *SAVES[2:], resume=200)
    assert (found.steps, found.is_unusual) == (250, True)
    assert found.saves == ("step 400: rank-1.bin is missing", "step 300: rank-1.bin is missing")
    assert "250 steps (about 4 minutes) are trained again" in found.text


def test_other_runs_saves_and_those_beyond_where_it_came_to_are_none_of_it() -> None:
    strange = (checkpoint(440, fenced=True), checkpoint(9000), checkpoint(430, manifest=""))
    assert lost(450, *strange, *SAVES, resume=400).saves == ()


def test_a_run_whose_end_is_unknown_counts_by_what_it_has_ever_saved() -> None:
    """A new attempt dies before its first heartbeat, and what the run saved is gone but for its oldest."""
    died = view(AttemptStatus.FAILED, step=None, ended_at=NOW)
    record = JobRecord(furthest_saved=Known(9000), best_before=Known(8000))
    what = seen(died, checkpoints=Known(SAVES[-2:]), record=record)
    fresh = incident(Phase.RESUBMITTING, CRASH)
    found = passed_over(fresh, what, Known(200))
    assert isinstance(found, Known)
    assert (found.value.steps, found.value.time) == (8800, Known(timedelta(seconds=8800)))  # by the times of its saves
    bad = fresh.changed(onset_attempt="lm", onset_step=Known(150), onset_fault=FaultClass.NON_FINITE)
    found = passed_over(bad, what, Known(100))
    assert isinstance(found, Known)
    assert found.value.steps == 50  # what it made of a bad loss is worth nothing


def test_what_is_not_known_is_not_guessed() -> None:
    assert isinstance(lost(450, checkpoint(100), resume=100, step_s=None).time, Unknown)
    unseen = seen(Unknown("throttled"), checkpoints=Known(SAVES))
    assert isinstance(passed_over(case(), unseen, Unknown("the job's own habit")), Unknown)
    assert lost(450, checkpoint(100), resume=100).usual_steps is None


def test_a_start_within_the_usual_interval_is_no_news() -> None:
    assert names(look_on(case(), dead(450, *SAVES), DEFAULT_POLICY)) == ["ResubmitJob"]


def test_a_start_that_goes_further_back_is_told_with_each_save_and_only_once() -> None:
    decision = look_on(case(), dead(450, torn(400), torn(300), *SAVES[2:]), DEFAULT_POLICY)
    told = next(action for action in decision.actions if isinstance(action, Notify))
    assert (names(decision), told.severity) == (["Notify", "ResubmitJob"], Severity.WARNING)
    assert "step 400: rank-1.bin is missing; step 300: rank-1.bin is missing" in told.text
    again = case(tries=(a_try(resume_step=Known(200), ended=True),))
    after = look_on(again, dead(450, torn(400), torn(300), *SAVES[2:]), DEFAULT_POLICY)
    assert not any(isinstance(action, Notify) and "goes far back" in action.title for action in after.actions)


SLOW = dead(450, torn(400), torn(300), *SAVES[2:], step_s=60.0)


def test_more_than_the_bound_is_asked_about_and_a_yes_starts_it() -> None:
    asked = look_on(case(), SLOW, DEFAULT_POLICY)
    assert (asked.rule, names(asked)) == ("guard.approval", ["AskApproval"])
    question = only(asked.incident)
    assert "250 steps (about 4.2 hours) are trained again" in question.why
    agreed = dataclasses.replace(question, answer=ApprovalAnswer.APPROVED, by="ada", answered_at=NOW, notified=True)
    after = look_on(dataclasses.replace(asked.incident, approvals=(agreed,)), SLOW, DEFAULT_POLICY)
    assert any(isinstance(action, ResubmitJob) for action in after.actions)


def test_nobody_answers_and_it_is_left_to_a_person() -> None:
    asked = look_on(case(), SLOW, DEFAULT_POLICY)
    told = dataclasses.replace(only(asked.incident), notified=True)
    late = look_on(
        dataclasses.replace(asked.incident, approvals=(told,)), SLOW, DEFAULT_POLICY, at=NOW + timedelta(hours=5)
    )
    assert (late.rule, late.incident.phase) == ("guard.denied_by_default", Phase.HANDED_OVER)


@pytest.mark.parametrize("bound_s", [0, 5 * 3600])
def test_a_policy_that_says_so_asks_nothing(bound_s: int) -> None:
    decision = look_on(case(), SLOW, policy(approvals={"max_loss_s": bound_s}))
    assert "ResubmitJob" in names(decision)


def test_a_start_from_where_one_was_let_through_loses_nothing_more() -> None:
    again = case(tries=(a_try(resume_step=Known(200), ended=True),))
    assert "AskApproval" not in names(look_on(again, SLOW, DEFAULT_POLICY))


def test_what_a_person_has_ordered_is_not_asked_about() -> None:
    ordered = case(order={"do": "resubmit", "by": "ada"})
    assert "AskApproval" not in names(look_on(ordered, SLOW, DEFAULT_POLICY))
