"""What is only told is told once per attempt: in every phase, whatever fault leads, and not again at the end."""

from __future__ import annotations

import dataclasses

import pytest

from chalicelib.domain.decide import Decision
from chalicelib.domain.model.action import Notify
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.observation import AttemptStatus, Observation
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.policy.playbooks import PLAYBOOKS, Response
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, incident, look, seen, signal, view, with_row

F = FaultClass
TELLS = tuple(row.fault for row in PLAYBOOKS if row.response is Response.TELL)
LEADS = (None, F.HANG, F.NODE_HARDWARE, F.NON_FINITE)  # None: the news itself
RUN_PHASES = (
    Phase.OPEN,
    Phase.HOLDING,
    Phase.WATCHING,
    Phase.CHECKPOINTING,
    Phase.STOPPING,
    Phase.RESUBMITTING,
    Phase.VERIFYING,
)


def news(fault: F, case: Incident, *, number: int = 1) -> Signal:
    kind = SignalKind.THROUGHPUT if fault is F.THROUGHPUT_DROP else SignalKind.EXTERNAL_ALERT
    source = SignalSource.MONITOR if fault is F.THROUGHPUT_DROP else SignalSource.WEBHOOK
    about = signal(fault, kind=kind, attempt=case.attempt, source=source, at=NOW + number * MINUTE / 60)
    return dataclasses.replace(about, summary=f"news {number} of {fault}")


def notices_of(decision: Decision, fault: F) -> list[str]:
    return [
        action.text for action in decision.actions if isinstance(action, Notify) and f"news 1 of {fault}" in action.text
    ]


def here(case: Incident, *signals: Signal) -> Observation:
    status = AttemptStatus.STOPPED if case.phase is Phase.RESUBMITTING else AttemptStatus.RUNNING
    running = view(status, name=case.attempt or "lm", step=95, heartbeat_at=NOW)
    return seen(running, new_signals=signals, next_number=3)


@pytest.mark.parametrize("lead", LEADS, ids=str)
@pytest.mark.parametrize("fault", TELLS)
@pytest.mark.parametrize("phase", RUN_PHASES)
def test_news_is_told_once_in_every_phase_whatever_fault_leads(phase: Phase, fault: F, lead: F | None) -> None:
    case = incident(phase, lead or fault)
    if lead is not None:
        case = case.changed(signals=(signal(lead, attempt=case.attempt, step=95),))
    decision = look(case, here(case, news(fault, case)))
    assert len(notices_of(decision, fault)) == 1, decision.rule
    for number in (2, 3):  # neither another look nor another Signal of the same fault tells it again
        if not decision.incident.is_open or decision.incident.attempt != case.attempt:
            break
        decision = look(decision.incident, here(case, news(fault, case, number=number)))
        again = [
            action for action in decision.actions if isinstance(action, Notify) and action.title.endswith(f": {fault}")
        ]
        assert again == [], decision.rule


def test_it_is_told_of_the_next_attempt_as_well() -> None:
    case = incident(Phase.VERIFYING, F.HANG, told=("tell:lm:throughput_drop",))
    decision = look(case, here(case, news(F.THROUGHPUT_DROP, case)))
    assert len(notices_of(decision, F.THROUGHPUT_DROP)) == 1
    assert decision.incident.tracking.told == ("tell:lm:throughput_drop", "tell:lm-r2:throughput_drop")


def test_alerts_of_two_kinds_that_name_no_fault_are_two_pieces_of_news() -> None:
    case = incident(Phase.CHECKPOINTING, F.HANG)
    alarm = dataclasses.replace(news(F.UNCLEAR, case), kind=SignalKind.ALARM, summary="an alarm")
    decision = look(case, here(case, news(F.UNCLEAR, case), alarm))
    titles = [action.title for action in decision.actions if isinstance(action, Notify)]
    assert titles == ["lm: unclear", "lm: unclear"]


def _closed(case: Incident, policy: Policy = DEFAULT_POLICY) -> Decision:
    told = look(case, here(case, news(F.THROUGHPUT_DROP, case)), policy)
    assert told.rule == "playbook.tell"
    old = dataclasses.replace(told.incident, phase_entered_at=NOW - MINUTE * 60)
    return look(old, here(case), policy)


def test_the_end_of_an_incident_that_was_only_told_of_is_no_second_notice() -> None:
    closed = _closed(incident(Phase.OPEN, F.THROUGHPUT_DROP))
    assert (closed.rule, closed.incident.phase, closed.actions) == ("playbook.notified", Phase.STOPPED, ())


def test_what_is_left_for_people_to_do_is_told_at_the_end() -> None:
    case = incident(Phase.OPEN, F.THROUGHPUT_DROP, conclusion="the same rank is slow in each attempt")
    closed = _closed(case)
    assert closed.rule == "playbook.notified"
    assert ["the same rank is slow" in action.text for action in closed.actions if isinstance(action, Notify)] == [True]


def test_what_a_policy_only_tells_is_told_beside_another_fault() -> None:
    policy = with_row(F.LOSS_SPIKE, response=Response.TELL)
    case = incident(Phase.STOPPING, F.HANG)
    spike = signal(F.LOSS_SPIKE, kind=SignalKind.LOSS_SPIKE, attempt="lm", at=NOW)
    decision = look(case, here(case, spike), policy)
    assert [action.title for action in decision.actions if isinstance(action, Notify)] == ["lm: loss_spike"]
    assert look(decision.incident, here(case, spike), policy).actions == decision.actions[:-1]


def test_what_the_heartbeat_denies_is_not_told() -> None:
    policy = with_row(F.LOSS_SPIKE, response=Response.TELL)
    case = incident(Phase.STOPPING, F.HANG)
    spike = signal(F.LOSS_SPIKE, kind=SignalKind.LOSS_SPIKE, attempt="lm", at=NOW)
    well = view(name="lm", step=95, heartbeat_at=NOW, loss_health="ok", loss_state="finite")
    decision = look(case, seen(well, new_signals=(spike,)), policy)
    assert [action for action in decision.actions if isinstance(action, Notify)] == []
