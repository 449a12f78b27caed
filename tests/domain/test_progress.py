"""What counts as progress, and what must not be thrown away without a person knowing."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

import pytest

from chalicelib.domain.model.action import Notify, ResubmitJob, Severity
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, JobRecord, Observation
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.document import DEFAULT_POLICY
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, a_try, checkpoint, incident, look, seen, signal, view, with_row

OOM = "AlgorithmError: torch.cuda.OutOfMemoryError: CUDA out of memory"
POINTS = Known((checkpoint(90), checkpoint(80)))


def verifying(fault: FaultClass = FaultClass.SOFTWARE_CRASH, **more: Any) -> Incident:
    return incident(Phase.VERIFYING, fault, **more)


# --- the resume plan ------------------------------------------------------------------------------------------------


def test_a_run_that_begins_far_below_its_resume_step_is_paged_at_once() -> None:
    decision = look(verifying(), seen(view(name="lm-r2", step=5, first_step=Known(1))))
    (told,) = [action for action in decision.actions if isinstance(action, Notify)]
    assert (decision.rule, told.severity) == ("verify.plan_ignored", Severity.PAGE)


@pytest.mark.parametrize("first", [Known(91), Known(90), Known(81), Unknown("no beat")])
def test_a_run_that_begins_about_there_is_verified(first: Any) -> None:
    decision = look(verifying(), seen(view(name="lm-r2", step=101, first_step=first)))
    assert decision.rule == "verify.passed"


def test_passing_the_old_step_after_beginning_anew_is_no_recovery() -> None:
    decision = look(verifying(), seen(view(name="lm-r2", step=101, first_step=Known(1))))
    assert decision.incident.phase is Phase.HANDED_OVER


# --- checkpoints that are gone --------------------------------------------------------------------------------------


def about_to_start(**more: Any) -> Observation:
    return seen(view(AttemptStatus.FAILED), checkpoints=Known(()), **more)


def test_a_person_is_asked_before_step_0_where_checkpoints_were_known() -> None:
    case = incident(Phase.RESUBMITTING, FaultClass.SOFTWARE_CRASH)
    decision = look(case, about_to_start(record=JobRecord(had_checkpoints=True)))
    assert (decision.rule, decision.incident.phase) == ("resume.gone", Phase.HANDED_OVER)


def test_a_run_that_never_had_any_begins_as_it_always_did() -> None:
    decision = look(incident(Phase.RESUBMITTING, FaultClass.SOFTWARE_CRASH), about_to_start())
    assert any(isinstance(action, ResubmitJob) for action in decision.actions)


# --- budgets --------------------------------------------------------------------------------------------------------


def died_again(step: int, *, points: Any = POINTS, reason: str = "AlgorithmError: a new end") -> Incident:
    what = view(AttemptStatus.FAILED, name="lm-r2", step=step, failure_reason=reason)
    return look(verifying(), seen(what, next_number=3, checkpoints=points)).incident


@pytest.mark.parametrize(
    ("step", "points", "gained"),
    [
        (101, POINTS, False),
        (150, POINTS, False),
        (101, Known((checkpoint(100, attempt="lm-r2"), checkpoint(90))), True),
        (95, Known((checkpoint(93, attempt="lm-r2"), checkpoint(90))), True),
        (120, Known((checkpoint(100, attempt="lm-r2", problems=("truncated",)), checkpoint(90))), False),
        (101, Known(()), True),
        (100, Known(()), False),
    ],
)
def test_progress_is_a_new_verified_checkpoint_and_not_a_step(step: int, points: Any, gained: bool) -> None:
    assert died_again(step, points=points).resubmission.tries[0].gained is gained


def test_out_of_memory_does_not_evade_its_budget_by_a_step_each_time() -> None:
    what = view(AttemptStatus.FAILED, name="lm-r2", step=101, failure_reason=OOM)
    decision = look(verifying(FaultClass.OUT_OF_MEMORY), seen(what, next_number=3, checkpoints=POINTS))
    assert decision.rule == "budget.no_progress"


def test_nor_by_an_incident_each_time() -> None:
    """Each new attempt passes the old step by one, is called recovered, and dies: no checkpoint is ever new."""
    what = view(AttemptStatus.FAILED, name="lm", step=104, failure_reason=OOM)
    record = JobRecord(best_before=Known(103), resumed_at=(None, 90, 90, 90))
    fresh = seen(what, checkpoints=POINTS, record=record, next_number=5)
    assert look(incident(), fresh).rule == "budget.no_progress"
    saved = dataclasses.replace(fresh, checkpoints=Known((checkpoint(100), checkpoint(90))))
    assert look(incident(), saved).rule == "resubmit.now"


@pytest.mark.parametrize(("own", "rule"), [(90, "budget.no_progress"), (100, "resubmit.now")])
def test_a_run_that_begins_again_each_time_makes_progress_where_it_has_saved_further_than_all_before(
    own: int, rule: str
) -> None:
    """`began_again` counts attempts that began where an earlier one had; `lm-r5` is the attempt that has ended."""
    saved = Known((checkpoint(own, attempt="lm-r5"), checkpoint(95), checkpoint(90, attempt="lm-r4")))
    what = view(AttemptStatus.FAILED, name="lm-r5", step=104, failure_reason=OOM)
    fresh = seen(what, checkpoints=saved, record=JobRecord(best_before=Known(103), began_again=4), next_number=6)
    assert look(incident(attempt="lm-r5", attempt_number=5), fresh).rule == rule


# --- speed ----------------------------------------------------------------------------------------------------------

SLOW = signal(
    FaultClass.THROUGHPUT_DROP,
    kind=SignalKind.THROUGHPUT,
    at=NOW - 10 * MINUTE,
    evidence={"step_s": 3.0, "baseline_s": 1.0},
)
RESTARTS = with_row(FaultClass.THROUGHPUT_DROP, response=next(iter(DEFAULT_POLICY.playbooks)).response)


@pytest.mark.parametrize(
    ("step_s", "rule"), [(1.1, "verify.passed"), (2.9, "verify.slow"), (None, "verify.slow")], ids=str
)
def test_after_a_restart_for_speed_recovered_means_that_the_speed_is_back(step_s: float | None, rule: str) -> None:
    case = verifying(FaultClass.THROUGHPUT_DROP, signals=(SLOW,))
    assert look(case, seen(view(name="lm-r2", step=101, step_s=step_s)), RESTARTS).rule == rule


@pytest.mark.parametrize(
    ("step_s", "seen_at", "rule"),
    [
        (1.1, NOW, "claim.fast_again"),
        (2.9, NOW, "playbook.checkpoint"),  # still slow
        (None, NOW, "playbook.checkpoint"),
        (1.1, NOW - MINUTE, "claim.fast_now"),  # the median of its steps lags behind the report: its next ones tell
        (1.1, NOW - 12 * MINUTE, "playbook.checkpoint"),  # older than the report
    ],
    ids=str,
)
def test_slow_steps_of_long_ago_are_not_acted_on_where_the_speed_is_back(
    step_s: float | None, seen_at: datetime, rule: str
) -> None:
    case = incident(fault=FaultClass.THROUGHPUT_DROP, signals=(SLOW,))
    decision = look(case, seen(view(step_s=step_s, heartbeat_at=seen_at)), RESTARTS)
    assert decision.rule == rule
    assert decision.incident.is_open is (rule != "claim.fast_again")


def test_a_restart_that_stays_slow_is_handed_over() -> None:
    case = verifying(FaultClass.THROUGHPUT_DROP, signals=(SLOW,), seen_as="lm-r2:running", seen_since=NOW - 31 * MINUTE)
    decision = look(case, seen(view(name="lm-r2", step=101, step_s=2.9)), RESTARTS)
    assert decision.rule == "verify.slow_limit"


def test_a_try_on_record_counts_by_its_own_checkpoints() -> None:
    other = Known((checkpoint(100, attempt="lm"), checkpoint(90)))
    assert died_again(101, points=other).resubmission.tries[0].gained is False
    assert a_try().gained is None


# --- ends of which nothing shows a gain -----------------------------------------------------------------------------


def unseen_deaths(count: int, reason: str, before: Incident | None = None) -> Incident:
    """A run without a monitor and without visible checkpoints, after `count` resubmissions that have all ended."""
    case = before or incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH)
    for number in range(1, count + 2):
        name = case.attempt or "lm"
        what = view(AttemptStatus.FAILED, name=name, step=None, failure_reason=reason)
        case = look(case, seen(what, next_number=number + 1, checkpoints=Known(()))).incident
        if not case.is_open:
            return case
        if case.resubmission.pending is None:  # a back-off: over at the next look
            case = dataclasses.replace(case, resubmission=dataclasses.replace(case.resubmission, not_before=NOW))
            case = look(case, seen(what, next_number=number + 1, checkpoints=Known(()))).incident
        case = dataclasses.replace(case, phase=Phase.VERIFYING)
    return case


@pytest.mark.parametrize(("reason", "submitted"), [(OOM, 1), ("AlgorithmError: RuntimeError: bang", 3)])
def test_ends_that_are_all_alike_count_where_no_step_can_be_seen(reason: str, submitted: int) -> None:
    case = unseen_deaths(6, reason)
    assert (case.outcome, len(case.resubmission.tries)) == ("budget.no_progress", submitted)


def test_what_earlier_incidents_have_spent_counts_on() -> None:
    what = view(AttemptStatus.FAILED, name="lm", step=104, failure_reason="AlgorithmError: one end")
    record = JobRecord(best_before=Known(103), resumed_at=(None, 90, 90))
    fresh = seen(what, checkpoints=POINTS, record=record, next_number=4)
    after = look(incident(), fresh).incident
    assert after.resubmission.fruitless_before == 2
    died = view(AttemptStatus.FAILED, name=after.attempt or "", step=105, failure_reason="AlgorithmError: another")
    again = dataclasses.replace(after, phase=Phase.VERIFYING)
    assert look(again, seen(died, next_number=5, checkpoints=POINTS)).rule == "budget.no_progress"


@pytest.mark.parametrize(("carried", "submitted"), [(0, 3), (1, 2), (2, 1)])
def test_what_earlier_incidents_have_spent_counts_beside_ends_that_are_all_alike(carried: int, submitted: int) -> None:
    before = incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH)
    before = before.changed(fruitless_before=carried)
    case = unseen_deaths(6, "AlgorithmError: RuntimeError: bang", before)
    assert (case.outcome, len(case.resubmission.tries)) == ("budget.no_progress", submitted)
