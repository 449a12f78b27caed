"""What is told beforehand of a guard that holds is what the guards then do to a step."""

from __future__ import annotations

from typing import Any

import pytest

from chalicelib.domain.guards.standing import HoldEffect, standing_holds
from chalicelib.domain.model.approvals import Guard
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.switches import Breaker, Switches
from chalicelib.domain.policy.document import Policy
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, checkpoint, incident, seen, view
from tests.guardrails.made import TRIPPED, closed_hours, harmful, look_on, policy

ORDER = {"do": "resubmit", "who": "ada"}
CRASHED = incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH)
ORDERED = incident(Phase.OPEN, FaultClass.OPERATOR_ORDER, order=ORDER)
DEAD = seen(view(AttemptStatus.FAILED, failure_reason="boom"), checkpoints=Known((checkpoint(90),)))
SHADOWED = policy(shadow=True)

# What is switched, the policy, what the observation then says, and the guard of it.
STANDING: list[tuple[Switches, Policy, dict[str, Any], Guard]] = [
    (Switches(paused=True, paused_by="ada", paused_at=NOW), policy(), {"paused": True}, Guard.PAUSE),
    (Switches(everywhere=True), policy(), {"shadow": "everywhere"}, Guard.SHADOW),
    (Switches(jobs=("lm",)), policy(), {"shadow": "for job lm"}, Guard.SHADOW),
    (Switches(), SHADOWED, {}, Guard.SHADOW),
    (Switches(), closed_hours(), {}, Guard.WINDOW),
    (Switches(breaker=TRIPPED), policy(), {"breaker": TRIPPED}, Guard.BREAKER),
]


@pytest.mark.parametrize(("case", "is_order"), [(CRASHED, False), (ORDERED, True)], ids=["own", "ordered"])
@pytest.mark.parametrize(("switches", "rules", "sees", "guard"), STANDING)
def test_a_hold_is_told_as_it_holds(
    case: Incident, is_order: bool, switches: Switches, rules: Policy, sees: dict[str, Any], guard: Guard
) -> None:
    (told,) = standing_holds(switches, rules, job_id="lm", cluster=None, now=NOW, is_order=is_order)
    assert told.guard is guard
    decision = look_on(case, DEAD, rules, **sees)
    assert bool(harmful(decision)) is (told.effect is HoldEffect.LATER_STEPS), decision
    assert (told.effect is HoldEffect.NOT_DONE) is (decision.rule == "guard.shadow")


def test_where_nothing_holds_nothing_is_told_and_the_step_is_done() -> None:
    switches = Switches(jobs=("other",), clusters=("ml",), breaker=Breaker(tripped_at=NOW - MINUTE, lifted_at=NOW))
    for case, is_order in ((CRASHED, False), (ORDERED, True)):
        assert standing_holds(switches, policy(), job_id="lm", cluster=None, now=NOW, is_order=is_order) == ()
        assert harmful(look_on(case, DEAD, policy()))


def test_the_words_name_who_why_where_and_until() -> None:
    switches = Switches(
        paused=True, paused_by="ada", paused_at=NOW, paused_why="change freeze", clusters=("ml",), breaker=TRIPPED
    )
    rules = policy(closed_hours(), shadow=True)
    found = standing_holds(switches, rules, job_id="lm", cluster="ml", now=NOW, is_order=False)
    assert [hold.text for hold in found] == [
        "the pause by ada since 2026-11-20 12:00 UTC (change freeze) holds it until `rekindle switches unpause`",
        "shadow mode (for this cluster, in its policy): it is recorded and told, and nothing is done",
        "the window switches holds until Fri 12:30 UTC: it waits for that",
        "the fleet-wide breaker is open since 2026-11-20 11:59 UTC (30 Incidents, 40 Jobs): it waits for that",
    ]
    assert found[2].to_wire() == {
        "guard": "window",
        "effect": "waits",
        "since": None,
        "until": "2026-11-20T12:30:00+00:00",
        "by": "",
        "why": "",
        "where": ["switches"],
        "text": found[2].text,
    }


def test_a_switched_off_breaker_holds_nothing() -> None:
    switches, rules = Switches(breaker=TRIPPED), policy(breaker={"incidents": 0})
    assert standing_holds(switches, rules, job_id="lm", cluster=None, now=NOW, is_order=False) == ()
    assert harmful(look_on(CRASHED, DEAD, rules, breaker=TRIPPED))
