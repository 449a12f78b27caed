"""A run that moves is not stopped, one late heartbeat heals nothing, and a run that has finished cannot hang."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import StopJob
from chalicelib.domain.model.evidence import Need
from chalicelib.domain.model.incident import CheckpointAsk, Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, ReplyView
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, a_try, checkpoint, incident, look, seen, signal, view

SECOND = timedelta(seconds=1)
STALL = signal(FaultClass.HANG, step=100, at=NOW - MINUTE)
LOST = signal(FaultClass.NODE_LOST, kind=SignalKind.NODE_STATE, step=100, at=NOW - MINUTE)
ANSWERED = {
    outcome: Known(ReplyView(request_id="inc-lm-1-c1", outcome=outcome, step=100, why=""))
    for outcome in ("saved", "cannot", "refused")
}


@pytest.mark.parametrize("outcome", ANSWERED)
def test_a_run_that_moves_again_is_not_stopped_whatever_it_answered(outcome: str) -> None:
    asked = incident(Phase.CHECKPOINTING, FaultClass.HANG, signals=(STALL,), target_step=Known(100))
    moving = view(step=103, heartbeat_at=NOW - 50 * SECOND)
    decision = look(asked, seen(moving, reply=ANSWERED[outcome]))
    assert not any(isinstance(action, StopJob) for action in decision.actions)
    assert (decision.rule, decision.incident.phase) == ("heal.confirm", Phase.CHECKPOINTING)
    two_heartbeats_on = seen(view(step=106, heartbeat_at=NOW - 29 * SECOND))
    assert look(decision.incident, two_heartbeats_on).rule == "healed"


def test_a_run_that_stands_still_is_stopped_by_the_same_answer() -> None:
    asked = incident(Phase.CHECKPOINTING, FaultClass.HANG, signals=(STALL,), target_step=Known(100))
    decision = look(asked, seen(view(step=100, heartbeat_at=NOW), reply=ANSWERED["cannot"]))
    assert any(isinstance(action, StopJob) for action in decision.actions)


@pytest.mark.parametrize(
    ("gone_for_s", "rule"), [(30, "checkpoint.cannot"), (90, "stop.gone"), (301, "checkpoint.cannot")], ids=str
)
def test_what_hung_and_is_gone_may_be_started_again_in_its_place(gone_for_s: int, rule: str) -> None:
    """A launcher (torchrun, a loop in the job's script) has ended it; after five minutes it is stopped all the same."""
    asked = incident(Phase.CHECKPOINTING, FaultClass.HANG, signals=(STALL,), target_step=Known(100))
    heartbeat_at = NOW - gone_for_s * SECOND
    decision = look(asked, seen(view(step=100, heartbeat_at=heartbeat_at, work="stalled"), reply=ANSWERED["cannot"]))
    assert decision.rule == rule


@pytest.mark.parametrize(
    ("gone_for_s", "wanted_min", "rule"),
    [
        (30, 1, "playbook.roll_back"),
        (141, 5, "stop.gone"),
        (301, 6, "playbook.roll_back"),
        (141, 10, "playbook.roll_back"),
    ],
)
def test_what_went_bad_and_is_gone_may_be_started_again_in_its_place(
    gone_for_s: int, wanted_min: int, rule: str
) -> None:
    """Whatever the Incident has waited for before; one whose heartbeats all come late is waited for ten minutes."""
    bad = incident(
        Phase.HOLDING,
        FaultClass.NON_FINITE,
        signals=(signal(FaultClass.NON_FINITE, kind=SignalKind.NON_FINITE, step=100, at=NOW - 4 * MINUTE),),
        needs=(Need.CHECKPOINTS,),
        needs_since=NOW - wanted_min * MINUTE,
        phase_entered_at=NOW - 14 * MINUTE,
    )
    shown = {"loss_state": "nan", "loss_health": "non_finite", "onset_step": 100}
    what = view(step=104, heartbeat_at=NOW - gone_for_s * SECOND, **shown)
    assert look(bad, seen(what, checkpoints=Known((checkpoint(90),)))).rule == rule


@pytest.mark.parametrize(("age_s", "rule"), [(20, "checkpoint.late"), (40, "stop.gone")], ids=str)
def test_what_hung_and_has_shown_no_heartbeat_since_it_was_asked_to_save_is_gone(age_s: int, rule: str) -> None:
    """Its launcher has ended it as it reported the stall, and the one that takes its place imports."""
    ask = CheckpointAsk(
        request_id="inc-lm-1-c1", attempt="lm", asked_at=NOW - 30 * SECOND, deadline_at=NOW - SECOND, outcome=None
    )
    asked = incident(Phase.CHECKPOINTING, FaultClass.HANG, signals=(STALL,), target_step=Known(100), ask=ask)
    decision = look(asked, seen(view(step=100, heartbeat_at=NOW - age_s * SECOND, work="stalled")))
    assert decision.rule == rule
    assert any(isinstance(action, StopJob) for action in decision.actions) is (rule == "checkpoint.late")


def test_a_heartbeat_that_still_says_stalled_heals_nothing() -> None:
    asked = incident(Phase.CHECKPOINTING, FaultClass.HANG, signals=(STALL,), target_step=Known(100))
    decision = look(asked, seen(view(step=103, heartbeat_at=NOW, work="stalled"), reply=ANSWERED["cannot"]))
    assert any(isinstance(action, StopJob) for action in decision.actions)


def test_a_new_attempt_whose_heartbeat_still_says_stalled_is_asked_to_save() -> None:
    stall = signal(FaultClass.HANG, attempt="lm-r2", step=95, at=NOW - MINUTE)
    what = view(name="lm-r2", step=96, heartbeat_at=NOW, work="stalled")
    decision = look(incident(Phase.VERIFYING, FaultClass.HANG, signals=(stall,)), seen(what))
    assert decision.incident.phase is Phase.CHECKPOINTING


UNSTEPPED = signal(FaultClass.HANG, attempt="lm-r2", step=None, at=NOW - MINUTE)
MUTE = signal(FaultClass.HANG, attempt="lm-r2", step=None, at=NOW - MINUTE, source=SignalSource.SWEEP)


def asked_to_save(stall: Signal) -> Incident:
    about = {"signals": (stall,), "tries": (a_try(),), "attempt": "lm-r2", "attempt_number": 2}
    return incident(Phase.CHECKPOINTING, FaultClass.HANG, **about)


def test_a_new_attempt_that_stalled_before_its_first_step_and_has_made_one_is_not_stopped() -> None:
    moving = seen(view(name="lm-r2", step=3, heartbeat_at=NOW), reply=ANSWERED["cannot"])
    decision = look(asked_to_save(UNSTEPPED), moving)
    assert (decision.rule, decision.incident.phase) == ("verify.moves_again", Phase.VERIFYING)
    assert not decision.actions


@pytest.mark.parametrize(
    ("stall", "what"),
    [
        (UNSTEPPED, {"step": 3, "work": "stalled"}),
        (UNSTEPPED, {"step": None}),
        (MUTE, {"step": 3}),  # metrics that fell silent, at whatever step
    ],
    ids=["it stands again", "no step is known", "its metrics fell silent"],
)
def test_a_new_attempt_of_which_no_step_since_is_known_is_stopped(stall: Signal, what: dict[str, Any]) -> None:
    there = seen(view(name="lm-r2", heartbeat_at=NOW, **what), reply=ANSWERED["cannot"])
    assert look(asked_to_save(stall), there).rule != "verify.moves_again"


@pytest.mark.parametrize("fault", [FaultClass.NODE_LOST, FaultClass.SOFTWARE_CRASH])
def test_one_late_heartbeat_does_not_refute_a_death(fault: FaultClass) -> None:
    claim = dataclasses.replace(LOST, fault=fault, kind=SignalKind.AGENT_LOG_FAULT, occurred_at=NOW - 3 * MINUTE)
    weighed = incident(
        Phase.HOLDING,
        fault,
        signals=(claim,),
        target_step=Known(100),
        fault_rule="signal.agent_log_fault",
        phase_entered_at=NOW - 2 * MINUTE,
    )
    one_heartbeat = seen(view(step=101, heartbeat_at=claim.occurred_at + 10 * SECOND))
    assert look(weighed, one_heartbeat).incident.phase is Phase.STOPPING
    two_heartbeats = seen(view(step=103, heartbeat_at=claim.occurred_at + 31 * SECOND))
    assert look(weighed, two_heartbeats).rule == "healed"


@pytest.mark.parametrize(
    ("old_min", "held_min", "rule"),
    [(2, 12, "healed"), (4, 12, "heal.confirm"), (10, 12, "heal.confirm"), (10, 31, "heal.unconfirmed")],
)
def test_a_heartbeat_of_minutes_ago_heals_nothing_while_a_newer_one_may_come(
    old_min: int, held_min: int, rule: str
) -> None:
    claim = dataclasses.replace(LOST, occurred_at=NOW - 40 * MINUTE)
    entered_at = NOW - held_min * MINUTE
    weighed = incident(
        Phase.HOLDING,
        FaultClass.NODE_LOST,
        signals=(claim,),
        target_step=Known(100),
        fault_rule="signal.node_state",
        phase_entered_at=entered_at,
    )
    moved = seen(view(step=130, heartbeat_at=NOW - old_min * MINUTE))
    assert look(weighed, moved).rule == rule


def test_the_second_heartbeat_is_waited_for_before_anything_is_done() -> None:
    young = dataclasses.replace(STALL, occurred_at=NOW - 20 * SECOND)
    decision = look(incident(), seen(view(step=103, heartbeat_at=NOW - 5 * SECOND), new_signals=(young,)))
    assert (decision.rule, decision.incident.phase, decision.actions) == ("heal.confirm", Phase.HOLDING, ())


# --- finished is finished -------------------------------------------------------------------------------------------

FINISHING = (
    view(step=200, work="finished", heartbeat_at=NOW - 20 * MINUTE),
    view(step=200, detail="InProgress/Uploading: Uploading generated training model"),
)


@pytest.mark.parametrize("what", FINISHING, ids=["by its heartbeat", "by its upload"])
@pytest.mark.parametrize(
    "fault",
    [
        FaultClass.HANG,
        FaultClass.SOFTWARE_CRASH,
        FaultClass.NODE_LOST,
        FaultClass.NODE_HARDWARE,
        FaultClass.PLANNED_END,
    ],
)
def test_a_run_that_has_finished_can_neither_hang_nor_crash_and_stays_on_its_node(
    what: AttemptView, fault: FaultClass
) -> None:
    claim = signal(fault, kind=SignalKind.ALARM, step=None, at=NOW - MINUTE)
    for phase in (Phase.OPEN, Phase.HOLDING, Phase.CHECKPOINTING):
        case = incident(phase, fault, signals=(claim,), phase_entered_at=NOW - 30 * MINUTE)
        decision = look(case, seen(what))
        assert decision.actions == (), decision.rule
        assert decision.incident.phase is Phase.HOLDING
        assert decision.rule.endswith(".finishing")


@pytest.mark.parametrize("what", FINISHING, ids=["by its heartbeat", "by its upload"])
def test_a_new_attempt_that_has_finished_is_not_silent(what: AttemptView) -> None:
    case = incident(
        Phase.VERIFYING,
        FaultClass.HANG,
        watch_at=NOW - timedelta(hours=2),
        watch_step=Known(200),
        target_step=Known(300),
    )
    decision = look(case, seen(dataclasses.replace(what, name="lm-r2")))
    assert (decision.rule, decision.actions) == ("ended.finishing", ())


def test_a_run_that_fails_after_it_has_finished_is_not_trained_again() -> None:
    what = view(AttemptStatus.FAILED, step=200, work="finished", failure_reason="AlgorithmError: exit code 134")
    decision = look(incident(), seen(what))
    assert (decision.rule, decision.incident.phase) == ("ended.finished", Phase.HANDED_OVER)


@pytest.mark.parametrize("what", FINISHING, ids=["by its heartbeat", "by its upload"])
def test_a_run_that_finishes_poisoned_is_a_persons(what: AttemptView) -> None:
    bad = signal(FaultClass.NON_FINITE, kind=SignalKind.NON_FINITE, step=100)
    decision = look(incident(), seen(what, new_signals=(bad,)))
    assert (decision.rule, decision.incident.phase) == ("ended.finished_poisoned", Phase.HANDED_OVER)
    assert not any(isinstance(action, StopJob) for action in decision.actions)


# --- what its answer shows ------------------------------------------------------------------------------------------


def saved_at(step: int) -> Known[ReplyView]:
    return Known(ReplyView(request_id="inc-lm-1-c1", outcome="saved", step=step, why=""))


def test_a_run_that_saves_past_the_step_it_hung_at_moves_though_its_heartbeats_are_late() -> None:
    asked = incident(Phase.CHECKPOINTING, FaultClass.HANG, signals=(STALL,), target_step=Known(100))
    late = view(step=100, heartbeat_at=NOW - 10 * MINUTE)
    decision = look(asked, seen(late, reply=saved_at(113)))
    assert (decision.rule, decision.actions) == ("heal.saved", ())
    at_the_same_step = look(asked, seen(late, reply=saved_at(100)))
    assert any(isinstance(action, StopJob) for action in at_the_same_step.actions)


@pytest.mark.parametrize(("over_for", "is_left"), [(12, True), (2, False), (-3, False)])
def test_a_run_that_saves_long_after_its_announced_end_is_not_stopped_for_it(over_for: int, is_left: bool) -> None:
    notice = signal(
        FaultClass.PLANNED_END,
        kind=SignalKind.HEALTH_NOTICE,
        source=SignalSource.HEALTH,
        evidence={"starts_at": (NOW - over_for * MINUTE).isoformat()},
    )
    asked = incident(Phase.CHECKPOINTING, FaultClass.PLANNED_END, signals=(notice,))
    decision = look(asked, seen(view(step=113), reply=saved_at(113)))
    assert (decision.rule == "notice.over") is is_left, decision.rule
    assert any(isinstance(action, StopJob) for action in decision.actions) is not is_left


def test_it_is_closed_with_a_word_where_no_heartbeat_ever_comes() -> None:
    asked = incident(Phase.CHECKPOINTING, FaultClass.HANG, signals=(STALL,), target_step=Known(100))
    assert asked.halt.ask is not None
    long_ago = dataclasses.replace(asked.halt.ask, asked_at=NOW - 31 * MINUTE)
    decision = look(
        dataclasses.replace(asked, halt=dataclasses.replace(asked.halt, ask=long_ago)),
        seen(view(step=100), reply=saved_at(113)),
    )
    assert (decision.rule, decision.incident.phase) == ("heal.saved_limit", Phase.STOPPED)


def test_a_new_attempt_whose_heartbeats_have_stopped_is_a_persons_and_not_stopped() -> None:
    still = {"watch_at": NOW - timedelta(hours=2), "watch_step": Known(95), "evidence_since": NOW - MINUTE}
    case = incident(Phase.VERIFYING, FaultClass.HANG, **still)
    stale = look(case, seen(view(name="lm-r2", step=95, heartbeat_at=NOW - 20 * MINUTE)))
    assert (stale.rule, stale.incident.phase) == ("verify.unheard", Phase.HANDED_OVER)
    fresh = look(case, seen(view(name="lm-r2", step=95, heartbeat_at=NOW)))
    assert fresh.rule == "verify.silent"
