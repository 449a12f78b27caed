"""Rules that few runs meet, each with the observation that it is for: `test_each_rule.py` asks for a case of each."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.faults.diagnosis import diagnose
from chalicelib.domain.model.action import ActionResult, Done, QuarantineCheckpoint, StopJob
from chalicelib.domain.model.incident import Incident, Phase, Try
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.node_findings import FindingKind
from chalicelib.domain.model.observation import NO_SIBLING, AttemptStatus, AttemptView, CheckpointView, ReplyView
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.model.start_view import StartState, StartView, Submission
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.policy.playbooks import Response
from chalicelib.domain.resume.resume_point import choose_resume_point
from chalicelib.domain.run.submission import Case, choose
from rekindle.protocol.cluster.documents import NodeFacts, SlurmState
from rekindle.protocol.signals import FaultClass
from tests.domain import node_looks
from tests.domain.looks import MINUTE, NOW, a_try, checkpoint, incident, look, seen, signal, view, with_row
from tests.domain.slurm_looks import R0, R1, case, decided, sees, start
from tests.domain.tables.test_loss_tables import spike, spiking

HOUR = timedelta(hours=1)
HANG = FaultClass.HANG
RESTARTS = with_row(FaultClass.UNCLEAR, response=Response.RESTART)


# ---- how a Slurm job is started again --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "how", "more"),
    [
        ("submission.requeue", Submission.REQUEUE, {}),
        ("submission.forgotten", Submission.SUBMIT, {"is_known": False}),
        ("submission.not_requeueable", Submission.SUBMIT, {"is_requeueable": False}),
        ("submission.needs_plan", Submission.SUBMIT, {"has_mailbox": False}),
        ("submission.cannot_be_told", None, {"has_mailbox": False, "has_spec": False}),
        ("submission.no_way", None, {"is_known": False, "has_spec": False}),
    ],
)
def test_the_way_to_start_again(rule: str, how: Submission | None, more: dict[str, Any]) -> None:
    able = {"handle": "7", "is_known": True, "is_requeueable": True, "has_spec": True, "has_mailbox": True}
    choice = choose(Case(start=StartView(**(able | more)), needs_plan=True))
    assert (choice.rule, choice.how) == (rule, how)


def test_a_job_that_slurm_refused_to_requeue_is_submitted() -> None:
    able = StartView(handle="7", is_known=True, is_requeueable=True, has_spec=True, has_mailbox=True)
    choice = choose(Case(start=able, needs_plan=True, requeue_refused=True))
    assert (choice.rule, choice.how) == ("submission.requeue_refused", Submission.SUBMIT)


# ---- from where ------------------------------------------------------------------------------------------------------

SAVED = tuple(checkpoint(step) for step in (90, 80, 70, 10))


def bad_since(step: int) -> Incident:
    fault = FaultClass.NON_FINITE
    return incident(Phase.RESUBMITTING, fault, onset_attempt="lm", onset_step=Known(step), onset_fault=fault)


@pytest.mark.parametrize(
    ("rule", "step", "run"),
    [
        ("resume.newest", 90, incident(Phase.RESUBMITTING)),
        ("resume.ordered", 80, incident(Phase.RESUBMITTING, order={"do": "resubmit", "from_step": 85})),
        ("resume.before_onset", 70, bad_since(80)),
        ("resume.before_onset", 80, bad_since(82)),
    ],
)
def test_the_resume_point(rule: str, step: int, run: Incident) -> None:
    point = choose_resume_point(SAVED, run, dataclasses.replace(DEFAULT_POLICY))
    assert point is not None
    assert (point.rule, point.step) == (rule, Known(step))


def test_without_a_manifest_the_trainer_finds_its_own_checkpoint() -> None:
    point = choose_resume_point((), incident(Phase.RESUBMITTING), DEFAULT_POLICY)
    assert point is not None
    assert (point.rule, point.root) == ("resume.own_habit", None)


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def preempted() -> AttemptView:
    return start(AttemptStatus.EXPIRED, state=SlurmState.PREEMPTED)


@pytest.mark.parametrize(
    ("attempt", "fault", "rule"),
    [
        (view(AttemptStatus.EXPIRED), FaultClass.PLANNED_END, "platform.time_limit"),
        (view(AttemptStatus.GONE), FaultClass.JOB_MISSING, "platform.gone"),
    ],
)
def test_what_the_platforms_state_alone_says(attempt: AttemptView, fault: FaultClass, rule: str) -> None:
    found = diagnose(incident(), seen(attempt))
    assert (found.fault, found.fault_rule) == (fault, rule)


def test_a_preempted_job_is_not_one_that_ran_out_of_time() -> None:
    attempt = preempted()
    assert attempt.start is not None
    assert attempt.start.state is StartState.PREEMPTED
    assert diagnose(case(), sees(attempt)).fault_rule == "platform.preempted"


def test_a_loss_that_turns_bad_while_its_run_is_stopped_becomes_the_fault() -> None:
    nan = signal(FaultClass.NON_FINITE, kind=SignalKind.NON_FINITE, evidence={"step": 99, "onset_step": 99})
    stopping = incident(Phase.STOPPING, HANG, signals=(signal(),))
    found = diagnose(stopping, seen(view(loss_state="nan", onset_step=99), new_signals=(nan,)))
    assert (found.fault, found.fault_rule) == (FaultClass.NON_FINITE, "poisoned.while_stopping")


def test_a_rank_that_says_it_is_slow_is_a_suspect() -> None:
    evidence = {"rank": 3, "host": "ip-3", "step_s": 2.0, "baseline_s": 1.0}
    slow = signal(FaultClass.THROUGHPUT_DROP, kind=SignalKind.THROUGHPUT, evidence=evidence)
    (found,) = diagnose(incident(), seen(new_signals=(slow,))).evidence.suspicions
    assert (found.rule, found.ranks, found.hosts) == ("signal.throughput", (3,), ("ip-3",))


# ---- a stall ---------------------------------------------------------------------------------------------------------


def asked(**more: Any) -> Incident:
    made = incident(Phase.CHECKPOINTING, HANG, target_step=Known(100), **({"signals": (signal(),)} | more))
    assert made.halt.ask is not None
    return made.changed(ask=dataclasses.replace(made.halt.ask, deadline_at=NOW))


def test_a_stall_whose_heartbeat_cannot_be_read_for_hours_is_a_persons() -> None:
    unread = seen(view(is_heartbeat_unread=True, step=None))
    waited = dataclasses.replace(asked(), phase_entered_at=NOW - timedelta(days=2))
    assert look(asked(), unread).rule == "hang.unread"
    late = look(waited, unread)
    assert (late.rule, late.incident.phase) == ("hang.unread_limit", Phase.HANDED_OVER)
    assert not any(isinstance(action, StopJob) for action in late.actions)


def test_a_stall_that_is_over_under_a_playbook_that_only_tells() -> None:
    tell = with_row(HANG, response=Response.TELL)
    decision = look(asked(), seen(view(step=101, work="progressing", heartbeat_at=NOW)), tell)
    assert (decision.rule, decision.incident.phase) == ("checkpoint.tell", Phase.HOLDING)


def test_a_run_that_moves_again_with_a_bad_loss_is_not_called_healed() -> None:
    bad = view(step=101, heartbeat_at=NOW, loss_health="spiking", loss_state="finite", judged_step=101)
    decision = look(asked(signals=(signal(at=NOW - 10 * MINUTE),)), seen(bad))
    assert (decision.rule, decision.incident.phase) == ("heal.loss_bad", Phase.HOLDING)


def test_a_new_attempt_that_its_heartbeat_calls_stuck_is_asked_to_save() -> None:
    stuck = view(name="lm-r2", step=95, work="stalled", heartbeat_at=NOW)
    decision = look(incident(Phase.VERIFYING), seen(stuck))
    assert (decision.incident.fault_rule, decision.incident.phase) == ("heartbeat.stalled", Phase.CHECKPOINTING)


def test_a_silent_run_is_reported_then_waited_for_and_never_stopped() -> None:
    alarm = signal(HANG, kind=SignalKind.ALARM, step=None, at=NOW - MINUTE)
    first = look(incident(), seen(view(step=None), new_signals=(alarm,)))
    assert (first.rule, first.incident.phase) == ("silence.notified", Phase.HOLDING)
    second = look(first.incident, seen(view(step=None)))
    assert (second.rule, second.actions) == ("silence.waiting", ())


# ---- a loss, a new attempt, a stop -----------------------------------------------------------------------------------


def test_a_loss_that_healed_in_a_run_that_stands_still_is_no_recovery() -> None:
    decision = look(spike(), seen(spiking(1031, "ok", healed_step=1025, work="stalled", heartbeat_at=NOW)))
    assert (decision.rule, decision.incident.phase) == ("spike.healed_stalled", Phase.STOPPED)


def test_a_new_attempt_that_has_not_begun_makes_way_for_one_by_hand() -> None:
    queued = start(AttemptStatus.STARTING, R1)
    by_hand = Known("slurm.ml.9")
    decision = look(case(Phase.VERIFYING), sees(queued, sibling=by_hand, is_ours=True))
    assert (decision.rule, decision.incident.halt.for_sibling) == ("verify.sibling", "slurm.ml.9")
    running = look(case(Phase.VERIFYING), sees(start(AttemptStatus.RUNNING, R1), sibling=by_hand, is_ours=True))
    assert running.rule != "verify.sibling"
    owners = look(case(Phase.VERIFYING), sees(queued, sibling=by_hand))
    assert (owners.rule, owners.incident.phase) == ("verify.queued", Phase.VERIFYING), "its owner has started both"


def tries_from(*roots: tuple[str, int]) -> tuple[Try, ...]:
    return tuple(
        a_try(
            number,
            resume_manifest=root,
            resume_root=root,
            resume_step=Known(step),
            ended=number == 2,
            died_at_load=number == 2,
        )
        for number, (root, step) in enumerate(roots, start=2)
    )


def test_a_checkpoint_is_marked_once_an_attempt_from_another_has_passed_where_those_from_it_died() -> None:
    run = incident(
        Phase.VERIFYING,
        attempt="lm-r3",
        attempt_number=3,
        tries=tries_from(("s3://b/90", 90), ("s3://b/80", 80)),
        excluded_checkpoints=("s3://b/90",),
    )
    passed = look(run, seen(view(name="lm-r3", step=92), checkpoints=known(SAVED)))
    assert passed.rule == "verify.other_loads"
    assert [action.root for action in passed.actions if isinstance(action, QuarantineCheckpoint)] == ["s3://b/90"]
    assert look(run, seen(view(name="lm-r3", step=91), checkpoints=known(SAVED))).rule != "verify.other_loads"


def known(found: tuple[CheckpointView, ...]) -> Known[tuple[CheckpointView, ...]]:
    return Known(found)


def test_a_stop_that_an_agent_may_still_carry_out_is_waited_for_and_not_repeated() -> None:
    stall = signal(HANG, attempt="slurm.ml.7", at=NOW - 2 * MINUTE)
    run = case(Phase.STOPPING, HANG, signals=(stall,), stop_asked_at=NOW - MINUTE / 2, stop_begun_at=NOW - MINUTE)
    decision = look(run, sees(start(step=105, work="progressing", heartbeat_at=NOW)))
    assert (decision.rule, decision.actions) == ("stop.expiring", ())


def test_a_run_that_its_owner_stopped_after_a_resubmission_was_ordered_is_left_alone() -> None:
    order = {"do": "resubmit", "who": "ada"}
    given = signal(None, kind=SignalKind.ORDER_RESUBMIT, at=NOW - HOUR, triggers=True)
    run = incident(Phase.OPEN, order=order, signals=(given,))
    stopped = view(AttemptStatus.STOPPED, ended_at=NOW - MINUTE)
    decision = look(run, seen(stopped))
    assert (decision.rule, decision.incident.phase) == ("order.owner_stopped", Phase.STOPPED)


# ---- an order to a node's agent, and a stall that is over ------------------------------------------------------------


def cordoned(done: Done, refusals: int = 0) -> tuple[str, int]:
    """The rule of the next look at a node whose cordon was answered so, and the refusals it counts."""
    answer = (ActionResult(action="CordonNode", done=done, detail="because"),)
    run = node_looks.node_incident(Phase.DRAINING, node_looks.memory(refusals=refusals))
    decision = node_looks.look_at(run, node_looks.observed(node_looks.node_view(), results=answer))
    assert decision.incident.repair is not None
    return decision.rule, decision.incident.repair.refusals


def test_only_a_refusal_counts_as_one() -> None:
    assert cordoned(Done.REFUSED) == ("drain.cordon", 1)
    assert cordoned(Done.UNAVAILABLE) == ("drain.cordon", 0)
    assert cordoned(Done.UNAVAILABLE, refusals=1) == ("drain.cordon", 1)
    assert cordoned(Done.REFUSED, refusals=1)[0] == "drain.cordon_refused"


def test_a_stop_that_did_not_get_through_is_not_repeated_once_the_monitor_says_that_the_run_moves() -> None:
    """Its newest heartbeat may still show the stall."""
    stall = signal(at=NOW - 10 * MINUTE)
    moves = signal(None, kind=SignalKind.PROGRESS_RESUMED, at=NOW - 9 * MINUTE, triggers=False)
    stuck = view(step=100, work="stalled", heartbeat_at=NOW - 9.5 * MINUTE)
    run = incident(Phase.STOPPING, HANG, stop_asked_at=NOW - 10 * MINUTE, signals=(stall,))
    assert look(run, seen(stuck)).rule == "stop.stale"
    assert look(dataclasses.replace(run, signals=(stall, moves)), seen(stuck)).rule == "stop.moves_again"


# ---- claims, orders and ends that few runs meet ----------------------------------------------------------------------


def test_a_stall_that_a_fresh_heartbeat_denies_is_waited_for_then_notified() -> None:
    moving = seen(view(step=200, work="training", heartbeat_at=NOW))
    first = look(incident(fault=HANG, signals=(signal(),)), moving)
    assert (first.rule, first.incident.phase, first.actions) == ("claim.denied", Phase.HOLDING, ())
    again = look(incident(Phase.HOLDING, HANG, signals=(signal(),)), moving)
    assert (again.rule, again.incident.phase) == ("claim.refuted", Phase.STOPPED)


def test_a_run_that_cannot_be_read_for_hours_after_a_stop_was_ordered_is_a_persons() -> None:
    unread = incident(Phase.STOPPING, order={"do": "stop", "who": "ada"}, unseen_since=NOW - 7 * HOUR)
    decision = look(unread, seen(Unknown("throttled")))
    assert (decision.rule, decision.incident.phase) == ("order.stop_unseen_limit", Phase.HANDED_OVER)


def test_a_job_that_cannot_be_told_where_to_resume_is_not_stopped() -> None:
    silent = start(has_mailbox=False, has_spec=False, is_known=True, is_requeueable=True)
    decision = decided(case(fault=FaultClass.UNCLEAR, excluded_checkpoints=("s3://b/90",)), sees(silent), RESTARTS)
    assert (decision.rule, decision.incident.phase) == ("submission.cannot_be_told", Phase.HANDED_OVER)


def test_a_new_attempt_that_finishes_after_its_loss_went_bad_is_a_persons() -> None:
    bad = {"onset_attempt": "lm-r2", "onset_step": Known(120), "onset_fault": FaultClass.LOSS_SPIKE}
    finishing = view(name="lm-r2", step=200, work="finished", heartbeat_at=NOW)
    decision = look(incident(Phase.VERIFYING, FaultClass.LOSS_SPIKE, **bad), seen(finishing))
    assert (decision.rule, decision.incident.phase) == ("ended.finished_poisoned", Phase.HANDED_OVER)


BAD_LOSS = {"onset_attempt": "lm", "onset_step": Known(120), "onset_fault": FaultClass.LOSS_SPIKE}
FINISHING = {"work": "finished", "heartbeat_at": NOW}


@pytest.mark.parametrize(
    ("rule", "phase", "name", "fault", "more"),
    [
        ("ended.finishing_limit", Phase.HOLDING, "lm", HANG, {}),
        ("ended.finishing_limit", Phase.CHECKPOINTING, "lm", HANG, {}),
        ("ended.finishing_limit", Phase.VERIFYING, "lm-r2", HANG, {}),
        ("ended.finished_poisoned", Phase.CHECKPOINTING, "lm", FaultClass.LOSS_SPIKE, BAD_LOSS),
    ],
)
def test_a_run_that_has_finished_and_does_not_end_or_is_poisoned_is_a_persons(
    rule: str, phase: Phase, name: str, fault: FaultClass, more: dict[str, Any]
) -> None:
    for_hours = incident(phase, fault, phase_entered_at=NOW - 7 * HOUR, **more)
    decision = look(for_hours, seen(view(name=name, step=200, **FINISHING)))
    assert (decision.rule, decision.incident.phase) == (rule, Phase.HANDED_OVER)


def test_a_run_that_could_not_save_is_stopped_all_the_same() -> None:
    reply = ReplyView(request_id="inc-lm-1-c1", outcome="failed", step=None, why="the disk is full")
    decision = look(incident(Phase.CHECKPOINTING, FaultClass.NODE_HARDWARE), seen(view(), reply=Known(reply)))
    assert (decision.rule, decision.incident.phase) == ("checkpoint.failed", Phase.STOPPING)


def test_a_job_that_waits_in_the_queue_for_hours_is_a_persons() -> None:
    waiting = start(AttemptStatus.STARTING, R0, pending_reason="Resources")
    queued = case(Phase.HOLDING, seen_as=f"{R0}:{AttemptStatus.STARTING}", seen_since=NOW - 7 * HOUR)
    decision = decided(queued, sees(waiting))
    assert (decision.rule, decision.incident.phase) == ("open.queue_limit", Phase.HANDED_OVER)


def test_a_run_that_was_started_by_hand_is_watched_and_no_other_is_made() -> None:
    by_hand = seen(view(AttemptStatus.FAILED), sibling=Known("lm-by-hand"))
    decision = look(incident(Phase.RESUBMITTING, FaultClass.SOFTWARE_CRASH), by_hand)
    assert (decision.rule, decision.incident.attempt) == ("resubmit.sibling", "lm-by-hand")


@pytest.mark.parametrize(
    ("link", "ended_ago", "rule"),
    [
        (Known("slurm.ml.8"), MINUTE, "resubmit.goes_on"),
        (Unknown("slurm.ml.8 may begin now"), MINUTE, "resubmit.link_awaited"),
        (Unknown("slurm.ml.8 cannot be described"), 6 * MINUTE, "resume.none_fit"),
        (NO_SIBLING, MINUTE, "resume.none_fit"),
    ],
)
def test_the_next_link_is_asked_for_before_a_person_is_called(
    link: Maybe[str], ended_ago: timedelta, rule: str
) -> None:
    run = case(Phase.RESUBMITTING, FaultClass.NON_FINITE, onset_attempt=R0, onset_step=Known(5))
    old = start(AttemptStatus.FAILED, ended_at=NOW - ended_ago)
    assert decided(run, sees(old, checkpoints=Known(()), next_link=link)).rule == rule


@pytest.mark.parametrize(("link", "rule"), [(Known("slurm.ml.8"), "resubmit.goes_on"), (NO_SIBLING, "budget.attempts")])
def test_no_one_is_called_for_a_budget_once_the_next_link_has_begun(link: Maybe[str], rule: str) -> None:
    tries = tuple(a_try(number, ended=True) for number in range(2, DEFAULT_POLICY.budgets.max_attempts + 2))
    old = start(AttemptStatus.FAILED, failure_reason="exit code 1")
    assert decided(case(Phase.OPEN, tries=tries), sees(old, next_link=link)).rule == rule


@pytest.mark.parametrize(("link", "rule"), [(Known("slurm.ml.8"), "ended.goes_on"), (NO_SIBLING, "ended.unproven")])
def test_no_one_is_called_for_a_doubtful_end_once_the_next_link_has_begun(link: Maybe[str], rule: str) -> None:
    old = start(AttemptStatus.COMPLETED, ended_at=NOW - HOUR, step_end="exit code 1")
    assert decided(case(Phase.OPEN), sees(old, next_link=link)).rule == rule


@pytest.mark.parametrize(("last_word", "rule"), [(False, "ended.unproven"), (True, "open.completed")])
def test_a_run_that_completed_and_whose_monitor_fell_silent_before_is_a_persons(last_word: bool, rule: str) -> None:
    ended = {"work": "training", "heartbeat_at": NOW - HOUR, "ended_at": NOW - HOUR, "is_heartbeat_last": last_word}
    assert look(incident(), seen(view(AttemptStatus.COMPLETED, step=200, **ended))).rule == rule


@pytest.mark.parametrize("phase", [Phase.CHECKPOINTING, Phase.STOPPING])
def test_a_doubtful_end_while_it_is_to_save_or_to_stop_is_a_persons_unless_that_was_ordered(phase: Phase) -> None:
    ended = {"work": "training", "heartbeat_at": NOW - HOUR, "ended_at": NOW - HOUR}
    doubtful = seen(view(AttemptStatus.COMPLETED, step=200, **ended))
    assert look(incident(phase), doubtful).rule == "ended.unproven"
    assert look(incident(phase, order={"what": "stop"}), doubtful).rule != "ended.unproven"


def test_a_run_that_has_just_completed_waits_for_its_last_heartbeat() -> None:
    ended = {"work": "training", "heartbeat_at": NOW, "ended_at": NOW}
    decision = look(incident(), seen(view(AttemptStatus.COMPLETED, step=200, **ended)))
    assert (decision.rule, decision.incident.phase) == ("ended.last_heartbeat", Phase.OPEN)


def test_a_run_that_its_user_holds_in_the_queue_is_a_persons_and_no_try_of_ours_counts() -> None:
    held = (ActionResult(action="ResubmitJob", done=Done.HELD, detail="its user holds slurm.ml.7"),)
    ordered = incident(Phase.RESUBMITTING, tries=(a_try(),), attempt="lm")
    decision = look(ordered, seen(view(AttemptStatus.FAILED), results=held))
    assert (decision.rule, decision.incident.phase) == ("resubmit.held", Phase.HANDED_OVER)
    assert decision.incident.resubmission.tries == ()


TROUBLE = (node_looks.finding(FindingKind.CLUSTER_TROUBLE),)
REBOOTS = node_looks.with_policy(nodes={"reboot_drained_after": timedelta(minutes=10)})
KILL_FAILED = node_looks.facts("idle", "drain", reason="Kill task failed")
ENDING = node_looks.facts("mixed", ending_since=NOW)


@pytest.mark.parametrize(
    ("node", "policy", "age", "rule"),
    [
        (
            KILL_FAILED,
            DEFAULT_POLICY,
            timedelta(0),
            "node.cluster_drained",
        ),
        (ENDING, DEFAULT_POLICY, timedelta(0), "node.cluster_drained"),
        (node_looks.facts("idle", "drain", reason="disk swap"), DEFAULT_POLICY, timedelta(0), "node.held_by_other"),
        (KILL_FAILED, REBOOTS, timedelta(0), "node.cluster_grace"),
        (KILL_FAILED, REBOOTS, timedelta(minutes=10), "node.queue"),
        (ENDING, REBOOTS, timedelta(minutes=10), "node.queue"),
        (node_looks.facts("idle", "drain", reason="disk swap"), REBOOTS, timedelta(minutes=10), "node.held_by_other"),
        (node_looks.facts("idle"), REBOOTS, timedelta(minutes=10), "node.omen"),  # its administrator has resumed it
    ],
)
def test_a_node_that_slurm_itself_is_in_trouble_with_is_a_persons_unless_the_policy_says_otherwise(
    node: NodeFacts, policy: Policy, age: timedelta, rule: str
) -> None:
    begun = node_looks.node_incident(repair=node_looks.memory(findings=TROUBLE), opened_at=NOW - age)
    assert node_looks.look_at(begun, node_looks.observed(node_looks.node_view(node)), policy=policy).rule == rule


def test_a_node_on_which_slurm_cannot_end_a_job_is_empty_for_its_repair() -> None:
    drained = node_looks.facts("mixed", "drain", "completing", reason="rekindle:inc-1", jobs=(7,), ending_since=NOW)
    begun = node_looks.node_incident(Phase.DRAINING, repair=node_looks.memory(findings=TROUBLE))
    seen_so = node_looks.observed(node_looks.node_view(drained))
    assert node_looks.look_at(begun, seen_so, policy=REBOOTS).rule == "repair.reboot"
