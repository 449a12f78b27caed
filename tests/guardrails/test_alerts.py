"""An alert of other monitoring alone ends no run and takes no node away, unless a person or the policy says so."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from chalicelib.domain.model.action import ActionResult, CordonNode, Done, ReportNode
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import Load
from chalicelib.domain.model.node_findings import FindingKind
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.services.reporting.outcome import OutcomeKind
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, a_try, incident, seen, signal, view
from tests.domain.node_looks import NODE, facts, finding, memory, node_incident, node_view, observed
from tests.domain.slurm_looks import case, sees, start
from tests.guardrails.made import HOUR, harmful, look_on, names, only, policy
from tests.guardrails.test_adversary import alert
from tests.guardrails.test_world import approvals_of, questions
from tests.services.world import JOB, World

BELIEVES = policy(approvals={"alert_deadline_s": 0})
POISONED = FaultClass.NON_FINITE


def alerted(fault: FaultClass, rules: Policy = DEFAULT_POLICY) -> World:
    """A run that trains well, and an alert that says otherwise."""
    w = World(rules)
    w.run(60)
    w.intake.receive(alert(w, fault))
    w.run(10)
    return w


@pytest.mark.parametrize("fault", [POISONED, FaultClass.NODE_HARDWARE])
def test_a_run_that_trains_well_is_not_stopped_for_an_alert_before_a_person_agrees(fault: FaultClass) -> None:
    w = alerted(fault)
    w.run(30)
    assert (w.live, questions(w)) == ([JOB], ["a1"]), w.story()
    (waiting,) = approvals_of(w).pending()
    assert waiting["actions"] == ["StopJob"]
    assert "only an alert of other monitoring says so" in waiting["why"]
    assert "reads a loss that is finite" in waiting["why"]
    w.settle()
    assert (w.live, w.last.outcome) == ([JOB], "guard.denied_by_default")


def test_once_a_person_agrees_it_is_done_and_nothing_else_is_asked() -> None:
    w = alerted(POISONED)
    approvals_of(w).answer(w.last.incident_id, "a1", answer="approve", who="ada", key="k")
    w.settle()
    assert (w.last.phase, questions(w)) == (Phase.RECOVERED, ["a1"]), w.story()
    assert w.live != [JOB]


def test_a_policy_may_believe_alerts() -> None:
    w = alerted(POISONED, BELIEVES)
    w.settle()
    assert (w.last.phase, questions(w)) == (Phase.RECOVERED, []), w.story()


def test_a_row_of_the_policy_that_applies_comes_first() -> None:
    row = {"when": {"faults": ["non_finite"]}, "deadline_s": 60, "default": "approve"}
    w = alerted(POISONED, policy(approvals={"rules": [row]}))
    w.settle()
    assert w.last.approvals[0].by == "policy"
    assert w.live != [JOB]


def test_the_runs_own_word_makes_the_question_needless() -> None:
    """Asked about an alert; then its own heartbeat reads NaN as well."""
    w = alerted(POISONED)
    assert questions(w) == ["a1"]
    w.sims[JOB].onset = w.sims[JOB].step
    w.settle()
    assert (w.last.phase, questions(w)) == (Phase.RECOVERED, ["a1"]), w.story()
    assert w.last.approvals[0].answer is None


def test_no_to_an_alert_is_no_no_to_the_run_itself() -> None:
    w = alerted(POISONED)
    denied = w.last.incident_id
    approvals_of(w).answer(denied, "a1", answer="deny", who="ada", key="k")
    w.settle()
    again = dataclasses.replace(alert(w, POISONED), dedupe_key="external:prom:again")
    assert w.intake.receive(again).what is OutcomeKind.DROPPED
    w.sims[JOB].onset = w.sims[JOB].step
    w.run(30)
    w.settle()
    assert w.last.incident_id != denied, w.story()
    assert (w.last.phase, w.live != [JOB]) == (Phase.RECOVERED, True)


# ---- nodes -----------------------------------------------------------------------------------------------------------


def said_of(node: str, *, kind: SignalKind = SignalKind.EXTERNAL_ALERT, **more: object) -> Signal:
    made = signal(FaultClass.NODE_HARDWARE, kind=kind, at=NOW, evidence=dict(more))
    return dataclasses.replace(made, node=node, cluster="ml", dedupe_key=f"{kind}:{more}")


def wanted(*signals: Signal) -> Incident:
    """A node's Incident that has waited for its turn, and would cordon now."""
    against = finding(FindingKind.HARDWARE, by_platform=any(signal.evidence.get("xid") for signal in signals))
    return node_incident(Phase.HOLDING, memory(findings=(against,), wanted_at=NOW - HOUR), signals=signals)


