"""Small makers: policies that hold something back, answers of people, a few looks in a row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from chalicelib.domain.decide import Decision
from chalicelib.domain.model.action import Action, ActionResult, Done
from chalicelib.domain.model.approvals import Approval, ApprovalAnswer, Guard, Hold
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.observation import Observation
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.domain.model.switches import Breaker
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.policy.fields import Group, specs
from chalicelib.domain.policy.guard_rules import Harm
from tests.domain.looks import NOW, decide
from tests.domain.policies import changed

HOUR = timedelta(hours=1)
HARMFUL = frozenset(Harm)
TRIPPED = Breaker(tripped_at=NOW - timedelta(minutes=1), incident_id="inc-other", text="30 Incidents, 40 Jobs")
ASKED = ActionResult(action="AskApproval", done=Done.DONE, detail="a1")


def policy(base: Policy = DEFAULT_POLICY, **document: Any) -> Policy:
    """`base` with these fields of a policy document."""
    read = Policy.from_wire(document)
    fields: dict[str, Any] = {}
    for spec in specs(Policy):
        given = document.get(spec.key)
        value = getattr(read, spec.name)
        if isinstance(spec.kind, Group) and given is not None:
            fields[spec.name] = {
                spec.name: getattr(value, spec.name) for spec in specs(type(value)) if spec.key in given
            }
        elif given is not None:
            fields[spec.name] = value
    return changed(base, **fields)


def asks(*actions: str, default: str = "deny", deadline_s: float = 3600, base: Policy = DEFAULT_POLICY) -> Policy:
    """A policy that asks about these actions, about all if none is named."""
    when = {"actions": list(actions)} if actions else {}
    return policy(base, approvals={"rules": [{"when": when, "deadline_s": deadline_s, "default": default}]})


def closed_hours(base: Policy = DEFAULT_POLICY) -> Policy:
    """A window that holds everything for an hour around NOW."""
    return policy(base, windows=[{"name": "switches", "from": "11:30", "to": "12:30"}])


def harmful(decision: Decision) -> list[Action]:
    """What of it may do harm."""
    return [action for action in decision.actions if type(action).__name__ in HARMFUL]


def names(decision: Decision) -> list[str]:
    return [type(action).__name__ for action in decision.actions]


def said(approval: Approval, answer: str = "approved", *, at: datetime = NOW, who: str = "ada", **more: Any) -> Signal:
    """Somebody's answer, as it comes out of the inbox."""
    evidence: Mapping[str, Any] = {"approval_id": approval.approval_id, "answer": answer, "who": who, "comment": ""}
    return Signal(
        kind=SignalKind.ORDER_APPROVAL,
        source=SignalSource.OPERATOR,
        occurred_at=at,
        dedupe_key=f"order:approval:{approval.approval_id}:{who}:{at}",
        summary=f"{who} {answer}",
        triggers=False,
        evidence={**evidence, **more},
    )


def look_on(
    case: Incident, what: Observation, rules: Policy, *, at: datetime = NOW, told: bool = True, **more: Any
) -> Decision:
    """One look at `at`; `told`: the question of the look before went out."""
    results = (
        (ASKED,) if told and any(approval.is_pending and not approval.notified for approval in case.approvals) else ()
    )
    seen = dataclasses.replace(what, observed_at=at, **({"results": results} if results else {}), **more)
    decision = decide(case, seen, now=at, policy=rules)
    assert decision == decide(case, seen, now=at, policy=rules), "not deterministic"
    return decision


def open_hold(case: Incident, guard: Guard) -> Hold | None:
    return next((hold for hold in case.holds if hold.guard is guard and hold.until is None), None)


def only(case: Incident) -> Approval:
    (approval,) = case.approvals
    return approval


def answer_of(case: Incident) -> ApprovalAnswer | None:
    return only(case).answer
