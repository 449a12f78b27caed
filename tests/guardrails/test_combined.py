"""Guards that meet: switched on in the middle of something, one after the other, or two at once."""

from __future__ import annotations

from chalicelib.domain.decide import Decision
from chalicelib.domain.model.action import ActionResult, Done, Notify, Severity, StopJob
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus
from rekindle.protocol.cluster.documents import EndedBy
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, a_try, checkpoint, incident, seen, view
from tests.domain.slurm_looks import NEW, R1, case, put_back, sees, start, try_of
from tests.guardrails.made import HOUR, harmful, look_on, policy

# ---- shadow mode between a stop and a start --------------------------------------------------------------------------

ORDERED = case(
    Phase.RESUBMITTING,
    FaultClass.NODE_LOST,
    tries=(try_of(NEW, leaves=R1),),
    attempt=NEW,
    attempt_number=2,
    stop_hold=True,
    stopped_attempts=("slurm.ml.7",),
)
BESIDE = sees(put_back(EndedBy.AGENT), after=start(AttemptStatus.STARTING, R1, held=True))


def test_shadow_mode_switched_on_after_a_start_still_ends_the_held_one_beside_it() -> None:
    """The new submission was let through before; the start that waits, held, beside it belongs to that step."""
    begun = (ActionResult(action="ResubmitJob", done=Done.DONE),)
    decision = look_on(ORDERED, BESIDE, policy(), shadow="everywhere", results=begun)
    assert [action.attempt for action in decision.actions if isinstance(action, StopJob)] == [R1]
    assert (decision.rule, decision.incident.phase) == ("resubmit.started", Phase.VERIFYING)


def test_shadow_mode_switched_on_before_a_start_was_answered_says_that_it_may_be_there() -> None:
    decision = look_on(ORDERED, BESIDE, policy(), shadow="everywhere")
    assert (decision.rule, harmful(decision)) == ("guard.shadow", [])
    assert f"Whether {NEW}, ordered at 11:59 UTC, was started is not known" in decision.reason
    assert "scontrol release 7" in decision.reason


# ---- who hears of a hold ---------------------------------------------------------------------------------------------

DIED = incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH)
DEAD = seen(view(AttemptStatus.FAILED, failure_reason="boom"), checkpoints=Known((checkpoint(90),)))
NIGHT = {"name": "night", "from": "11:30", "to": "12:30", "actions": ["ResubmitJob"]}
REPAIRS = {"name": "repairs", "from": "11:00", "to": "23:00", "actions": ["RebootNode"]}


def news(decision: Decision) -> list[Notify]:
    return [action for action in decision.actions if isinstance(action, Notify)]


def test_people_hear_once_and_gently_what_a_window_holds_back_and_until_when() -> None:
    rules = policy(windows=[NIGHT, REPAIRS])
    first = look_on(DIED, DEAD, rules)
    (told,) = news(first)
    assert (first.rule, told.severity, told.title) == ("guard.window", Severity.INFO, "lm: held back (window)")
    assert "until Fri 12:30 UTC by the window night: start lm-r2 in place of lm" in told.text
    assert "repairs" not in told.text, "it holds something else"
    case = first.incident
    for minutes in (1, 2, 5, 29):
        again = look_on(case, DEAD, rules, at=NOW + minutes * MINUTE)
        assert (again.rule, news(again)) == ("guard.window", [])
        case = again.incident


def test_people_hear_once_that_a_pause_holds_a_dead_run() -> None:
    first = look_on(DIED, DEAD, policy(), paused=True)
    (told,) = news(first)
    assert (told.severity, told.title) == (Severity.INFO, "lm: held back (pause)")
    assert "`rekindle switches unpause`" in told.text
    assert "lm has ended (failed)" in told.text
    assert news(look_on(first.incident, DEAD, policy(), at=NOW + HOUR, paused=True)) == []


def test_a_pause_that_flaps_is_told_once_an_hour() -> None:
    rules = policy(windows=[NIGHT])
    told, case = 0, DIED
    for minute in range(20):
        decision = look_on(case, DEAD, rules, at=NOW + minute * MINUTE, paused=minute % 2 == 0)
        told += sum("(pause)" in notice.title for notice in news(decision))
        case = decision.incident
    assert told == 1
    later = look_on(case, DEAD, rules, at=NOW + 2 * HOUR, paused=True)
    assert len(news(later)) == 1


def test_whoever_waits_for_capacity_is_heard_of_as_it_begins_and_once_more_when_it_lasts() -> None:
    """Six hours of it would otherwise be told by their end; the second notice is a warning, after 15 minutes."""
    told, case = 0, incident(Phase.RESUBMITTING, FaultClass.SOFTWARE_CRASH, tries=(a_try(),), attempt="lm-r2")
    full = (ActionResult(action="ResubmitJob", done=Done.CAPACITY, detail="no p5 today"),)
    for minute in range(0, 60, 10):
        decision = look_on(case, DEAD, policy(), at=NOW + minute * MINUTE, results=full)
        told += len(news(decision))
        case = decision.incident
    assert told == 2
