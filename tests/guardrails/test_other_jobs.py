"""A node on which jobs run that asked for no protection is not taken out before a person agrees, or they have ended."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

from chalicelib.domain.model.action import CordonNode, ReportNode
from chalicelib.domain.model.approvals import ApprovalAnswer
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import Load
from chalicelib.domain.model.observation import Observation
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.domain.policy.guard_rules import Harm
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import NOW
from tests.domain.node_looks import facts, node_view, observed
from tests.domain.slurm_looks import case, node, sees, start
from tests.guardrails.made import look_on, names, only, policy
from tests.guardrails.test_alerts import said_of, wanted

AT_ONCE = policy(approvals={"others_deadline_s": 0})
HEALTH = said_of("ip-2", kind=SignalKind.NODE_HEALTH, repair_action="Replace")


def broken() -> Incident:
    """HyperPod itself says so, so no alert is doubted."""
    return wanted(said_of("n1", kind=SignalKind.NODE_HEALTH, repair_action="Replace"))


def with_jobs(*others: int, own: tuple[int, ...] = (7,)) -> Observation:
    seen = dataclasses.replace(facts(), jobs=tuple(sorted((*own, *others))), others=others)
    return observed(node_view(seen, load=Known(Load(ahead=0, last_day=0))))


def test_a_node_with_other_peoples_jobs_is_taken_out_only_if_somebody_agrees() -> None:
    asked = look_on(broken(), with_jobs(12, 13), DEFAULT_POLICY)
    assert (asked.rule, names(asked)) == ("guard.approval", ["AskApproval"])
    question = only(asked.incident)
    assert question.actions == (Harm.CORDON_NODE.value,)
    assert "does not protect (12, 13)" in question.why
    agreed = dataclasses.replace(question, answer=ApprovalAnswer.APPROVED, by="ada", answered_at=NOW, notified=True)
    after = look_on(dataclasses.replace(asked.incident, approvals=(agreed,)), with_jobs(12, 13), DEFAULT_POLICY)
    assert names(after) == ["CordonNode"]


def test_protected_jobs_alone_ask_nobody_and_neither_does_a_policy_that_says_so() -> None:
    assert names(look_on(broken(), with_jobs(), DEFAULT_POLICY)) == ["CordonNode"]
    assert names(look_on(broken(), with_jobs(12), AT_ONCE)) == ["CordonNode"]


def test_when_those_jobs_have_ended_the_question_is_over() -> None:
    asked = look_on(broken(), with_jobs(12), DEFAULT_POLICY)
    after = look_on(asked.incident, with_jobs(own=()), DEFAULT_POLICY, at=NOW + timedelta(minutes=3))
    assert names(after) == ["CordonNode"]
    assert after.incident.phase is Phase.DRAINING


def test_nobody_answers_and_the_node_is_left_to_a_person() -> None:
    asked = look_on(broken(), with_jobs(12), DEFAULT_POLICY)
    told = dataclasses.replace(only(asked.incident), notified=True)
    late = look_on(
        dataclasses.replace(asked.incident, approvals=(told,)),
        with_jobs(12),
        DEFAULT_POLICY,
        at=NOW + timedelta(hours=5),
    )
    assert (late.rule, late.incident.phase) == ("guard.denied_by_default", Phase.HANDED_OVER)


def test_a_run_hands_such_a_node_on_and_is_not_kept_waiting_by_it() -> None:
    running = case(Phase.VERIFYING, FaultClass.NODE_HARDWARE)
    word = dataclasses.replace(HEALTH, job_id="lm", attempt=running.attempt)
    told = dataclasses.replace(running, signals=(word,))
    for others, is_cordoned in (((), True), ((12,), False)):
        seen = sees(start(name=running.attempt or ""), nodes=(dataclasses.replace(node("ip-2"), others=others),))
        decision = look_on(told, seen, DEFAULT_POLICY)
        assert any(isinstance(action, CordonNode) for action in decision.actions) is is_cordoned
        assert any(isinstance(action, ReportNode) for action in decision.actions)
