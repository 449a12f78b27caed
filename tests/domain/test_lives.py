"""A run that something restarts in its place is adopted and verified, and restarts without a gain are counted."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.decision.verdict import Decision
from chalicelib.domain.model.action import Notify, Severity, StopJob
from chalicelib.domain.model.evidence import LossEpisode, Stretch
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import JobRecord
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


def warnings_of(decision: Decision) -> list[Notify]:
    notices = (action for action in decision.actions if isinstance(action, Notify))
    return [notice for notice in notices if notice.severity is Severity.WARNING]


@pytest.mark.parametrize("work", ["", "startup", "training"])
@pytest.mark.parametrize("phase", [Phase.OPEN, Phase.HOLDING, Phase.CHECKPOINTING, Phase.STOPPING])
def test_a_new_life_behind_the_step_of_the_stall_is_watched_and_not_stopped(phase: Phase, work: str) -> None:
    again = seen(view(step=62, heartbeat_at=NOW, life=1, work=work))
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


def test_a_restart_in_place_that_begins_far_below_what_was_saved_is_told_once() -> None:
    opened = incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH, signals=(started(1, 100),))
    saved = JobRecord(furthest_saved=Known(90))
    began = view(step=5, first_step=Known(1), heartbeat_at=NOW, life=1)
    told = look(opened, dataclasses.replace(seen(began), record=saved))
    assert [notice.title for notice in warnings_of(told)] == ["lm: progress is lost"]
    assert "step 1, though step 90 had been saved" in warnings_of(told)[0].text
    assert warnings_of(look(told.incident, dataclasses.replace(seen(began), record=saved))) == []
    for healthy in (
        dataclasses.replace(began, first_step=Known(91), last_step=Known(92)),  # it continues from that save
        dataclasses.replace(began, last_step=Known(90)),  # which may be its own
        dataclasses.replace(began, first_step=Unknown("no step seen yet"), last_step=Unknown("no step seen yet")),
    ):
        assert warnings_of(look(opened, dataclasses.replace(seen(healthy), record=saved))) == []


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


def test_a_restart_in_place_that_the_first_look_sees_at_work_is_named_and_watched() -> None:
    decision = look(incident(signals=(started(1, 100),)), seen(view(step=62, heartbeat_at=NOW, life=1)))
    assert (decision.rule, decision.incident.fault) == ("defer.began_anew", FaultClass.SOFTWARE_CRASH)


@pytest.mark.parametrize("heartbeat_at", [NOW - 10 * MINUTE, None])
def test_a_late_heartbeat_of_the_life_before_accuses_no_new_one(heartbeat_at: Any) -> None:
    opened = incident(signals=(started(1, 100, NOW - 5 * MINUTE),), opened_at=NOW - 5 * MINUTE)
    decision = look(opened, seen(view(step=100, heartbeat_at=heartbeat_at, work="stalled", loss_state="nan")))
    assert decision.rule == "defer.began_anew"


@pytest.mark.parametrize("heartbeat_at", [NOW, NOW - 20 * MINUTE])
def test_a_new_life_is_stopped_for_a_step_that_stands_and_not_for_silence(heartbeat_at: Any) -> None:
    held = incident(
        Phase.HOLDING,
        FaultClass.SOFTWARE_CRASH,
        signals=(started(1, 100, NOW - 40 * MINUTE),),
        target_step=Known(100),
        watch_at=NOW - 40 * MINUTE,
        watch_step=Known(62),
    )
    decision = look(held, seen(view(step=62, heartbeat_at=heartbeat_at, life=1)))
    expected = "defer.repaired_silent" if heartbeat_at == NOW else "defer.repaired_unseen"
    assert decision.rule == expected


def test_weights_that_have_gone_bad_ended_with_their_life() -> None:
    bad = of_life(0, signal(FaultClass.NON_FINITE, kind=SignalKind.NON_FINITE, step=90, at=NOW - 9 * MINUTE))
    gone_bad = look(incident(signals=(bad,)), seen(view(step=93, heartbeat_at=NOW, loss_state="nan"))).incident
    assert gone_bad.is_poisoned
    inherited = incident(
        signals=(started(1, 95),),
        onset_attempt="lm",
        onset_step=Known(90),
        stretches=(Stretch(attempt="lm", from_step=89),),
    )
    decision = look(inherited, seen(view(step=62, heartbeat_at=NOW, life=1)))
    assert (decision.rule, decision.incident.is_poisoned) == ("defer.began_anew", False)
    assert decision.incident.loss.stretches == (Stretch(attempt="lm", from_step=89, to_step=96),)


@pytest.mark.parametrize(
    ("first", "kept"),
    [
        (62, Stretch(attempt="lm", from_step=90, to_step=96)),  # from before it: what it saves beyond is its own
        (93, Stretch(attempt="lm", from_step=90)),  # it has loaded the rise, and knows no loss from before
        (None, Stretch(attempt="lm", from_step=90)),
    ],
)
def test_what_a_life_saved_while_its_loss_had_risen_stays_unused_by_the_next(first: Any, kept: Stretch) -> None:
    rose = of_life(0, signal(FaultClass.LOSS_SPIKE, kind=SignalKind.LOSS_SPIKE, step=90, at=NOW - 9 * MINUTE))
    since = NOW - 8 * MINUTE
    risen = LossEpisode(attempt="lm", fault=FaultClass.LOSS_SPIKE, since=since, onset_step=Known(90))
    watched = incident(Phase.WATCHING, FaultClass.LOSS_SPIKE, signals=(rose, started(1, 95)), episode=risen)
    began = Unknown("no heartbeat") if first is None else Known(first)
    again = view(step=first, heartbeat_at=NOW, life=1, first_step=began, loss_health="unknown")
    after = look(watched, seen(again)).incident
    assert (after.loss.episode, after.is_poisoned, after.loss.stretches) == (None, False, (kept,))


def test_a_claim_about_a_life_that_still_catches_up_is_weighed_by_its_own_steps() -> None:
    lost = signal(FaultClass.NODE_LOST, kind=SignalKind.NODE_STATE, step=None, at=NOW - MINUTE)
    held = incident(
        Phase.HOLDING,
        FaultClass.NODE_LOST,
        signals=(started(1, 100, NOW - 5 * MINUTE), of_life(1, lost)),
        target_step=Known(100),
        watch_at=NOW - 4 * MINUTE,
        watch_step=Known(61),
        repaired_at=NOW - 5 * MINUTE,
    )
    decision = look(held, seen(view(step=70, heartbeat_at=NOW, life=1)))
    assert (decision.rule, decision.incident.target_step) == ("defer.confirm", Known(70))


def test_lives_whose_events_were_lost_count_by_the_number_of_the_one_at_work() -> None:
    held = incident(
        Phase.HOLDING, FaultClass.SOFTWARE_CRASH, signals=(started(4, 100, NOW - 9 * MINUTE),), target_step=Known(100)
    )
    assert look(held, seen(view(step=62, heartbeat_at=NOW, life=5))).rule == "defer.began_anew"
    assert look(held, seen(view(step=62, heartbeat_at=NOW, life=6))).rule == "budget.no_progress"


def test_restarts_in_place_while_a_loss_is_watched_count_where_none_comes_further() -> None:
    rose = of_life(0, signal(FaultClass.LOSS_SPIKE, kind=SignalKind.LOSS_SPIKE, step=90, at=NOW - 20 * MINUTE))
    again = view(step=96, heartbeat_at=NOW, life=3, first_step=Known(91), loss_health="unknown")

    def after(*reached: int) -> str:
        lives = tuple(started(life, step, NOW - (9 - life) * MINUTE) for life, step in enumerate(reached, 1))
        watched = incident(Phase.WATCHING, FaultClass.LOSS_SPIKE, signals=(rose, *lives))
        return look(watched, seen(dataclasses.replace(again, life=len(reached)))).rule

    assert after(95, 95, 95) == after(91, 95, 95, 94) == "budget.no_progress"
    assert after(95, 95) == after(93, 95, 97) == after(95, 95, 97, 96) == "spike.unseen"
