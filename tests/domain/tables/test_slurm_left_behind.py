"""What a Slurm Job's Incident must not conclude from time in which nobody could move or be seen, and what it leaves
behind: whoever takes over is told of a job that we hold and of nodes that we cordoned.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from chalicelib.domain.decide import Decision
from chalicelib.domain.model.action import ActionResult, CordonNode, Done, ReportNode, StopJob
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus as S
from chalicelib.domain.model.observation import AttemptView, Observation
from chalicelib.domain.model.repair import Allowed
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.model.start_view import BadNode
from chalicelib.domain.policy.document import DEFAULT_POLICY as P
from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.signals import FaultClass as F
from tests.domain.looks import MINUTE, NOW, decide, signal
from tests.domain.policies import changed
from tests.domain.slurm_looks import R0, R1, case, decided, node, node_signal, put_back, sees, start, try_of

HOUR = timedelta(hours=1)


def look_after(incident: Incident, seen: Observation, after: timedelta) -> Decision:
    """A look at the Incident as the one before left it, so much later."""
    return decide(incident, dataclasses.replace(seen, observed_at=NOW + after), now=NOW + after, policy=P)


def stops(decision: Decision) -> bool:
    return any(isinstance(action, StopJob) for action in decision.actions)


def running(name: str, *, step: int, state: SlurmState = SlurmState.RUNNING) -> AttemptView:
    return start(S.RUNNING, name, step=step, state=state)


# ---- time that does not count ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("away", ["suspended", "unseen"])
def test_a_new_start_that_was_suspended_or_unseen_is_not_stuck(away: str) -> None:
    before = case(Phase.VERIFYING, F.HANG, watch_at=NOW, watch_step=Known(95), seen_as=f"{R1}:running", seen_since=NOW)
    gone = (
        sees(running(R1, step=95, state=SlurmState.SUSPENDED))
        if away == "suspended"
        else sees(Unknown("the agent is silent"))
    )
    first = look_after(before, gone, MINUTE)
    again = look_after(first.incident, sees(running(R1, step=95)), 2 * P.timing.silent_limit)
    assert again.rule == "verify.waiting", again.reason
    still = look_after(again.incident, sees(running(R1, step=95)), 4 * P.timing.silent_limit)
    assert still.incident.fault_rule == "verify.silent", "standing still since it goes on is counted from then"


@pytest.mark.parametrize("away", ["suspended", "unseen"])
def test_a_claim_is_not_confirmed_by_a_run_that_was_suspended_or_unseen(away: str) -> None:
    before = case(Phase.HOLDING, F.NODE_LOST, target_step=Known(100), seen_as=f"{R0}:running", seen_since=NOW)
    gone = (
        sees(running(R0, step=100, state=SlurmState.SUSPENDED))
        if away == "suspended"
        else sees(Unknown("the agent is silent"))
    )
    first = look_after(before, gone, timedelta(seconds=30))
    back = look_after(first.incident, sees(running(R0, step=100)), HOUR)
    assert back.rule == "defer.confirm", back.reason
    late = look_after(back.incident, sees(running(R0, step=100)), HOUR + 2 * P.timing.look_max)
    assert stops(late)


def test_how_long_it_has_been_suspended_begins_with_the_suspension() -> None:
    before = case(Phase.VERIFYING, F.HANG, phase_entered_at=NOW - 24 * HOUR, seen_as=f"{R1}:running", seen_since=NOW)
    decision = decided(before, sees(running(R1, step=95, state=SlurmState.SUSPENDED)))
    assert decision.rule == "start.suspended"


# ---- what is left behind ---------------------------------------------------------------------------------------------

CANCEL = (signal(F.OPERATOR_ORDER, kind=SignalKind.ORDER_CANCEL),)
ORDERED = {"tries": (try_of(),), "attempt": R1, "attempt_number": 2, "stopped_attempts": (R0,), "stop_hold": True}
RELEASE = "`scontrol release 7` lets it go"


@pytest.mark.parametrize(
    ("before", "seen"),
    [
        (case(Phase.STOPPING, F.HANG), sees(put_back(EndedBy.AGENT), after=start(S.STARTING, R1, held=True))),
        (case(Phase.STOPPING, F.HANG), sees(start(S.STOPPING))),
        (case(Phase.STOPPING, F.HANG), sees(start(S.RUNNING))),
        (case(Phase.STOPPING, F.HANG), sees(Unknown("the agent is silent"))),
        (case(Phase.RESUBMITTING, F.HANG, **ORDERED), sees(start(S.STARTING, R1, held=True))),
        (case(Phase.RESUBMITTING, F.HANG, **ORDERED), sees(Unknown("the agent is silent"))),
    ],
    ids=["held", "completing", "ordered", "unseen", "not let go yet", "start unseen"],
)
def test_whoever_cancels_after_our_hold_is_told_how_to_let_the_job_go(before: Incident, seen: Observation) -> None:
    decision = decided(before, dataclasses.replace(seen, new_signals=CANCEL))
    assert decision.rule == "order.cancel"
    assert RELEASE in decision.reason


@pytest.mark.parametrize(
    ("before", "seen"),
    [
        (case(Phase.STOPPING, F.HANG), sees(start(S.COMPLETED))),
        (case(Phase.STOPPING, F.HANG), sees(start(S.STOPPED, ended_by=EndedBy.USER))),
        (case(Phase.STOPPING, F.HANG), sees(put_back(EndedBy.AGENT), after=running(R1, step=120))),
        (case(Phase.RESUBMITTING, F.HANG, **ORDERED), sees(start(S.RUNNING, R1))),
        (case(Phase.OPEN, F.HANG), sees(start(S.RUNNING))),
    ],
    ids=["completed", "its user's doing", "somebody let it go", "started", "nothing was done"],
)
def test_nobody_is_told_of_a_hold_that_is_not_there(before: Incident, seen: Observation) -> None:
    decision = decided(before, dataclasses.replace(seen, new_signals=CANCEL))
    assert "by us" not in decision.reason


def test_whoever_takes_over_is_told_of_the_nodes_that_we_cordoned() -> None:
    bad = (BadNode(node="ip-2", why="broken", is_reported=True, is_cordoned=True),)
    before = case(Phase.STOPPING, F.NODE_HARDWARE, bad_nodes=bad)
    decision = decided(before, dataclasses.replace(sees(start(S.STOPPING)), new_signals=CANCEL))
    assert "`scontrol update nodename=ip-2 state=resume`" in decision.reason


@pytest.mark.parametrize("allowed", [Allowed.OFF, Allowed.TELL])
def test_a_policy_that_leaves_nodes_alone_cordons_none_and_excludes_it_by_name(allowed: Allowed) -> None:
    policy = changed(P, nodes={"repair": allowed})
    told = (node_signal(F.NODE_HARDWARE),)
    first = decided(case(), sees(start(), new_signals=told), policy)
    assert first.incident.phase is Phase.CHECKPOINTING
    assert not [action for action in first.actions if isinstance(action, CordonNode)]
    assert [action.node for action in first.actions if isinstance(action, ReportNode)] == ["ip-2"]
    dead = case(
        Phase.RESUBMITTING, F.NODE_HARDWARE, bad_nodes=first.incident.resubmission.bad_nodes, target_step=Known(100)
    )
    seen = sees(start(S.FAILED), nodes=(node("ip-2", "idle"),), checkpoints=Known(()))
    start_again = decided(dead, seen, changed(policy, loss={"stop_without_resume_point": True}))
    tries = start_again.incident.resubmission.tries
    assert not tries or tries[-1].exclude == ("ip-2",), start_again.reason


def test_a_report_of_a_node_that_reached_nobody_is_made_again_for_a_while() -> None:
    lost = (ActionResult(action="ReportNode", done=Done.UNAVAILABLE, detail="the table is away"),)
    bad = (BadNode(node="ip-2", why="broken", is_reported=True, is_cordoned=True),)
    before = case(Phase.STOPPING, F.NODE_HARDWARE, bad_nodes=bad)
    again = decided(before, sees(start(S.STOPPING), results=lost))
    assert [action.node for action in again.actions if isinstance(action, ReportNode)] == ["ip-2"]
    late = dataclasses.replace(before, phase_entered_at=NOW - HOUR)
    assert not [
        action
        for action in decided(late, sees(start(S.STOPPING), results=lost)).actions
        if isinstance(action, ReportNode)
    ]


@pytest.mark.parametrize(
    ("do", "rule", "phase"),
    [("checkpoint", "order.checkpoint_no_run", Phase.STOPPED), ("resubmit", "playbook.restart", Phase.STOPPING)],
)
def test_an_order_about_a_job_in_the_queue_waits_for_no_checkpoint(do: str, rule: str, phase: Phase) -> None:
    before = case(Phase.OPEN, F.OPERATOR_ORDER, order={"do": do, "who": "ada"})
    decision = decided(before, sees(start(S.STARTING, R0, pending_reason="Resources")))
    assert (decision.rule, decision.incident.phase) == (rule, phase)
