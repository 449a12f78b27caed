"""Nothing that is heard of a run, or of many nodes at once, is no proof against it: the channel may be away."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import CordonNode, Notify, Severity, StopJob
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.node import InstanceState, Load
from chalicelib.domain.model.node_findings import FindingKind
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.document import DEFAULT_POLICY
from rekindle.protocol.signals import FaultClass
from tests.domain import node_looks
from tests.domain.looks import MINUTE, NOW, decide, incident, look, seen, signal, view
from tests.domain.node_looks import finding, instance, look_at, memory, node_incident, node_view, observed

ROOM = Known(Load(ahead=0, last_day=0))


def silent(*, together: int | None = None, attempt: str = "lm") -> Signal:
    more = {} if together is None else {"silent_together": together}
    return signal(
        FaultClass.HANG,
        attempt=attempt,
        at=NOW - MINUTE,
        evidence={"found_by": "sweep", "silent_s": 1900, "silent_limit_s": 1800, **more},
    )


ALARM = signal(FaultClass.HANG, kind=SignalKind.ALARM, step=None, at=NOW - MINUTE)


@pytest.mark.parametrize(
    "claim",
    [silent(), ALARM, silent(together=3)],
    ids=["metrics", "an alarm", "together with others"],
)
def test_no_run_is_stopped_for_silence_alone(claim: Signal) -> None:
    case, now, told = incident(), NOW, []
    what = seen(view(step=None), new_signals=(claim,))
    while case.is_open:
        decision = decide(case, dataclasses.replace(what, observed_at=now), now=now, policy=DEFAULT_POLICY)
        assert not any(isinstance(action, StopJob) for action in decision.actions), decision.rule
        told += [action.severity for action in decision.actions if isinstance(action, Notify)]
        case, what = decision.incident, dataclasses.replace(what, new_signals=())
        now += decision.look_again_in or timedelta(0)
    assert told == [Severity.WARNING, Severity.INFO]
    assert case.outcome == "silence.notified_limit"


def test_silence_that_the_heartbeat_bears_out_is_a_hang() -> None:
    decision = look(incident(), seen(view(work="stalled", heartbeat_at=NOW), new_signals=(silent(),)))
    assert decision.incident.phase is Phase.CHECKPOINTING


def test_silence_beside_the_monitors_own_stall_is_a_hang() -> None:
    decision = look(incident(), seen(new_signals=(silent(), signal(FaultClass.HANG))))
    assert decision.incident.phase is Phase.CHECKPOINTING


def test_a_new_attempt_is_not_stopped_for_silence_alone() -> None:
    case = incident(Phase.VERIFYING, FaultClass.SOFTWARE_CRASH)
    decision = look(case, seen(view(name="lm-r2", step=95), new_signals=(silent(attempt="lm-r2"),)))
    assert decision.incident.phase is Phase.VERIFYING


# --- nodes ----------------------------------------------------------------------------------------------------------


def down(count: int, *, inst: Any = None) -> Any:
    what = node_view(node_looks.facts("down"), inst, load=ROOM, down=count)
    return observed(what)


def lost(phase: Phase = Phase.HOLDING) -> Any:
    repair = memory(findings=(finding(FindingKind.DOWN),), wanted_at=NOW - MINUTE)
    return node_incident(phase, repair)


@pytest.mark.parametrize(("count", "is_suspect"), [(1, True), (2, True), (3, False), (8, False)])
def test_many_nodes_that_are_lost_at_once_are_the_networks_or_the_controllers(count: int, is_suspect: bool) -> None:
    decision = look_at(lost(), down(count))
    assert (decision.rule == "node.cordon") is is_suspect
    assert any(isinstance(action, CordonNode) for action in decision.actions) is is_suspect
    if not is_suspect:
        assert decision.rule == "node.many_down"


def test_one_of_many_that_hyperpod_confirms_is_repaired() -> None:
    failed = instance(InstanceState.FAILURE)
    assert look_at(lost(), down(8, inst=failed)).rule == "node.cordon"


def test_a_node_that_is_well_when_its_turn_comes_is_given_back_untouched() -> None:
    back = observed(node_view(node_looks.drained(), load=ROOM))
    decision = look_at(lost(Phase.DRAINING), back)
    assert decision.rule == "node.untouched"
    assert [type(action).__name__ for action in decision.actions] == ["UncordonNode"]


def test_a_node_that_is_still_down_when_its_turn_comes_is_repaired() -> None:
    still = observed(node_view(node_looks.drained("down"), instance(InstanceState.FAILURE), load=ROOM))
    assert look_at(lost(Phase.DRAINING), still).incident.phase is Phase.REPAIRING
