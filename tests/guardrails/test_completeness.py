"""No rule, phase, fault or answer of the world gets a harmful step past a guard that holds; decide() stays total."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from datetime import timedelta

import pytest

from chalicelib.domain.decide import Decision
from chalicelib.domain.decision.steps import new_steps
from chalicelib.domain.guards.holds import RULE_GUARDS, guard_of
from chalicelib.domain.model.action import ACTIONS, ActionResult, AskApproval, Done, Notify
from chalicelib.domain.model.approvals import Guard
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.node import InstanceState, Load
from chalicelib.domain.model.node_findings import FindingKind
from chalicelib.domain.model.observation import AttemptStatus, Observation
from chalicelib.domain.model.repair import Rung, StepState
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.policy.guard_rules import Harm
from chalicelib.domain.policy.playbooks import Deadline, Response
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import NOW, UNSEEN, a_try, checkpoint, decide, incident, seen, signal, view, with_row
from tests.domain.node_looks import (
    GONE,
    NEW,
    OLD,
    drained,
    facts,
    finding,
    in_turn,
    instance,
    memory,
    node_incident,
    node_view,
    observed,
    step,
)
from tests.domain.policies import changed
from tests.guardrails.made import HARMFUL, HOUR, TRIPPED, asks, closed_hours, harmful

NODE_PHASES = (Phase.OPEN, Phase.HOLDING, Phase.DRAINING, Phase.REPAIRING, Phase.CHECKING, Phase.RETURNING)
JOB_PHASES = tuple(phase for phase in Phase if not phase.is_terminal and phase not in NODE_PHASES[2:])
QUICK = (Phase.OPEN, Phase.STOPPING, Phase.REPAIRING)  # the others in `make test-long`
GUARDS = ("approval", "window", "breaker", "shadow", "switched to shadow", "pause")

FRUITLESS = (a_try(2, ended=True, gained=False), a_try(3, ended=True, gained=False), a_try(4))


def guarded_by(name: str, base: Policy, what: Observation) -> tuple[Policy, Observation]:
    match name:
        case "approval":
            return asks(base=base), what
        case "window":
            return closed_hours(base), what
        case "breaker":
            return base, dataclasses.replace(what, breaker=TRIPPED)
        case "shadow":
            return dataclasses.replace(base, shadow=True), what
        case "switched to shadow":
            return base, dataclasses.replace(what, shadow="everywhere")
        case _:
            return base, dataclasses.replace(what, paused=True)


def of_a_run(phase: Phase, fault: FaultClass, *, with_answers: bool) -> Iterator[tuple[Incident, Observation]]:
    """Incidents of a run with what a look may see of it."""
    name = "lm-r2" if phase is Phase.VERIFYING else "lm"
    points = Known((checkpoint(90), checkpoint(80)))
    news = (signal(fault, kind=SignalKind.ALARM, attempt=name),)
    at_last = {"phase_entered_at": NOW - 5 * HOUR, "evidence_since": NOW - 5 * HOUR, "seen_since": NOW - 5 * HOUR}
    cases = [incident(phase, fault, **at_last)]
    if with_answers:
        cases.append(incident(phase, fault))
    if phase is Phase.RESUBMITTING:
        cases.append(incident(phase, fault, tries=(a_try(),), attempt="lm-r2", attempt_number=2))
    seens = [seen(UNSEEN, new_signals=news)]
    losses = ("finite", "nan") if fault in (FaultClass.NON_FINITE, FaultClass.LOSS_SPIKE) else ("finite",)
    for status, loss in itertools.product(AttemptStatus, losses):
        what = view(status, name=name, step=150, loss_state=loss, failure_reason="boom")
        seens.append(seen(what, checkpoints=points, new_signals=news))
    seens.append(seen(view(name=name, step=None), checkpoints=points))
    if with_answers:
        for action, done in itertools.product(("RequestCheckpoint", "StopJob", "ResubmitJob"), Done):
            answer = (ActionResult(action=action, done=done, detail="x"),)
            seens.append(seen(view(AttemptStatus.STOPPED, name=name), results=answer, checkpoints=points))
    yield from itertools.product(cases, seens)


def of_a_node(phase: Phase) -> Iterator[tuple[Incident, Observation]]:
    """Incidents of a node, in every phase, with what either view may say of it."""
    kinds = (FindingKind.XID_REPLACE, FindingKind.XID_REBOOT, FindingKind.DOWN, FindingKind.AGENT_REPLACE)
    told = tuple(finding(kind, ago=timedelta(minutes=5), instance_id=OLD) for kind in kinds)
    rebooted = [step(state=state, ago=3 * HOUR) for state in StepState]
    rebooted += [step(ago=timedelta(minutes=3)), step(ago=3 * HOUR, back_at=NOW - 2 * HOUR)]
    replaced = step(Rung.REPLACE, number=2, state=StepState.DOUBTFUL)
    steps = [(), *((one,) for one in rebooted), (step(), replaced)]
    memories = [memory(*done, findings=told, wanted_at=NOW - HOUR) for done in steps]
    memories += [in_turn(*done, findings=told, wanted_at=NOW - HOUR) for done in steps if done]
    cases = [node_incident(phase, memory, phase_entered_at=NOW - HOUR) for memory in memories]
    slurm = [facts(), drained(), drained("down"), drained(jobs=(7,)), facts("down"), GONE, UNSEEN]
    instances = [instance(), instance(InstanceState.FAILURE), instance(instance_id=NEW), GONE, UNSEEN]
    load = Known(Load(ahead=0, last_day=0))
    seens = [observed(node_view(one, other, load=load)) for one, other in itertools.product(slurm, instances)]
    yield from itertools.product(cases, seens)


def check(case: Incident, what: Observation, base: Policy) -> bool:
    """True where there was something to hold back."""
    free = decide(case, what, now=NOW, policy=base)
    if all(isinstance(action, Notify) for action in free.actions):
        return False
    for name in GUARDS:
        rules, guarded = guarded_by(name, base, what)
        decision = decide(case, guarded, now=NOW, policy=rules)
        assert name != "approval" or decision == decide(case, guarded, now=NOW, policy=rules), "not deterministic"
        assert (decision.look_again_in is None) == (not decision.incident.is_open)
        if name in ("shadow", "switched to shadow", "pause"):
            assert all(isinstance(action, Notify) for action in decision.actions), decision.rule
            continue
        assert new_steps(case, decision) == (), f"{decision.rule} lets {harmful(decision)} through"
        if decision.rule == f"guard.{name}":
            is_left_alone(case, decision, name)
    return bool(new_steps(case, free))


def is_left_alone(case: Incident, decision: Decision, name: str) -> None:
    """Nothing is recorded as if it had been done; the guard is."""
    after = decision.incident
    if after.phase is not Phase.RESUBMITTING:  # an end that was seen is accounted for, whatever comes after it
        assert (after.phase, after.resubmission.tries) == (case.phase, case.resubmission.tries)
    assert after.halt.stopped_attempts == case.halt.stopped_attempts
    assert len(after.resubmission.tries) == len(case.resubmission.tries)
    assert len(after.repair.steps if after.repair else ()) == len(case.repair.steps if case.repair else ())
    assert any(hold.guard is Guard(name) and hold.until is None for hold in after.holds)
    assert harmful(decision) == []
    assert [action for action in decision.actions if isinstance(action, AskApproval)] or name == "window"


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=[] if phase in QUICK else [pytest.mark.long]) for phase in JOB_PHASES]
)
def test_nothing_that_may_do_harm_to_a_run_passes_a_guard_that_holds(phase: Phase) -> None:
    found = 0
    for fault, response in itertools.product(FaultClass, Response):
        if response is not Response.RESTART and fault is not FaultClass.HANG:
            continue  # the responses are told apart at one fault; every fault is met with one of them
        base = with_row(fault, response=response, deadline=Deadline.FULL)
        answers = response is Response.RESTART and fault is FaultClass.HANG
        found += sum(check(case, what, base) for case, what in of_a_run(phase, fault, with_answers=answers))
    assert found or phase is Phase.STOPPING, "the test must meet something to hold back"


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=[] if phase in QUICK else [pytest.mark.long]) for phase in NODE_PHASES]
)
def test_nothing_that_may_do_harm_to_a_node_passes_a_guard_that_holds(phase: Phase) -> None:
    base = changed(nodes={"deep_health_check": timedelta(minutes=30)})
    found = sum(check(case, what, base) for case, what in of_a_node(phase))
    assert found or phase is Phase.OPEN, "the test must meet something to hold back"


@pytest.mark.parametrize("name", ["approval", "window", "breaker"])
@pytest.mark.parametrize("phase", [phase for phase in Phase if not phase.is_terminal])
def test_what_is_held_ends_in_a_world_that_stands_still(phase: Phase, name: str) -> None:
    for status in (AttemptStatus.RUNNING, AttemptStatus.FAILED, AttemptStatus.STOPPED):
        is_node = phase in NODE_PHASES[2:]
        case = node_incident(phase, memory(step(ago=HOUR))) if is_node else incident(phase, FaultClass.HANG)
        now = NOW
        for _ in range(3000):
            what = seen(view(status, name=case.attempt or "lm", step=50), checkpoints=Known((checkpoint(40),)))
            if is_node:
                what = observed(node_view(drained(), instance(InstanceState.FAILURE)))
            rules, what = guarded_by(name, DEFAULT_POLICY, dataclasses.replace(what, observed_at=now))
            decision = decide(case, what, now=now, policy=rules)
            case = dataclasses.replace(decision.incident, version=case.version + 1)
            if decision.look_again_in is None or harmful(decision):
                break  # over, or let through once the window was
            now += max(decision.look_again_in, timedelta(seconds=1))
        else:
            pytest.fail(f"never ends: {decision.rule}")


def test_every_action_that_may_do_harm_has_a_word_and_no_other_has() -> None:
    """A new Action must be put on one side or the other, by whoever makes it."""
    harmless = {
        "RequestCheckpoint",  # costs the run a save
        "AdoptAttempt",  # writes down what the platform has started
        "ExcludeNodes",  # a pending start stays away from fewer nodes
        "ReportNode",  # opens an Incident, which has its own guards
        "UncordonNode",  # undoes a drain of ours
        "MoveRuns",  # asks the runs' own Incidents, which have their own guards
        "Notify",
        "AskApproval",
    }
    every = {action.__name__ for action in ACTIONS}
    assert every == harmless | HARMFUL
    assert not harmless & HARMFUL
    assert len(Harm) == len(HARMFUL)


def test_every_guard_has_a_rule_that_says_so() -> None:
    assert {*RULE_GUARDS, Guard.STALE} == set(Guard)
    assert guard_of("budget.attempts") is Guard.RETRY_BUDGET
    assert guard_of("playbook.restart") is None


def test_a_stale_signal_is_evidence_and_leaves_a_line() -> None:
    old = signal(FaultClass.HANG, attempt="lm")
    case = incident(Phase.VERIFYING, FaultClass.SOFTWARE_CRASH)
    decision = decide(case, seen(view(name="lm-r2", step=95), new_signals=(old,)), now=NOW, policy=DEFAULT_POLICY)
    assert harmful(decision) == []
    assert [(hold.guard, hold.until) for hold in decision.incident.holds] == [(Guard.STALE, NOW)]
    assert decision.incident.fault is FaultClass.SOFTWARE_CRASH


@pytest.mark.parametrize(
    ("rule", "case", "what", "guard"),
    [
        (
            "resubmit.back_off",
            incident(Phase.VERIFYING, FaultClass.SOFTWARE_CRASH, tries=FRUITLESS[1:], attempt="lm-r4"),
            seen(view(AttemptStatus.FAILED, name="lm-r4", step=95, failure_reason="a"), next_number=5),
            Guard.BACK_OFF,
        ),
        (
            "budget.no_progress",
            incident(Phase.VERIFYING, FaultClass.SOFTWARE_CRASH, tries=FRUITLESS, attempt="lm-r4"),
            seen(view(AttemptStatus.FAILED, name="lm-r4", step=95, failure_reason="a"), next_number=5),
            Guard.RETRY_BUDGET,
        ),
        (
            "defer.platform_repair",
            incident(Phase.OPEN, FaultClass.NODE_LOST),
            seen(view(AttemptStatus.REPAIRING)),
            Guard.DEFERENCE,
        ),
        (
            "verify.owner_stopped",
            incident(Phase.VERIFYING, FaultClass.SOFTWARE_CRASH),
            seen(view(AttemptStatus.STOPPED, name="lm-r2")),
            Guard.PROVENANCE,
        ),
        ("drain.waiting", node_incident(Phase.DRAINING), observed(node_view(drained(jobs=(7,)))), Guard.DATA_LOSS),
        (
            "node.full",
            node_incident(Phase.HOLDING, memory(wanted_at=NOW - HOUR)),
            observed(node_view(load=Known(Load(ahead=2, last_day=0)))),
            Guard.REPAIR_BUDGET,
        ),
        (
            "repair.ladder_end",
            node_incident(Phase.REPAIRING, memory(step(), step(Rung.REPLACE, number=2, state=StepState.REFUSED))),
            observed(node_view(drained(), Unknown("throttled"))),
            Guard.LADDER,
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_older_guards_leave_their_line_too(rule: str, case: Incident, what: Observation, guard: Guard) -> None:
    decision = decide(case, what, now=NOW, policy=DEFAULT_POLICY)
    if rule == "repair.ladder_end" and decision.rule == "repair.refused":
        return  # whichever of the two ends the ladder
    assert decision.rule == rule
    (hold,) = decision.incident.holds
    assert (hold.guard, hold.since) == (guard, NOW)
    assert (hold.until is None) is decision.incident.is_open