SOUND = observed(node_view(facts(), load=Known(Load(ahead=0, last_day=0))))


@pytest.mark.parametrize(
    "more", [{}, {"kind": SignalKind.NODE_SUSPECT, "alert_only": True}], ids=["alert", "passed on"]
)
def test_a_node_is_taken_out_for_an_alert_only_if_somebody_agrees(more: dict[str, Any]) -> None:
    case = wanted(said_of(NODE), said_of(NODE, **more))
    asked = look_on(case, SOUND, DEFAULT_POLICY)
    assert (asked.rule, names(asked)) == ("guard.approval", ["AskApproval"])
    assert "only an alert of other monitoring says so" in only(asked.incident).why
    assert names(look_on(case, SOUND, BELIEVES)) == ["CordonNode"]


def test_what_the_health_agent_says_as_well_is_no_alert_alone() -> None:
    case = wanted(said_of(NODE), said_of(NODE, kind=SignalKind.AGENT_LOG_FAULT, xid=79))
    assert names(look_on(case, SOUND, DEFAULT_POLICY)) == ["CordonNode"]


def test_a_line_in_the_health_agents_log_alone_is_asked_about() -> None:
    """A job on the node may write such lines. HyperPod's own event, its mark or a failed instance bears them out."""
    line = said_of(NODE, kind=SignalKind.AGENT_LOG_FAULT, xid=79)
    asked = look_on(wanted(line), SOUND, DEFAULT_POLICY)
    assert (asked.rule, names(asked)) == ("guard.approval", ["AskApproval"])
    assert "log says so" in only(asked.incident).why
    event = said_of(NODE, kind=SignalKind.NODE_HEALTH, repair_action="Replace")
    assert names(look_on(wanted(line, event), SOUND, DEFAULT_POLICY)) == ["CordonNode"]


@pytest.mark.parametrize("kind", [SignalKind.EXTERNAL_ALERT, SignalKind.AGENT_LOG_FAULT, SignalKind.NODE_HEALTH])
def test_a_run_that_passes_an_alert_on_says_so_and_cordons_nothing_by_the_way(kind: SignalKind) -> None:
    running = case(Phase.VERIFYING, FaultClass.NODE_HARDWARE)
    word = dataclasses.replace(said_of("ip-2", kind=kind), job_id="lm", attempt=running.attempt)
    seen = sees(start(name=running.attempt or ""))
    decision = look_on(dataclasses.replace(running, signals=(word,)), seen, DEFAULT_POLICY)
    (report,) = [action for action in decision.actions if isinstance(action, ReportNode)]
    is_alert = kind is not SignalKind.NODE_HEALTH
    assert report.evidence.get("alert_only", False) is is_alert
    assert bool([action for action in harmful(decision) if isinstance(action, CordonNode)]) is not is_alert


# ---- starts of ours --------------------------------------------------------------------------------------------------


def test_a_start_that_makes_way_for_one_by_hand_is_not_asked_about() -> None:
    """Whatever was claimed of the run before: two would train."""
    stall = dataclasses.replace(signal(FaultClass.HANG, kind=SignalKind.STALL), attempt="lm")
    pending = a_try(resume_step=Known(50), at=NOW - MINUTE)
    waits = incident(
        Phase.RESUBMITTING, FaultClass.HANG, attempt="lm-r2", attempt_number=2, tries=(pending,), signals=(stall,)
    )
    lives = ActionResult(action="ResubmitJob", done=Done.SIBLING, detail="lm-again lives, as its heartbeats show")
    begun = view(AttemptStatus.STARTING, name="lm-r2", step=None)
    decision = look_on(waits, seen(begun, results=(lives,)), DEFAULT_POLICY)
    assert (decision.rule, names(decision)) == ("resubmit.goes_on", ["StopJob", "Notify"])
