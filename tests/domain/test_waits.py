"""What is waited for, and what ends a wait early: only evidence that would not get stronger by waiting."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.decision.action_results import after_accepted_start
from chalicelib.domain.model.action import ActionResult, Done, Notify, Severity, StopJob
from chalicelib.domain.model.evidence import Suspicion, SuspicionKind
from chalicelib.domain.model.incident import CheckpointAsk, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import SignalKind as K
from chalicelib.platforms.slurm.platform import SLURM
from rekindle.protocol.signals import FaultClass as F
from tests.domain.looks import MINUTE, NOW, a_try, incident, look, seen, signal, view

SECOND = timedelta(seconds=1)


def asked(ago: timedelta, *, left: timedelta = 5 * MINUTE) -> CheckpointAsk:
    return CheckpointAsk(request_id="inc-lm-1-c1", attempt="lm", asked_at=NOW - ago, deadline_at=NOW + left)


def suspicion(reports: int = 3, **more: Any) -> Suspicion:
    base: dict[str, Any] = {"attempt": "lm", "kind": SuspicionKind.HANG, "rule": "silent", "text": "rank 3: no report"}
    return Suspicion(**(base | {"ranks": (3,), "confidence": 0.8, "reports": reports, "world_size": 4} | more))


@pytest.mark.parametrize(
    ("waited_s", "limit_s", "told", "is_stopped"),
    [
        (4, 60.0, suspicion(), False),
        (5, 60.0, suspicion(), True),
        (5, 60.0, suspicion(confidence=0.6), False),  # the way to the mailbox is as likely as the ranks
        (5, 60.0, suspicion(ranks=()), False),
        (5, 60.0, None, False),
        (12, 300.0, suspicion(), False),  # limits learned from minute-long steps differ by more than five seconds
        (15, 300.0, suspicion(), True),
        (29, 6000.0, suspicion(), False),
        (30, 6000.0, suspicion(), True),  # and never longer than for a weak one
        (30, 60.0, None, True),
        (0, 60.0, suspicion(reports=4), True),
    ],
)
def test_a_strong_verdict_on_the_ranks_is_left_open_for_as_long_as_reports_may_be_on_their_way(
    waited_s: int, limit_s: float, told: Suspicion | None, is_stopped: bool
) -> None:
    ask = asked(waited_s * SECOND)
    case = incident(
        Phase.CHECKPOINTING,
        F.HANG,
        ask=CheckpointAsk(
            **{name: getattr(ask, name) for name in ("request_id", "attempt", "asked_at", "deadline_at")}
            | {"outcome": "cannot"}
        ),
        evidence_since=NOW - waited_s * SECOND,
        suspicions=() if told is None else (told,),
        signals=(signal(at=NOW - MINUTE, evidence={"step": 100, "limit_s": limit_s}),),
    )
    decision = look(case, seen(view(heartbeat_at=NOW, work="stalled")))
    assert any(isinstance(action, StopJob) for action in decision.actions) is is_stopped, decision.reason


STILL = {"work": "training", "step_s": 2.0}


@pytest.mark.parametrize(
    ("heartbeat", "is_stopped"),
    [
        ({"heartbeat_at": NOW - 2 * SECOND, "work": "stalled"}, True),
        ({"heartbeat_at": NOW - 2 * MINUTE, "work": "stalled"}, False),  # of before the claim, and none since
        ({"heartbeat_at": NOW - 2 * SECOND, **STILL}, True),
        ({"heartbeat_at": NOW - 20 * SECOND, **STILL}, False),  # not two heartbeats after the claim yet
        ({"heartbeat_at": NOW - 2 * SECOND, **STILL, "step_s": 10.0}, False),  # less than five of its steps
        ({"heartbeat_at": NOW - 2 * SECOND, **STILL, "work": "saving"}, False),
        ({"heartbeat_at": NOW - 2 * SECOND, **STILL, "work": "evaluation"}, False),
        ({"heartbeat_at": NOW - 2 * SECOND, "work": "training"}, False),  # its pace is not known
        ({"heartbeat_at": None}, False),
    ],
)
def test_a_claim_of_a_lost_node_is_borne_out_by_heartbeats_that_were_written_after_it(
    heartbeat: dict[str, Any], is_stopped: bool
) -> None:
    since = NOW - 40 * SECOND
    case = incident(
        Phase.HOLDING,
        F.NODE_LOST,
        phase_entered_at=since,
        signals=(signal(F.NODE_LOST, kind=K.NODE_SUSPECT, at=since),),
        watch_at=since,
        watch_step=Known(100),
        target_step=Known(100),
    )
    decision = look(case, seen(view(**heartbeat)))
    assert any(isinstance(action, StopJob) for action in decision.actions) is is_stopped, decision.reason
    if not is_stopped:
        assert decision.rule == "defer.confirm"


def test_a_run_that_moves_bears_no_claim_out() -> None:
    since = NOW - 40 * SECOND
    case = incident(
        Phase.HOLDING,
        F.NODE_LOST,
        phase_entered_at=since,
        signals=(signal(F.NODE_LOST, kind=K.NODE_SUSPECT, at=since),),
        watch_at=since,
        watch_step=Known(100),
        target_step=Known(110),
    )
    assert look(case, seen(view(step=101, heartbeat_at=NOW, **STILL))).rule == "defer.confirm"


@pytest.mark.parametrize(
    ("asked_ago", "attempt", "is_over"),
    [
        (30 * SECOND, view(heartbeat_at=NOW - 60 * SECOND), True),
        (30 * SECOND, view(heartbeat_at=NOW - 59 * SECOND), False),
        (29 * SECOND, view(heartbeat_at=NOW - 90 * SECOND), False),  # it had no time to be read
        (90 * SECOND, view(heartbeat_at=NOW - 15 * SECOND), False),  # it lives, and may be saving
        (90 * SECOND, view(step=None), False),  # no heartbeat was ever read: nothing is known of it
        (90 * SECOND, Unknown("throttled"), False),
    ],
)
def test_an_answer_is_not_waited_for_where_what_would_give_it_is_gone(
    asked_ago: timedelta, attempt: Any, is_over: bool
) -> None:
    case = incident(Phase.CHECKPOINTING, F.NODE_HARDWARE, ask=asked(asked_ago))
    decision = look(case, seen(attempt))
    assert (decision.rule == "checkpoint.late") is is_over, decision.reason


def test_a_person_waits_the_whole_deadline_for_the_checkpoint_that_was_ordered() -> None:
    case = incident(
        Phase.CHECKPOINTING, F.OPERATOR_ORDER, ask=asked(2 * MINUTE), order={"do": "checkpoint", "who": "ada"}
    )
    assert look(case, seen(view(heartbeat_at=NOW - 2 * MINUTE))).rule == "checkpoint.waiting"


def test_a_divergence_pages_as_its_checkpoint_is_asked_for_and_only_then() -> None:
    heartbeat = view(loss_health="diverging", onset_step=90, judged_step=101, heartbeat_at=NOW, loss_state="finite")
    first = look(incident(), seen(heartbeat))
    (page,) = (action for action in first.actions if isinstance(action, Notify))
    assert (first.incident.phase, page.severity) == (Phase.CHECKPOINTING, Severity.PAGE)
    ask = first.incident.halt.ask
    assert ask is not None
    assert ask.is_paged
    case = incident(
        Phase.CHECKPOINTING,
        F.DIVERGENCE,
        ask=CheckpointAsk(
            request_id=ask.request_id, attempt="lm", asked_at=NOW - MINUTE, deadline_at=NOW, is_paged=True
        ),
    )
    last = look(case, seen(heartbeat))
    assert last.rule == "playbook.saved_then_hand_over"
    assert [action.severity for action in last.actions if isinstance(action, Notify)] == [Severity.WARNING]


@pytest.mark.parametrize(
    ("step", "heartbeat_ago_s", "wait_s"),
    [
        (71, 0, 60),  # at step 101 it counts: 30 steps of 2 s each
        (81, 10, 30),
        (99, 0, 10),  # not before the next heartbeat
        (11, 0, 60),  # and never longer than the policy's longest interval
    ],
)
def test_the_next_look_at_a_new_attempt_is_when_it_may_have_passed(
    step: int, heartbeat_ago_s: int, wait_s: int
) -> None:
    heartbeat = view(name="lm-r2", step=step, heartbeat_at=NOW - heartbeat_ago_s * SECOND, step_s=2.0, work="training")
    decision = look(incident(Phase.VERIFYING, F.SOFTWARE_CRASH), seen(heartbeat))
    assert (decision.rule, decision.look_again_in) == ("verify.waiting", wait_s * SECOND)


def test_an_accepted_training_job_needs_no_look_to_be_watched_from_then_on() -> None:
    pending = a_try()
    case = incident(Phase.RESUBMITTING, F.SOFTWARE_CRASH, tries=(pending,), attempt="lm-r2", attempt_number=2)
    before = seen(view(AttemptStatus.FAILED))
    done = ActionResult(action="ResubmitJob", done=Done.DONE, detail="")
    known = after_accepted_start(case, before, (done,))
    assert known is not None
    decision = look(case, known)
    assert (decision.rule, decision.incident.phase, decision.actions) == ("resubmit.started", Phase.VERIFYING, ())
    for other in (Done.SIBLING, Done.CAPACITY, Done.REFUSED, Done.UNAVAILABLE, Done.NAME_TAKEN):
        assert after_accepted_start(case, before, (ActionResult(action="ResubmitJob", done=other, detail=""),)) is None
    failed = ActionResult(action="QuarantineCheckpoint", done=Done.UNAVAILABLE, detail="")
    assert after_accepted_start(case, before, (failed, done)) is None
    # An accepted order to an agent is no start yet.
    assert after_accepted_start(case, replace(before, platform=SLURM), (done,)) is None
