"""After a roll-back of the service an Incident may hold what this version does not know: a person gets it, once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chalicelib.aws.dynamodb.newer_version import read_incident
from chalicelib.domain.model.action import Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.policy.document import DEFAULT_POLICY, readable
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import NOW, decide, incident, seen, signal, view
from tests.domain.node_looks import memory, node_incident

WORKED_ON = incident(Phase.STOPPING, FaultClass.HANG, signals=(signal(FaultClass.HANG),))
NEWER = (
    {"escalation": {"rung": 2}},
    {"phase": "migrating"},
    {"fault": "cosmic_ray"},
    {"account": WORKED_ON.account.to_wire() | {"tariff": 3}},
    {"resubmission": {"tries": [{"name": "lm-a2"}]}},
    {"signals": [{"kind": "telepathy"}]},
    {"loss": {"rollbacks": None}},
)


@pytest.mark.parametrize("change", NEWER, ids=str)
def test_what_is_not_known_here_hands_over_once(change: dict[str, Any]) -> None:
    read = read_incident(WORKED_ON.to_wire() | change)
    assert read.newer
    assert (read.incident_id, read.job_id, read.is_open) == (WORKED_ON.incident_id, WORKED_ON.job_id, True)
    decision = decide(read, seen(view()), now=NOW, policy=DEFAULT_POLICY)
    assert (decision.rule, decision.incident.phase) == ("incident.newer", Phase.HANDED_OVER)
    assert [action.severity for action in decision.actions if isinstance(action, Notify)] == [Severity.PAGE]
    again = read_incident(decision.incident.to_wire())
    assert again == decision.incident
    assert decide(again, seen(view()), now=NOW, policy=DEFAULT_POLICY).actions == ()


def test_a_nodes_own_incident_is_handed_over_alike() -> None:
    one = node_incident(Phase.REPAIRING, memory())
    read = read_incident(one.to_wire() | {"repair": one.repair.to_wire() | {"crane": True}})  # type: ignore[union-attr]
    assert read.newer == "repair.crane"
    assert decide(read, seen(view()), now=NOW, policy=DEFAULT_POLICY).rule == "incident.newer"


def test_a_pinned_policy_that_cannot_be_read_is_exchanged_for_the_one_of_now() -> None:
    now = replace(DEFAULT_POLICY, version="of now", budgets=replace(DEFAULT_POLICY.budgets, max_attempts=1))
    for document in ({**DEFAULT_POLICY.to_wire(), "max_no_progress": 3}, {"schema": 2}, {}):
        read = read_incident(WORKED_ON.to_wire() | {"policy_document": document})
        decision = decide(read, seen(view()), now=NOW, policy=now)
        kept = decision.incident
        if readable(document) is None:
            assert (kept.policy_version, kept.policy_document) == ("of now", now.to_wire())
        else:
            assert kept.policy_document == document  # all fields have defaults
    assert readable({**DEFAULT_POLICY.to_wire(), "max_no_progress": 3}) is None


def test_what_this_version_wrote_is_read_as_it_was() -> None:
    assert read_incident(WORKED_ON.to_wire()) == WORKED_ON
