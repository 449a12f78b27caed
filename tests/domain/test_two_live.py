"""Rules for two attempts of one run that live: which makes way, and what people hear."""

from __future__ import annotations

from typing import Any

import pytest

from chalicelib.domain.decision.verdict import Decision
from chalicelib.domain.model.action import Notify, RequestCheckpoint, StopJob
from chalicelib.domain.model.incident import CheckpointAsk, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import NO_SIBLING, AttemptStatus
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.playbooks import Response
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, a_try, incident, look, seen, signal, view, with_row

TWO = FaultClass.TWO_LIVE
BESIDE: Any = {"sibling": Known("lm-again"), "is_ours": True}


def two_signal() -> Any:
    return signal(TWO, kind=SignalKind.TWO_LIVE, attempt="lm-r2", evidence={"beside": "lm-again"})


def about_two(**more: Any) -> Any:
    return incident(Phase.OPEN, TWO, attempt="lm-r2", attempt_number=2, signals=(signal(TWO, attempt="lm-r2"),), **more)


def ours(status: AttemptStatus = AttemptStatus.RUNNING, **more: Any) -> Any:
    return view(status, name="lm-r2", **more)


def titles(decision: Decision) -> list[str]:
    return [action.title for action in decision.actions if isinstance(action, Notify)]


@pytest.mark.parametrize(
    ("more", "row", "rule", "phase"),
    [
        (BESIDE, None, "two_live.make_way", Phase.CHECKPOINTING),
        (BESIDE, Response.RESTART, "two_live.make_way", Phase.STOPPING),
        (BESIDE, Response.TELL, "two_live.left", Phase.STOPPED),
        (BESIDE, Response.HAND_OVER, "two_live.hand_over", Phase.HANDED_OVER),
        ({**BESIDE, "is_ours": False}, None, "two_live.left", Phase.STOPPED),
        ({"sibling": NO_SIBLING}, None, "two_live.over", Phase.STOPPED),
        ({"sibling": Unknown("throttled")}, None, "two_live.unseen", Phase.OPEN),
    ],
)
def test_what_becomes_of_two_that_live(more: Any, row: Response | None, rule: str, phase: Phase) -> None:
    policy = [with_row(TWO, response=row)] if row is not None else []
    decision = look(about_two(), seen(ours(), **more), *policy)
    assert (decision.rule, decision.incident.phase) == (rule, phase)
    is_told = isinstance(more["sibling"], Known)
    assert any(title.endswith("two attempts live") for title in titles(decision)) is is_told


def test_a_second_attempt_that_cannot_be_read_for_hours_is_left_to_a_person() -> None:
    old = about_two(phase_entered_at=NOW - 3000 * MINUTE)
    decision = look(old, seen(ours(), sibling=Unknown("throttled")))
    assert decision.rule == "two_live.unseen_limit"


def test_a_new_attempt_makes_way_while_it_is_verified_and_its_poisoned_one_is_not_asked_to_save() -> None:
    verified = incident(Phase.VERIFYING, FaultClass.NON_FINITE, attempt="lm-r2", attempt_number=2, tries=(a_try(),))
    decision = look(verified, seen(ours(), **BESIDE))
    assert decision.rule == "two_live.make_way"
    assert any(isinstance(action, StopJob) for action in decision.actions)


OWNERS: Any = {"sibling": Known("lm-again"), "is_ours": False}


@pytest.mark.parametrize("more", [OWNERS, {"sibling": Unknown("throttled")}])
@pytest.mark.parametrize("row", [None, Response.RESTART, Response.TELL])
def test_one_that_an_owner_has_started_is_verified_on_beside_a_second_one(more: Any, row: Response | None) -> None:
    """The owner's first retry took the place of the one that hung, and its second one arrives meanwhile."""
    two = two_signal()
    verified = incident(Phase.VERIFYING, attempt="lm-r2", attempt_number=2, tries=(a_try(),), signals=(two,))
    policy = [with_row(TWO, response=row)] if row is not None else []
    decision = look(verified, seen(ours(step=95), new_signals=(two,), **more), *policy)
    assert decision.incident.phase is Phase.VERIFYING
    assert not any(isinstance(action, StopJob | RequestCheckpoint) for action in decision.actions), decision.rule
    assert any(title.endswith("two attempts live") for title in titles(decision)) is isinstance(more["sibling"], Known)


@pytest.mark.parametrize(
    ("more", "rule", "phase"),
    [
        (OWNERS, "two_live.left", Phase.STOPPED),
        ({"sibling": NO_SIBLING}, "two_live.over", Phase.STOPPED),
        ({"sibling": Unknown("throttled")}, "two_live.unseen", Phase.CHECKPOINTING),
    ],
)
def test_what_was_asked_to_save_for_a_stall_of_an_earlier_life_is_not_stopped_for_a_second_attempt(
    more: Any, rule: str, phase: Phase
) -> None:
    stall = signal(attempt="lm-r2", at=NOW - 3 * MINUTE, evidence={"step": 100, "life": 0})
    ask = CheckpointAsk(request_id="c1", attempt="lm-r2", asked_at=NOW - 2 * MINUTE, deadline_at=NOW - MINUTE)
    asked = incident(Phase.CHECKPOINTING, attempt="lm-r2", signals=(stall, two_signal()), ask=ask)
    decision = look(asked, seen(ours(step=95, life=1, work="training", heartbeat_at=NOW), **more))
    assert (decision.rule, decision.incident.phase) == (rule, phase)


def test_what_was_asked_to_save_before_it_makes_way_is_stopped_or_goes_on_with_the_other_one() -> None:
    ask = CheckpointAsk(
        request_id="c1", attempt="lm-r2", asked_at=NOW - MINUTE, deadline_at=NOW, outcome="saved", step=99
    )
    saved = incident(Phase.CHECKPOINTING, TWO, attempt="lm-r2", ask=ask, for_sibling="lm-again")
    assert look(saved, seen(ours(), **BESIDE)).rule == "two_live.saved"
    assert look(saved, seen(ours(), sibling=NO_SIBLING)).rule == "two_live.over"


def test_once_ours_has_ended_the_other_one_is_watched() -> None:
    stopped = incident(Phase.STOPPING, TWO, attempt="lm-r2", stopped_attempts=("lm-r2",), for_sibling="lm-again")
    decision = look(stopped, seen(ours(AttemptStatus.STOPPED), **BESIDE))
    assert (decision.rule, decision.incident.attempt) == ("resubmit.sibling", "lm-again")
