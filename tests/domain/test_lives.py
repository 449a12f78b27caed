"""A run that something restarts in its place is adopted and verified, and restarts without a gain are counted."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import StopJob
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.signal import Signal, SignalKind
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, incident, look, seen, signal, view

SECOND = timedelta(seconds=1)


def of_life(life: int, told: Signal) -> Signal:
    return dataclasses.replace(told, evidence={**told.evidence, "life": life})


STALL = of_life(0, signal(FaultClass.HANG, step=100, at=NOW - MINUTE))
HELD = {"signals": (STALL,), "target_step": Known(100)}


def started(life: int, step: int, at: Any = NOW - 50 * SECOND) -> Signal:
    told = signal(FaultClass.SOFTWARE_CRASH, kind=SignalKind.MONITOR_STARTED, step=step, at=at)
    return of_life(life, told)


@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.HOLDING, Phase.CHECKPOINTING, Phase.STOPPING])
def test_a_new_life_behind_the_step_of_the_stall_is_watched_and_not_stopped(phase: Phase) -> None:
    again = seen(view(step=62, heartbeat_at=NOW, life=1))
    asked_at = NOW - 30 * MINUTE if phase is Phase.STOPPING else None
    decision = look(incident(phase, FaultClass.HANG, **HELD, stop_asked_at=asked_at), again)
    assert not any(isinstance(action, StopJob) for action in decision.actions), decision.rule
    assert decision.incident.phase is Phase.HOLDING, decision.rule
    past = seen(view(step=103, heartbeat_at=NOW, life=1))
    assert look(decision.incident, past).rule == "healed"


@pytest.mark.parametrize("what", [{"life": 0}, {"life": 1, "work": "stalled"}])
def test_the_life_that_hangs_and_a_new_one_that_stands_still_are_stopped(what: dict[str, Any]) -> None:
    asked = incident(Phase.CHECKPOINTING, FaultClass.HANG, **HELD, phase_entered_at=NOW - 30 * MINUTE)
    decision = look(asked, seen(view(step=62, heartbeat_at=NOW, **what)))
    assert decision.rule != "checkpoint.began_anew"


def test_a_stall_that_the_new_life_itself_reports_stands() -> None:
    own = of_life(1, signal(FaultClass.HANG, step=62, at=NOW - 10 * SECOND))
    held = incident(Phase.HOLDING, FaultClass.HANG, signals=(STALL, own), target_step=Known(100))
    decision = look(held, seen(view(step=62, heartbeat_at=NOW, life=1)))
    assert decision.rule not in ("defer.began_anew", "defer.repaired")


def test_a_restart_in_place_after_a_crash_is_verified_past_the_step_it_had_reached() -> None:
    opened = incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH, signals=(started(1, 100),))
    watched = look(opened, seen(view(step=62, heartbeat_at=NOW, life=1)))
    assert (watched.rule, watched.incident.target_step) == ("defer.began_anew", Known(100))
    assert look(watched.incident, seen(view(step=104, heartbeat_at=NOW, life=1))).rule == "healed"


def test_restarts_in_place_that_gain_nothing_are_handed_over() -> None:
    lives = tuple(started(life, 100, NOW - (10 - life) * MINUTE) for life in (1, 2, 3))
    held = incident(Phase.HOLDING, FaultClass.SOFTWARE_CRASH, signals=lives, target_step=Known(100))
    decision = look(held, seen(view(step=62, heartbeat_at=NOW, life=3)))
    assert (decision.rule, decision.incident.phase) == ("budget.no_progress", Phase.HANDED_OVER)


def test_a_loop_of_restarts_in_place_is_handed_over_whatever_each_of_them_gains() -> None:
    held = incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH, signals=(started(40, 100),))
    what = view(step=62, heartbeat_at=NOW, life=40, training_since=NOW - 60 * MINUTE)
    assert look(held, seen(what)).rule == "budget.restarts"
    of_weeks = dataclasses.replace(what, training_since=NOW - timedelta(days=20))
    assert look(held, seen(of_weeks)).rule == "defer.began_anew"
