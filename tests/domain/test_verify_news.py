"""News about the new attempt that nothing is done about must not rename what is being recovered from."""

from __future__ import annotations

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.signal import SignalKind
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, incident, look, seen, signal, view


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


def test_what_is_added_to_the_last_word_is_a_sentence_of_its_own() -> None:
    case = incident(Phase.VERIFYING, FaultClass.NON_FINITE, conclusion="the data or the model: non-finite again")
    passed = look(case, seen(view(name="lm-r2", step=101, heartbeat_at=NOW)))
    assert passed.rule == "verify.passed"
    assert passed.reason.endswith("ended. Conclusion: the data or the model: non-finite again.")
