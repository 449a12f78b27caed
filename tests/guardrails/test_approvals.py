"""A question to people: asked once, answered once, and never about more than it was about."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.guards.guards import MAX_QUESTIONS
from chalicelib.domain.model.action import ActionResult, Done
from chalicelib.domain.model.approvals import ApprovalAnswer, Guard
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.node import InstanceState, Load
from chalicelib.domain.model.observation import AttemptStatus, Observation
from chalicelib.domain.model.repair import StepState
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.document import Policy
from chalicelib.services.intake.known_trouble import standing_denials
from rekindle.protocol.signals import FaultClass
from tests.adapters.samples import job as sample_job
from tests.domain.looks import MINUTE, NOW, UNSEEN, checkpoint, incident, seen, signal, view
from tests.domain.node_looks import (
    OLD,
    ROOM,
    drained,
    finding,
    in_turn,
    instance,
    memory,
    node_incident,
    node_view,
    observed,
    step,
)
from tests.guardrails.made import HOUR, answer_of, asks, harmful, look_on, names, only, open_hold, policy, said

POINTS = Known((checkpoint(90), checkpoint(80)))
DEAD = seen(view(AttemptStatus.FAILED, failure_reason="boom"), checkpoints=POINTS)
ENDED = seen(view(AttemptStatus.STOPPED), checkpoints=POINTS)
DIED = seen(view(AttemptStatus.FAILED, name="lm-r2", step=150, failure_reason="x"), checkpoints=POINTS, next_number=3)
LATE = incident(Phase.CHECKPOINTING, FaultClass.HANG, evidence_since=NOW - HOUR)
STUCK = seen(view(work="stalled"))
STANDING = incident(
    Phase.VERIFYING, FaultClass.SOFTWARE_CRASH, watch_step=Known(95), watch_at=NOW - HOUR, evidence_since=NOW - HOUR
)
PASSED = NOW + 2 * MINUTE  # past the deadline of the checkpoint that LATE waits for


def stopping_now(rules: Policy) -> Any:
    """A hung run whose deadline to save has passed: the next step is to stop it."""
    return look_on(LATE, STUCK, rules, at=PASSED)


def test_a_step_that_needs_an_approval_is_asked_about_and_nothing_is_recorded_as_done() -> None:
    free = stopping_now(policy())
    assert (free.rule, names(free)) == ("checkpoint.late", ["StopJob"])
    held = stopping_now(asks("StopJob"))
    assert (held.rule, names(held)) == ("guard.approval", ["AskApproval"])
    after = held.incident
    assert (after.phase, after.halt.stopped_attempts, after.halt.stop_asked_at) == (Phase.CHECKPOINTING, (), None)
    asked = only(after)
    assert (asked.what, asked.actions, asked.is_pending) == ("stop lm", ("StopJob",), True)
    assert asked.deadline_at == PASSED + HOUR
    hold = open_hold(after, Guard.APPROVAL)
    assert hold is not None
    assert (hold.since, hold.actions) == (PASSED, ("StopJob",))
    assert after.halt.ask is not None
    assert after.halt.ask.outcome == "late"  # what this look learnt is kept


def test_the_same_question_is_not_asked_twice_and_a_quiet_look_changes_nothing() -> None:
    rules = asks("StopJob")
    first = stopping_now(rules).incident
    second = look_on(first, STUCK, rules, at=PASSED + MINUTE)
    assert (second.rule, second.actions, len(second.incident.approvals)) == ("guard.approval", (), 1)
    third = look_on(second.incident, STUCK, rules, at=PASSED + 2 * MINUTE)
    assert third.incident == second.incident


def test_a_question_that_may_not_have_gone_out_is_put_again_as_the_same_one() -> None:
    rules = asks("StopJob")
    first = stopping_now(rules)
    lost = look_on(first.incident, STUCK, rules, at=PASSED + MINUTE, told=False)
    assert names(lost) == ["AskApproval"]
    assert lost.actions[0].approval_id == first.actions[0].approval_id


def test_what_was_approved_is_done_and_what_was_denied_ends_the_incident_with_who_said_so() -> None:
    rules = asks("StopJob")
    first = stopping_now(rules).incident
    yes = look_on(first, STUCK, rules, at=PASSED + MINUTE, new_signals=(said(only(first), at=PASSED),))
    assert (yes.rule, names(yes), yes.incident.phase) == ("checkpoint.late", ["StopJob"], Phase.STOPPING)
    assert (only(yes.incident).by, answer_of(yes.incident)) == ("ada", ApprovalAnswer.APPROVED)
    assert open_hold(yes.incident, Guard.APPROVAL) is None
    no = look_on(
        first,
        STUCK,
        rules,
        at=PASSED + MINUTE,
        new_signals=(said(only(first), "denied", at=PASSED, comment="not now"),),
    )
    assert (no.rule, no.incident.phase, names(no)) == ("guard.denied", Phase.STOPPED, ["Notify"])
    assert "ada denied: stop lm (not now)" in no.reason


@pytest.mark.parametrize(("default", "rule"), [("approve", "checkpoint.late"), ("deny", "guard.denied_by_default")])
def test_silence_is_answered_by_the_policy_at_the_deadline_and_not_before(default: str, rule: str) -> None:
    rules = asks("StopJob", default=default)
    first = stopping_now(rules).incident
    early = look_on(first, STUCK, rules, at=only(first).deadline_at - timedelta(seconds=1))
    assert early.rule == "guard.approval"
    ended = look_on(early.incident, STUCK, rules, at=only(first).deadline_at)
    assert ended.rule == rule
    assert only(ended.incident).by == "policy"
    assert (names(ended) == ["StopJob"]) is (default == "approve")


def test_an_answer_in_time_counts_however_late_the_look_is_and_one_after_the_deadline_does_not() -> None:
    rules = asks("StopJob", default="deny")
    first = stopping_now(rules).incident
    deadline = only(first).deadline_at
    in_time = look_on(first, STUCK, rules, at=deadline + HOUR, new_signals=(said(only(first), at=deadline),))
    assert names(in_time) == ["StopJob"]
    late = look_on(first, STUCK, rules, at=deadline + HOUR, new_signals=(said(only(first), at=deadline + MINUTE),))
    assert late.rule == "guard.denied_by_default"


def test_the_first_answer_counts() -> None:
    rules = asks("StopJob")
    first = stopping_now(rules).incident
    both = (said(only(first), "denied", at=PASSED, who="ada"), said(only(first), "approved", at=PASSED, who="ben"))
    decision = look_on(first, STUCK, rules, at=PASSED + MINUTE, new_signals=both)
    assert (decision.rule, only(decision.incident).by) == ("guard.denied", "ada")


def test_an_answer_that_comes_before_its_question_answers_nothing() -> None:
    rules = asks("StopJob")
    to_come = only(stopping_now(rules).incident)
    early = look_on(LATE, STUCK, rules, at=PASSED, new_signals=(said(to_come, at=PASSED),))
    assert (early.rule, answer_of(early.incident)) == ("guard.approval", None)


@pytest.mark.parametrize("change", [{"answer": "perhaps"}, {"approval_id": "a2"}, {"answer": None}])
def test_what_is_no_answer_to_it_answers_nothing(change: dict[str, Any]) -> None:
    rules = asks("StopJob")
    first = stopping_now(rules).incident
    word = said(only(first), at=PASSED)
    word = dataclasses.replace(word, evidence={**word.evidence, **change})
    assert look_on(first, STUCK, rules, at=PASSED + MINUTE, new_signals=(word,)).rule == "guard.approval"


def test_a_pause_takes_no_time_from_a_question_and_keeps_the_answers_that_come_meanwhile() -> None:
    rules = asks("StopJob", default="approve")
    first = stopping_now(rules).incident
    paused = look_on(first, STUCK, rules, at=PASSED + MINUTE, paused=True)
    assert (paused.rule, harmful(paused)) == ("guard.paused", [])
    after = look_on(paused.incident, STUCK, rules, at=PASSED + 30 * HOUR)
    assert after.rule == "guard.approval", "the default must not speak because a pause was long"
    assert only(after.incident).deadline_at == only(first).deadline_at + 30 * HOUR - MINUTE
    word = said(only(paused.incident), "denied", at=PASSED + 2 * MINUTE)
    kept = look_on(paused.incident, STUCK, rules, at=PASSED + 3 * MINUTE, paused=True, new_signals=(word,))
    assert (kept.rule, answer_of(kept.incident)) == ("guard.paused", ApprovalAnswer.DENIED)
    assert look_on(kept.incident, STUCK, rules, at=PASSED + HOUR).rule == "guard.denied"


def test_cancelling_ends_the_question_with_the_incident() -> None:
    rules = asks("StopJob")
    first = stopping_now(rules).incident
    cancel = signal(None, kind=SignalKind.ORDER_CANCEL, evidence={"who": "ben"})
    ended = look_on(first, STUCK, rules, at=PASSED + MINUTE, new_signals=(cancel,))
    assert (ended.rule, ended.incident.phase) == ("order.cancel", Phase.STOPPED)
    assert not only(ended.incident).is_pending
    assert open_hold(ended.incident, Guard.APPROVAL) is None


def test_an_approval_is_over_once_the_run_has_come_well_by_itself() -> None:
    """Approved, healed before it was used, bad again later: that is another stop, and another question."""
    rules = asks("StopJob")
    case = STANDING
    still = seen(view(name="lm-r2", step=95))
    first = look_on(case, still, rules, at=NOW)
    assert (first.rule, only(first.incident).what) == ("guard.approval", "stop lm-r2")
    moving = look_on(
        first.incident,
        seen(view(name="lm-r2", step=97)),
        rules,
        at=NOW + MINUTE,
        new_signals=(said(only(first.incident), at=NOW + MINUTE),),
    )
    assert (moving.rule, names(moving)) == ("verify.waiting", [])
    assert only(moving.incident).lapsed_at == NOW + MINUTE
    again = look_on(moving.incident, seen(view(name="lm-r2", step=97)), rules, at=NOW + 2 * HOUR)
    assert (again.rule, [approval.approval_id for approval in again.incident.approvals]) == (
        "guard.approval",
        ["a1", "a2"],
    )


def test_a_run_that_cannot_be_seen_for_a_moment_does_not_undo_an_approval() -> None:
    rules = asks("StopJob")
    case = STANDING
    first = look_on(case, seen(view(name="lm-r2", step=95)), rules, at=NOW).incident
    dark = look_on(first, seen(UNSEEN), rules, at=NOW + MINUTE, new_signals=(said(only(first), at=NOW + MINUTE),))
    assert dark.rule == "verify.unseen"
    assert names(look_on(dark.incident, seen(view(name="lm-r2", step=95)), rules, at=NOW + 2 * MINUTE)) == ["StopJob"]


def test_an_approval_to_stop_for_one_fault_does_not_cover_a_stop_for_another() -> None:
    rules = asks("StopJob")
    first = stopping_now(rules).incident
    bad = seen(view(loss_state="nan"), checkpoints=POINTS)
    word = said(only(first), at=PASSED)
    news = signal(FaultClass.NON_FINITE, kind=SignalKind.NON_FINITE, step=95, at=PASSED)
    decision = look_on(first, bad, rules, at=PASSED + MINUTE, new_signals=(word, news))
    assert decision.incident.fault is FaultClass.NON_FINITE
    assert harmful(decision) == []
    assert decision.rule in ("guard.approval", "rollback.looking")


def denied_before() -> tuple[Incident, Signal]:
    """The next Incident of a run of which a person has not allowed a stop for a loss that is no number."""
    first = look_on(incident(), seen(view(loss_state="nan"), checkpoints=POINTS), asks("StopJob")).incident
    before = look_on(first, seen(view(loss_state="nan"), checkpoints=POINTS), asks("StopJob"), at=NOW + MINUTE)
    (asked,) = before.incident.approvals
    said_no = (said(asked, "denied", at=NOW + 2 * MINUTE),)
    bad = seen(view(loss_state="nan"), checkpoints=POINTS)
    closed = look_on(before.incident, bad, asks("StopJob"), at=NOW + 2 * MINUTE, new_signals=said_no)
    assert closed.rule == "guard.denied"
    slow = signal(FaultClass.THROUGHPUT_DROP, kind=SignalKind.THROUGHPUT, step=110, at=NOW + 3 * MINUTE)
    job = sample_job("lm")
    return incident(approvals=standing_denials(closed.incident, slow, job)), slow


def test_what_was_denied_is_not_asked_again_by_the_next_incident_of_the_attempt() -> None:
    following, _ = denied_before()
    bad = seen(view(loss_state="nan"), checkpoints=POINTS)
    decision = look_on(following, bad, asks("StopJob", default="approve"), at=NOW + 4 * MINUTE)
    assert (decision.rule, names(decision)) == ("guard.denied", ["Notify"])


def test_other_trouble_of_the_attempt_comes_before_what_was_denied() -> None:
    following, slow = denied_before()
    bad = seen(view(loss_state="nan", step=110), checkpoints=POINTS)
    told = look_on(following, bad, asks("StopJob"), at=NOW + 4 * MINUTE, new_signals=(slow,))
    assert (told.incident.fault, told.rule) == (FaultClass.THROUGHPUT_DROP, "playbook.tell")
    hung = signal(FaultClass.HANG, step=110, at=NOW + 3 * MINUTE)
    stuck = seen(view(loss_state="nan", step=110, work="stalled"), checkpoints=POINTS)
    assert look_on(following, stuck, asks("StopJob"), new_signals=(hung,)).incident.fault is FaultClass.HANG


def test_a_start_that_was_approved_may_be_sent_again_but_the_next_one_is_asked_about() -> None:
    rules = asks("ResubmitJob")
    held = look_on(incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH), DEAD, rules)
    assert (held.rule, held.incident.phase, held.incident.resubmission.tries) == (
        "guard.approval",
        Phase.RESUBMITTING,
        (),
    )
    begun = look_on(held.incident, ENDED, rules, at=NOW + MINUTE, new_signals=(said(only(held.incident), at=NOW),))
    assert (begun.rule, begun.incident.attempt_number) == ("resubmit.now", 2)
    crashed = look_on(begun.incident, ENDED, rules, at=NOW + 2 * MINUTE)  # nothing is known of the order: sent again
    assert names(crashed) == ["ResubmitJob"]
    no_room = (ActionResult(action="ResubmitJob", done=Done.CAPACITY, detail="no room"),)
    waits = look_on(begun.incident, ENDED, rules, at=NOW + 2 * MINUTE, results=no_room)
    assert (waits.rule, waits.incident.resubmission.tries) == ("capacity.back_off", ())
    later = look_on(waits.incident, ENDED, rules, at=NOW + 10 * MINUTE)
    assert (names(later), len(later.incident.approvals)) == (["ResubmitJob"], 1), "it never began: the same start"
    done = (ActionResult(action="ResubmitJob", done=Done.DONE),)
    runs = look_on(later.incident, seen(view(name="lm-r2", step=None)), rules, at=NOW + 11 * MINUTE, results=done)
    assert runs.incident.phase is Phase.VERIFYING
    assert not only(runs.incident).covers
    died = seen(
        view(AttemptStatus.FAILED, name="lm-r2", step=150, failure_reason="x"), checkpoints=POINTS, next_number=3
    )
    second = look_on(runs.incident, died, rules, at=NOW + 30 * MINUTE)
    assert (second.rule, len(second.incident.approvals), harmful(second)) == ("guard.approval", 2, [])


def test_no_limit_runs_while_people_are_asked() -> None:
    """The checkpoints cannot be read any more when the answer comes, after ten hours: that is waited for as ever."""
    rules = asks("ResubmitJob", deadline_s=20 * 3600)
    held = look_on(incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH), DEAD, rules).incident
    at = NOW + 10 * HOUR
    blind = seen(view(AttemptStatus.STOPPED), checkpoints=Unknown("throttled"))
    later = look_on(held, blind, rules, at=at, new_signals=(said(only(held), at=at),))
    assert later.rule == "resume.unseen"
    assert look_on(later.incident, blind, rules, at=at + 29 * MINUTE).incident.phase is Phase.RESUBMITTING
    assert look_on(later.incident, blind, rules, at=at + 7 * HOUR).incident.phase is Phase.HANDED_OVER


def test_after_so_many_questions_a_person_has_it() -> None:
    rules = asks("StopJob")
    case = stopping_now(rules).incident
    old = tuple(
        dataclasses.replace(only(case), approval_id=f"a{n + 1}", lapsed_at=NOW, notified=True)
        for n in range(MAX_QUESTIONS)
    )
    decision = look_on(dataclasses.replace(case, approvals=old), STUCK, rules, at=PASSED)
    assert (decision.rule, decision.incident.phase) == ("guard.too_many_questions", Phase.HANDED_OVER)


def test_orders_of_people_are_asked_of_nobody() -> None:
    rules = asks()
    order = signal(FaultClass.OPERATOR_ORDER, kind=SignalKind.ORDER_RESUBMIT, evidence={"who": "ada"})
    case = incident(Phase.OPEN, FaultClass.OPERATOR_ORDER)
    first = look_on(case, seen(view(), new_signals=(order,)), rules)
    assert (first.rule, names(first)) == ("playbook.checkpoint", ["RequestCheckpoint"])
    stop = look_on(first.incident, seen(view()), rules, at=NOW + HOUR)
    assert (stop.rule, names(stop)) == ("checkpoint.late", ["StopJob"])
    start = look_on(stop.incident, ENDED, rules, at=NOW + HOUR + MINUTE)
    assert names(start) == ["ResubmitJob"]
    # What befalls the new attempt is nobody's order.
    done = (ActionResult(action="ResubmitJob", done=Done.DONE),)
    at = NOW + HOUR + 2 * MINUTE
    runs = look_on(start.incident, seen(view(name="lm-r2", step=None)), rules, at=at, results=done)
    died = seen(
        view(AttemptStatus.FAILED, name="lm-r2", step=150, failure_reason="x"), checkpoints=POINTS, next_number=3
    )
    assert look_on(runs.incident, died, rules, at=NOW + 3 * HOUR).rule == "guard.approval"


def test_an_order_while_people_are_asked_takes_the_place_of_their_answer() -> None:
    rules = asks("StopJob")
    case = incident(Phase.HOLDING, FaultClass.SOFTWARE_CRASH, phase_entered_at=NOW - HOUR)
    claim = signal(FaultClass.SOFTWARE_CRASH, kind=SignalKind.TRAINING_LOG, at=NOW - HOUR)
    first = look_on(case, seen(view(), new_signals=(claim,)), rules)
    assert first.rule == "guard.approval"
    order = signal(FaultClass.OPERATOR_ORDER, kind=SignalKind.ORDER_RESUBMIT, evidence={"who": "ben"}, at=NOW + MINUTE)
    taken = look_on(first.incident, seen(view()), rules, at=NOW + MINUTE, new_signals=(order,))
    assert taken.rule == "playbook.checkpoint"
    assert not only(taken.incident).is_pending


# ---- how big it is -----------------------------------------------------------------------------------------------


def sized(rules: Policy, **more: Any) -> str:
    """The rule for a crashed run of 8 nodes and 64 GPUs that has 60 steps of 60 s to make up for."""
    what = seen(
        view(AttemptStatus.FAILED, step=150, step_s=60.0, failure_reason="boom"),
        checkpoints=POINTS,
        **({"gpus": Known(64), "node_count": Known(8)} | more),
    )
    return look_on(incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH), what, rules).rule


def when(**condition: Any) -> Policy:
    return policy(approvals={"rules": [{"when": condition, "deadline_s": 60, "default": "deny"}]})


@pytest.mark.parametrize(
    ("condition", "more", "is_asked"),
    [
        ({"min_nodes": 8}, {}, True),
        ({"min_nodes": 9}, {}, False),
        ({"min_nodes": 9}, {"node_count": Unknown("not read")}, True),
        ({"min_gpu_hours": 64}, {}, True),  # 60 steps of a minute on 64 GPUs
        ({"min_gpu_hours": 65}, {}, False),
        ({"min_gpu_hours": 65}, {"gpus": Unknown("not in the table")}, True),
        ({"faults": ["hang"]}, {}, False),
        ({"faults": ["software_crash", "hang"]}, {}, True),
        ({"actions": ["StopJob"]}, {}, False),
        ({"actions": ["ResubmitJob"], "faults": ["software_crash"], "min_nodes": 8, "min_gpu_hours": 10}, {}, True),
        ({"actions": ["ResubmitJob"], "faults": ["software_crash"], "min_nodes": 80, "min_gpu_hours": 10}, {}, False),
    ],
)
def test_a_row_asks_where_all_its_conditions_hold_and_where_one_cannot_be_told(
    condition: dict[str, Any], more: dict[str, Any], is_asked: bool
) -> None:
    assert (sized(when(**condition), **more) == "guard.approval") is is_asked


# ---- nodes ---------------------------------------------------------------------------------------------------------

EMPTY = observed(node_view(drained(), load=ROOM))


@pytest.mark.parametrize(("condition", "is_asked"), [({"min_nodes": 1}, True), ({"min_nodes": 2}, False)])
def test_a_repair_takes_one_node_and_no_gpu_hours(condition: dict[str, Any], is_asked: bool) -> None:
    assert (look_on(draining(), EMPTY, when(**condition)).rule == "guard.approval") is is_asked
    assert look_on(draining(), EMPTY, when(min_gpu_hours=0.1)).rule == "repair.reboot"


def draining() -> Incident:
    return node_incident(Phase.DRAINING)


def test_a_held_repair_is_no_step_of_the_ladder() -> None:
    rules = asks("RebootNode")
    held = look_on(draining(), EMPTY, rules)
    assert (held.rule, held.incident.phase, names(held)) == ("guard.approval", Phase.DRAINING, ["AskApproval"])
    assert held.incident.repair is not None
    assert held.incident.repair.steps == ()
    yes = look_on(held.incident, EMPTY, rules, at=NOW + MINUTE, new_signals=(said(only(held.incident), at=NOW),))
    assert (yes.rule, names(yes), yes.incident.phase) == ("repair.reboot", ["RebootNode", "Notify"], Phase.REPAIRING)


def test_an_approved_reboot_approves_no_replacement() -> None:
    rules = asks("RebootNode", "ReplaceNode")
    rebooted = in_turn(step(ago=HOUR), findings=(finding(ago=2 * HOUR),))
    case = node_incident(Phase.REPAIRING, rebooted)
    ill = observed(node_view(drained(), instance(InstanceState.FAILURE), load=ROOM))
    held = look_on(case, ill, rules)
    assert (held.rule, only(held.incident).actions) == ("guard.approval", ("ReplaceNode",))
    assert held.incident.repair is not None
    assert len(held.incident.repair.steps) == 1


def test_that_a_reboot_was_refused_is_not_forgotten_while_the_next_rung_is_asked_about() -> None:
    rules = asks("ReplaceNode")
    case = node_incident(Phase.REPAIRING, memory(step(state=StepState.ASKED, ago=MINUTE)))
    no = (ActionResult(action="RebootNode", done=Done.REFUSED, detail="not this one"),)
    turn = look_on(case, EMPTY, rules, results=no)
    assert (turn.rule, harmful(turn)) == ("repair.turn", [])
    held = look_on(turn.incident, EMPTY, rules, at=NOW + MINUTE)
    assert (held.rule, only(held.incident).actions) == ("guard.approval", ("ReplaceNode",))
    assert held.incident.repair is not None
    assert held.incident.repair.steps[-1].state is StepState.REFUSED
    quiet = look_on(held.incident, EMPTY, rules, at=NOW + 2 * MINUTE)
    assert quiet.rule == "guard.approval"
    yes = look_on(quiet.incident, EMPTY, rules, at=NOW + HOUR / 2, new_signals=(said(only(held.incident), at=NOW),))
    assert names(yes) == ["ReplaceNode", "Notify"]


def test_a_repair_does_not_count_as_stuck_while_people_are_asked_for_hours() -> None:
    rules = asks("ReplaceNode", deadline_s=40 * 3600)
    rebooted = in_turn(step(ago=HOUR), changed_at=NOW - 70 * MINUTE, instance_word=f"{OLD} Failure")
    case = node_incident(Phase.REPAIRING, rebooted, phase_entered_at=NOW - HOUR)
    ill = observed(node_view(drained(), instance(InstanceState.FAILURE), load=ROOM))
    held = look_on(case, ill, rules).incident
    for hours in range(1, 30, 4):
        decision = look_on(held, ill, rules, at=NOW + hours * HOUR)
        assert decision.rule == "guard.approval"
        held = decision.incident
    at = NOW + 30 * HOUR
    assert names(look_on(held, ill, rules, at=at, new_signals=(said(only(held), at=at),))) == ["ReplaceNode", "Notify"]


def test_a_node_whose_cordon_was_denied_is_left_in_service() -> None:
    rules = asks("CordonNode")
    found = memory(wanted_at=NOW - MINUTE, findings=(finding(),))
    what = observed(node_view(load=Known(Load(ahead=0, last_day=0))))
    held = look_on(node_incident(Phase.HOLDING, found), what, rules)
    assert (held.rule, held.incident.phase) == ("guard.approval", Phase.HOLDING)
    word = said(only(held.incident), "denied", at=NOW)
    no = look_on(held.incident, what, rules, at=NOW + MINUTE, new_signals=(word,))
    assert (no.rule, no.incident.phase, names(no)) == ("guard.denied", Phase.STOPPED, ["Notify"])


def test_waiting_for_the_drain_needs_no_approval() -> None:
    busy: Observation = observed(node_view(drained(jobs=(7,))))
    assert look_on(draining(), busy, asks()).rule == "drain.waiting"
