"""Guards that meet: switched on in the middle of something, one after the other, or two at once."""

from __future__ import annotations

from chalicelib.domain.actions import ActionResult, Done, StopJob
from chalicelib.domain.faults import FaultClass
from chalicelib.domain.incidents import Phase
from chalicelib.domain.observations import AttemptStatus
from rekindle.headnode.documents import EndedBy
from tests.domain.slurm_looks import NEW, R1, case, put_back, sees, start, try_of
from tests.guardrails.made import harmful, look_on, policy

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
    assert [one.attempt for one in decision.actions if isinstance(one, StopJob)] == [R1]
    assert (decision.rule, decision.incident.phase) == ("resubmit.started", Phase.VERIFYING)


def test_shadow_mode_switched_on_before_a_start_was_answered_says_that_it_may_be_there() -> None:
    decision = look_on(ORDERED, BESIDE, policy(), shadow="everywhere")
    assert (decision.rule, harmful(decision)) == ("guard.shadow", [])
    assert f"Whether {NEW}, ordered at 11:59 UTC, was started is not known" in decision.reason
    assert "scontrol release 7" in decision.reason
