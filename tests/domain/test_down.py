"""A run that is kept waiting for long is told once, in every phase, unless people were told something before."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chalicelib.domain.decide import Decision
from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.model.action import ActionResult, Done, Notify, Severity
from chalicelib.domain.model.approvals import Guard, Hold
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.observation import AttemptStatus, Observation
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.domain.run.down import with_down_told
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, UNSEEN, a_try, incident, look, seen, view

F = FaultClass
LONG, SHORT = 16 * MINUTE, 14 * MINUTE


def told(decision: Decision) -> list[Notify]:
    return [
        action for action in decision.actions if isinstance(action, Notify) and action.title.endswith(": still down")
    ]


def waiting(phase: Phase, down_for: timedelta) -> tuple[Incident, Observation]:
    """An Incident that can only wait in that phase, its run down for so long."""
    case = incident(phase, F.SOFTWARE_CRASH).changed(down_since=NOW - down_for, phase_entered_at=NOW - down_for)
    match phase:
        case Phase.STOPPING:
            return case.changed(stop_asked_at=NOW - MINUTE), seen(view(AttemptStatus.STOPPING))
        case Phase.RESUBMITTING:
            case = case.changed(tries=(a_try(at=NOW - down_for),))
            away = ActionResult(action="ResubmitJob", done=Done.UNAVAILABLE, detail="it does not answer")
            return case, seen(view(AttemptStatus.FAILED, ended_at=NOW - down_for), results=(away,))
        case _:
            return case, seen(view(AttemptStatus.STARTING, name="lm-r2", step=None), next_number=3)


WAITS = (Phase.STOPPING, Phase.RESUBMITTING, Phase.VERIFYING)


@pytest.mark.parametrize("phase", WAITS)
def test_a_run_that_is_down_for_long_is_told_once(phase: Phase) -> None:
    case, observed = waiting(phase, LONG)
    decision = look(case, observed)
    assert decision.incident.phase is phase, decision.rule
    (notice,) = told(decision)
    assert notice.severity is Severity.WARNING
    assert decision.reason in notice.text
    assert told(look(decision.incident, observed)) == []


@pytest.mark.parametrize("phase", WAITS)
def test_one_that_is_down_for_a_short_time_is_not(phase: Phase) -> None:
    case, observed = waiting(phase, SHORT)
    assert told(look(case, observed)) == []


@pytest.mark.parametrize("phase", WAITS)
def test_where_people_had_a_warning_before_no_second_one_is_sent(phase: Phase) -> None:
    case, observed = waiting(phase, LONG)
    assert told(look(case.changed(warned_at=NOW - LONG / 2), observed)) == []


@pytest.mark.parametrize("phase", WAITS)
def test_a_warning_from_before_it_went_down_is_none_of_that(phase: Phase) -> None:
    """It trained again since, and is down once more."""
    case, observed = waiting(phase, LONG)
    assert len(told(look(case.changed(warned_at=NOW - 2 * LONG), observed))) == 1


def test_a_run_that_is_down_for_want_of_capacity_has_one_warning() -> None:
    """The wait for capacity began after the run went down, so that its own word would come later."""
    refused = ActionResult(action="ResubmitJob", done=Done.CAPACITY, detail="none in the zone")
    ended = seen(view(AttemptStatus.FAILED, ended_at=NOW - LONG), results=(refused,))
    case = incident(Phase.RESUBMITTING, F.SOFTWARE_CRASH, down_since=NOW - LONG, tries=(a_try(at=NOW - LONG),))
    case = case.changed(capacity_since=NOW - MINUTE)
    first = look(case, ended)
    assert (first.rule, len(told(first))) == ("capacity.back_off", 1)
    later = first.incident.changed(capacity_since=NOW - LONG, tries=case.resubmission.tries)
    assert not [action for action in look(later, ended).actions if isinstance(action, Notify)]


@pytest.mark.parametrize(
    ("guard", "count"),
    [
        (Guard.WINDOW, 0),  # people want it so, and hear of it by its own news
        (Guard.PAUSE, 0),
        (Guard.SHADOW, 0),
        (Guard.DENIED, 0),
        (Guard.BREAKER, 1),  # its question may be of an earlier time at which the run was down
        (Guard.APPROVAL, 1),
        (Guard.DEFERENCE, 1),
    ],
)
def test_what_people_want_held_back_is_told_by_its_own_news_alone(guard: Guard, count: int) -> None:
    case, observed = waiting(Phase.VERIFYING, LONG)
    held = case.changed(holds=(Hold(guard=guard, since=NOW - LONG, text="until noon"),))
    decision = with_down_told(
        RuleContext.of(held, observed, now=NOW, policy=DEFAULT_POLICY),
        Decision(rule=f"guard.{guard}", reason="", incident=held, look_again_in=MINUTE, policy_version="1"),
    )
    assert len(told(decision)) == count


def test_the_clock_begins_with_the_first_look_that_shows_it_down_and_ends_with_steps() -> None:
    case = incident(Phase.VERIFYING, F.SOFTWARE_CRASH)
    down = look(case, seen(view(AttemptStatus.STARTING, name="lm-r2", step=None), next_number=3)).incident
    assert down.tracking.down_since == NOW
    unseen = look(down, seen(UNSEEN, next_number=3)).incident
    assert unseen.tracking.down_since == NOW, "what cannot be read is no evidence of steps"
    running = view(name="lm-r2", step=91, work="training", heartbeat_at=NOW)
    trains = look(down, seen(running, next_number=3)).incident
    assert trains.tracking.down_since is None
