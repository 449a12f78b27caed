"""A stop that did not get through is not asked for again once what it was for is over."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chalicelib.domain.model.evidence import LossEpisode
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import NO_SIBLING, AttemptView
from chalicelib.domain.model.signal import SignalKind
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, a_try, incident, look, seen, signal, view

UNREAD = Unknown("whether another attempt lives is not known: Throttled")


def stopping(fault: FaultClass, **more: object) -> Incident:
    asked_at = NOW - 10 * MINUTE
    return incident(Phase.STOPPING, fault, stop_asked_at=asked_at, stop_begun_at=asked_at, **more)


def in_its_way(fault: FaultClass = FaultClass.SOFTWARE_CRASH, **more: object) -> Incident:
    """Ours had not begun as another was started by hand."""
    return stopping(fault, attempt="lm-r2", attempt_number=2, tries=(a_try(),), for_sibling="lm-by-hand", **more)


@pytest.mark.parametrize(
    ("sibling", "work", "rule"),
    [
        (NO_SIBLING, "training", "stop.moves_again"),
        (NO_SIBLING, "stalled", "stop.again"),
        (Known("lm-by-hand"), "training", "stop.again"),
        (UNREAD, "training", "stop.again"),
    ],
)
def test_ours_makes_way_for_one_that_lives(sibling: Maybe[str], work: str, rule: str) -> None:
    decision = look(in_its_way(), seen(view(name="lm-r2", step=120, work=work), sibling=sibling))
    assert decision.rule == rule
    assert (decision.incident.halt.for_sibling is None) is (rule == "stop.moves_again")


def test_ours_makes_way_also_where_it_hung_and_moves_again() -> None:
    moves = signal(
        None, kind=SignalKind.PROGRESS_RESUMED, attempt="lm-r2", at=NOW - timedelta(seconds=30), triggers=False
    )
    hung = in_its_way(FaultClass.HANG, signals=(moves,))
    beside = look(hung, seen(view(name="lm-r2", step=120), sibling=Known("lm-by-hand")))
    assert beside.rule == "stop.again"


def slow(step_s: float) -> AttemptView:
    return view(step=120, step_s=step_s, heartbeat_at=NOW - timedelta(seconds=5))


@pytest.mark.parametrize(("step_s", "rule"), [(1.1, "stop.moves_again"), (2.0, "stop.again")])
def test_a_run_whose_speed_is_back_is_left(step_s: float, rule: str) -> None:
    claim = signal(
        FaultClass.THROUGHPUT_DROP, kind=SignalKind.THROUGHPUT, evidence={"baseline_s": 1.0}, at=NOW - 20 * MINUTE
    )
    assert look(stopping(FaultClass.THROUGHPUT_DROP, signals=(claim,)), seen(slow(step_s))).rule == rule


def test_a_run_whose_loss_is_well_again_is_left() -> None:
    over = LossEpisode(
        attempt="lm", fault=FaultClass.LOSS_SPIKE, since=NOW - 20 * MINUTE, onset_step=Known(90), healed_step=110
    )
    well = view(step=120, loss_health="ok", healed_step=110)
    case = stopping(FaultClass.LOSS_SPIKE, episode=over, onset_attempt="lm", onset_fault=FaultClass.LOSS_SPIKE)
    assert look(case, seen(well)).rule == "stop.moves_again"
