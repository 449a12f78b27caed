"""News about the new attempt that nothing is done about must not rename what is being recovered from."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.playbooks import Response
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, incident, look, seen, signal, view, with_row


def test_a_hang_whose_new_attempt_is_slow_stays_a_hang() -> None:
    slow = signal(FaultClass.THROUGHPUT_DROP, kind=SignalKind.THROUGHPUT, attempt="lm-r2", step=95, at=NOW)
    case = incident(Phase.VERIFYING, FaultClass.HANG, fault_rule="signal.stall", signals=(slow,))
    told = look(case, seen(view(name="lm-r2", step=95, heartbeat_at=NOW), new_signals=(slow,)))
    assert told.rule == "verify.tell"
    assert [type(action).__name__ for action in told.actions] == ["Notify"]
    assert (told.incident.fault, told.incident.fault_rule) == (FaultClass.HANG, "signal.stall")
    passed = look(told.incident, seen(view(name="lm-r2", step=101, heartbeat_at=NOW + MINUTE)))
    assert passed.rule == "verify.passed"
    assert (passed.incident.phase, passed.incident.fault) == (Phase.RECOVERED, FaultClass.HANG)


@pytest.mark.parametrize(
    ("ahead", "rule", "actions"),
    [(timedelta(hours=2), "verify.waiting", ["Notify"]), (50 * MINUTE, "playbook.checkpoint", ["RequestCheckpoint"])],
)
def test_an_end_of_its_node_that_is_hours_away_is_told_and_does_not_stop_the_new_attempt(
    ahead: timedelta, rule: str, actions: list[str]
) -> None:
    evidence = {"starts_at": (NOW + ahead).isoformat()}
    leaves = signal(FaultClass.PLANNED_END, kind=SignalKind.HEALTH_NOTICE, attempt="lm-r2", at=NOW, evidence=evidence)
    case = incident(Phase.VERIFYING, FaultClass.HANG, fault_rule="signal.stall")
    told = look(case, seen(view(name="lm-r2", step=95, heartbeat_at=NOW), new_signals=(leaves,)))
    assert (told.rule, [type(action).__name__ for action in told.actions]) == (rule, actions)
    again = look(told.incident, seen(view(name="lm-r2", step=96, heartbeat_at=NOW)))
    assert not any(type(action).__name__ == "Notify" for action in again.actions)


@pytest.mark.parametrize(
    ("step_s", "seen_at", "rule"),
    [(1.1, NOW, "verify.passed"), (2.9, NOW, "playbook.checkpoint"), (1.1, NOW - 5 * MINUTE, "playbook.checkpoint")],
    ids=["as usual again", "still slow", "no heartbeat long after the report"],
)
def test_slow_steps_of_a_new_attempt_are_over_once_a_later_heartbeat_shows_the_usual_speed(
    step_s: float, seen_at: datetime, rule: str
) -> None:
    usual = {"step_s": 3.0, "baseline_s": 1.0}
    slow = signal(
        FaultClass.THROUGHPUT_DROP, kind=SignalKind.THROUGHPUT, attempt="lm-r2", at=NOW - 11 * MINUTE, evidence=usual
    )
    restarts = with_row(FaultClass.THROUGHPUT_DROP, response=Response.CHECKPOINT_THEN_RESTART)
    case = incident(Phase.VERIFYING, FaultClass.SOFTWARE_CRASH, signals=(slow,))
    what = view(name="lm-r2", step=101, step_s=step_s, heartbeat_at=seen_at)
    assert look(case, seen(what), restarts).rule == rule


def test_what_is_added_to_the_last_word_is_a_sentence_of_its_own() -> None:
    case = incident(Phase.VERIFYING, FaultClass.NON_FINITE, conclusion="the data or the model: non-finite again")
    passed = look(case, seen(view(name="lm-r2", step=101, heartbeat_at=NOW)))
    assert passed.rule == "verify.passed"
    assert passed.reason.endswith("ended. Conclusion: the data or the model: non-finite again.")
