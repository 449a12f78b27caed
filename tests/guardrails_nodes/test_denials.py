"""What a person has denied about a node, or cancelled, is asked again only after a day, or when something is new."""

from __future__ import annotations

from datetime import timedelta

import pytest

from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ports.notices import NoticeKind
from chalicelib.services.operator.approvals import Approvals
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind
from rekindle.protocol.signals import FaultClass
from tests.guardrails_nodes.stage import HOUR, NODE, Yard, with_policy
from tests.services.node_world import CLUSTER

ASKS = with_policy(
    approvals={"rules": [{"when": {"actions": ["CordonNode"]}, "deadline_s": 600, "default": "approve"}]}
)


def word(yard: Yard, xid: int = 79, *, node: str = NODE, instance: str | None = None, **more: object) -> Signal:
    """The health agent's log line about a fault: the same fault is logged again and again, each with its own time."""
    return Signal(
        kind=SignalKind.AGENT_LOG_FAULT,
        source=SignalSource.LOGS,
        occurred_at=yard.clock.now(),
        dedupe_key=f"hma:{node}:{xid}:{yard.clock.now().isoformat()}",
        summary=f"Xid {xid} on {node}",
        cluster=CLUSTER,
        node=instance or yard.site.machines[node].instance_id,
        fault=FaultClass.NODE_HARDWARE,
        evidence={"xid": xid, **more},
    )


def accused(yard: Yard, attempt: str) -> Signal:
    """A run's own report."""
    return Signal(
        kind=SignalKind.NODE_SUSPECT,
        source=SignalSource.AGENT,
        occurred_at=yard.clock.now(),
        dedupe_key=f"node-suspect:{attempt}:{yard.clock.now().isoformat()}",
        summary=f"{attempt} suspects it",
        cluster=CLUSTER,
        node=NODE,
        fault=FaultClass.NODE_HARDWARE,
        evidence={"job_id": "lm", "attempt": attempt},
    )


def receive(yard: Yard, signal: Signal) -> Outcome:
    outcome = yard.intake.receive(signal)
    if outcome.what is OutcomeKind.OPENED and outcome.incident_id is not None:
        yard.due[outcome.incident_id] = yard.clock.now()
    return outcome


def asked(yard: Yard) -> int:
    return sum(notice.kind is NoticeKind.APPROVAL for notice in yard.announcer.notices)


def ended(first: Signal | None = None, how: str = "deny") -> Yard:
    """A yard whose node's Incident a person has just denied, or cancelled."""
    yard = Yard(ASKS, tag="default")
    outcome = receive(yard, first or word(yard))
    assert outcome.incident_id is not None
    yard.run(timedelta(minutes=3))
    assert asked(yard) == 1
    if how == "deny":
        approvals = Approvals(store=yard.store, intake=yard.intake, registry=yard.registry, clock=yard.clock)
        approvals.answer(outcome.incident_id, "a1", answer="deny", who="ada", key="k")
    else:
        yard.orders.cancel(outcome.incident_id, who="ada", key="k")
    yard.due[outcome.incident_id] = yard.clock.now()
    yard.settle()
    incident = yard.incident(outcome.incident_id)
    assert (incident.phase, yard.site.calls) == (Phase.STOPPED, [])
    return yard


@pytest.mark.parametrize("how", ["deny", "cancel"])
def test_more_of_what_was_denied_opens_nothing_and_asks_nobody(how: str) -> None:
    """A default of yes would carry out what ada has forbidden, once nobody answers the second question."""
    yard = ended(how=how)
    for _ in range(5):
        yard.run(HOUR)
        outcome = receive(yard, word(yard))
        assert outcome.what is OutcomeKind.DROPPED
        assert "denied or cancelled" in outcome.reason
    assert (asked(yard), yard.site.calls, yard.site.machines[NODE].drain) == (1, [], "")


def test_after_a_day_it_is_asked_again() -> None:
    yard = ended()
    yard.run(timedelta(hours=24))
    assert receive(yard, word(yard)).what is OutcomeKind.OPENED


@pytest.mark.parametrize("new", ["another fault", "a recommendation", "another machine", "a run accuses it"])
def test_something_new_is_asked_about_at_once(new: str) -> None:
    yard = ended()
    match new:
        case "another fault":
            signal = word(yard, 48)
        case "a recommendation":
            signal = word(yard, recommended="replace")
        case "another machine":
            yard.site.machines[NODE].instance_id = yard.site.machines[NODE].mapped = "i-0aaaaaaaaaaaaaaa1"
            signal = word(yard)
        case _:
            signal = accused(yard, "lm-r2")
    assert receive(yard, signal).what is OutcomeKind.OPENED
    yard.run(timedelta(minutes=3))
    assert asked(yard) == 2


def test_each_attempt_that_accuses_a_node_is_new_and_the_same_one_is_not() -> None:
    one = Yard(ASKS)
    yard = ended(accused(one, "lm-r2"))
    assert receive(yard, accused(yard, "lm-r2")).what is OutcomeKind.DROPPED
    assert receive(yard, accused(yard, "lm-r3")).what is OutcomeKind.OPENED


def test_whoever_orders_is_not_bound_by_what_was_denied() -> None:
    yard = ended()
    incident_id = yard.order("replace")
    yard.settle()
    assert yard.incident(incident_id).phase is Phase.RECOVERED, yard.told(incident_id)
    assert [what for what, _ in yard.site.calls] == ["replace"]
