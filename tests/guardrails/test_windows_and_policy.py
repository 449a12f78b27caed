"""Hours at which nothing is done, and the documents that say so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.domain.model.approvals import Guard
from chalicelib.domain.model.errors import InvalidPolicy
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.policy.document import Policy
from chalicelib.domain.policy.guard_rules import DAYS, Window
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, checkpoint, incident, seen, view
from tests.domain.node_looks import drained, node_incident, node_view, observed
from tests.guardrails.made import closed_hours, look_on, names, open_hold, policy
from tests.sizes import examples

DEAD = seen(view(AttemptStatus.FAILED, failure_reason="boom"), checkpoints=Known((checkpoint(90),)))


def window(**row: Any) -> Window:
    (read,) = Policy.from_wire({"windows": [{"from": "22:00", "to": "06:00", **row}]}).windows
    return read


def at(day: int, clock: str) -> datetime:
    hour, minute = clock.split(":")
    return datetime(2026, 11, day, int(hour), int(minute), tzinfo=UTC)


@pytest.mark.parametrize(
    ("row", "now", "until"),
    [
        ({}, at(20, "21:59"), None),
        ({}, at(20, "22:00"), at(21, "06:00")),
        ({}, at(21, "05:59"), at(21, "06:00")),
        ({}, at(21, "06:00"), None),
        ({"days": ["fri"]}, at(21, "03:00"), at(21, "06:00")),  # it began on Friday, the 20th
        ({"days": ["sat"]}, at(21, "03:00"), None),
        ({"days": ["sat"]}, at(21, "23:00"), at(22, "06:00")),
        ({"holds": "outside"}, at(20, "21:00"), at(20, "22:00")),
        ({"holds": "outside"}, at(20, "23:00"), None),
        ({"holds": "outside", "days": ["mon"]}, at(24, "12:00"), at(30, "22:00")),  # Tuesday: until next Monday
        ({"from": "00:00", "to": "00:00", "days": ["fri"]}, at(20, "12:00"), at(21, "00:00")),
    ],
)
def test_a_window_holds_when_it_says(row: dict[str, Any], now: datetime, until: datetime | None) -> None:
    assert window(**row).holds_until(now) == until


@settings(max_examples=examples(50))
@given(
    st.integers(0, 1439),
    st.integers(0, 1439),
    st.sets(st.sampled_from(DAYS), min_size=1),
    st.booleans(),
    st.integers(0, 20160),
)
def test_a_window_lets_go_at_the_moment_it_names_or_never(
    begin: int, end: int, days: set[str], outside: bool, minute: int
) -> None:
    clock = [f"{one // 60:02}:{one % 60:02}" for one in (begin, end)]
    row = window(
        **{"from": clock[0], "to": clock[1], "days": sorted(days), "holds": "outside" if outside else "inside"}
    )
    now = NOW + timedelta(minutes=minute)
    until = row.holds_until(now)
    if until is not None:
        assert until > now
        if until - now > timedelta(days=7):
            return  # it holds always: the moment that it names moves on with the clock
        assert row.holds_until(until) is None
        assert row.holds_until(until - timedelta(seconds=1)) == until


def test_within_the_window_nothing_is_done_and_after_it_the_same_step_is() -> None:
    rules = closed_hours()
    held = look_on(incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH), DEAD, rules)
    assert (held.rule, names(held), held.incident.phase) == ("guard.window", ["Notify"], Phase.RESUBMITTING)
    assert open_hold(held.incident, Guard.WINDOW) is not None
    quiet = look_on(held.incident, DEAD, rules, at=NOW + 29 * MINUTE)
    assert quiet.incident == look_on(quiet.incident, DEAD, rules, at=NOW + 29 * MINUTE).incident
    assert quiet.look_again_in is not None
    assert quiet.look_again_in <= MINUTE
    after = look_on(quiet.incident, DEAD, rules, at=NOW + 30 * MINUTE)
    assert (after.rule, names(after)) == ("resubmit.now", ["ResubmitJob"])
    assert open_hold(after.incident, Guard.WINDOW) is None
    assert after.incident.holds[0].until == NOW + 30 * MINUTE


def test_a_window_may_hold_some_steps_only() -> None:
    rows = [{"from": "20:00", "to": "06:00", "holds": "outside", "actions": ["RebootNode", "ReplaceNode"]}]
    rules = policy(windows=rows)
    assert look_on(incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH), DEAD, rules).rule == "resubmit.now"
    held = look_on(node_incident(Phase.DRAINING), observed(node_view(drained())), rules)
    assert (held.rule, names(held)) == ("guard.window", ["Notify"])


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"approvals": []}, "approvals"),
        ({"approvals": {"rules": {}}}, "approvals.rules"),
        ({"approvals": {"rules": ["x"]}}, "approvals.rules[0]"),
        ({"approvals": {"rules": [{"default": "deny"}]}}, "approvals.rules[0].deadline_s"),
        ({"approvals": {"rules": [{"deadline_s": 60}]}}, "approvals.rules[0].default"),
        ({"approvals": {"rules": [{"deadline_s": 59, "default": "deny"}]}}, "approvals.rules[0].deadline_s"),
        ({"approvals": {"rules": [{"deadline_s": 60, "default": "maybe"}]}}, "approvals.rules[0].default"),
        ({"approvals": {"rules": [{"deadline_s": 60, "default": "deny", "whom": "x"}]}}, "approvals.rules[0].whom"),
        ({"approvals": {"rules": [{"deadline_s": 60, "default": "deny", "when": []}]}}, "approvals.rules[0].when"),
        (
            {"approvals": {"rules": [{"deadline_s": 60, "default": "deny", "when": {"actions": ["Stop"]}}]}},
            "approvals.rules[0].when.actions",
        ),
        (
            {"approvals": {"rules": [{"deadline_s": 60, "default": "deny", "when": {"faults": "hang"}}]}},
            "approvals.rules[0].when.faults",
        ),
        (
            {"approvals": {"rules": [{"deadline_s": 60, "default": "deny", "when": {"min_nodes": 0}}]}},
            "approvals.rules[0].when.min_nodes",
        ),
        (
            {"approvals": {"rules": [{"deadline_s": 60, "default": "deny", "when": {"min_gpu_hours": -1}}]}},
            "approvals.rules[0].when.min_gpu_hours",
        ),
        ({"windows": [{"from": "22:00"}]}, "windows[0].to"),
        ({"windows": [{"from": "24:00", "to": "01:00"}]}, "windows[0].from"),
        ({"windows": [{"from": "22:00", "to": "1:00"}]}, "windows[0].to"),
        ({"windows": [{"from": "22:00", "to": "01:00", "days": ["monday"]}]}, "windows[0].days"),
        ({"windows": [{"from": "22:00", "to": "01:00", "days": []}]}, "windows[0].days"),
        ({"windows": [{"from": "22:00", "to": "01:00", "holds": "never"}]}, "windows[0].holds"),
        ({"windows": [{"from": "22:00", "to": "01:00", "name": ""}]}, "windows[0].name"),
        ({"windows": [{"from": "22:00", "to": "01:00", "zone": "CET"}]}, "windows[0].zone"),
    ],
)
def test_a_document_that_is_wrong_names_its_field(document: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidPolicy) as err:
        Policy.from_wire(document)
    assert err.value.field == field


def test_a_document_comes_back_as_it_went() -> None:
    rules = policy(
        approvals={
            "rules": [
                {"when": {"actions": ["StopJob"], "faults": ["hang"], "min_nodes": 2, "min_gpu_hours": 1.5}}
                | {"deadline_s": 90, "default": "approve"}
            ]
        },
        windows=[{"from": "22:15", "to": "02:00", "days": ["tue"], "holds": "outside", "actions": ["StopJob"]}],
        breaker={"incidents": 3},
    )
    again = Policy.from_wire(rules.to_wire())
    assert (again.approvals, again.windows, again.breaker.incidents) == (rules.approvals, rules.windows, 3)


def test_after_an_outage_of_the_service_what_waited_for_it_is_received_before_anything_is_done() -> None:
    rules = policy()
    held = look_on(incident(Phase.OPEN, FaultClass.SOFTWARE_CRASH), DEAD, rules, back_at=NOW)
    assert (held.rule, names(held), held.incident.phase) == ("guard.catch_up", [], Phase.RESUBMITTING)
    assert open_hold(held.incident, Guard.CATCH_UP) is not None
    after = look_on(held.incident, DEAD, rules, at=NOW + MINUTE, back_at=NOW)
    assert (after.rule, names(after)) == ("resubmit.now", ["ResubmitJob"])
    assert open_hold(after.incident, Guard.CATCH_UP) is None
