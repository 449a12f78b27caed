"""What a pause moves: every time that an Incident keeps has a type that says so."""

import dataclasses
import typing
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from chalicelib.domain.model.account import Account
from chalicelib.domain.model.approvals import Approval, Hold
from chalicelib.domain.model.clocks import Clock, Pause, clocks_of
from chalicelib.domain.model.incident import Incident, Phase, Try
from chalicelib.domain.model.incident_parts import AttemptTracking, BadLoss, Evidence, Halt, Resubmissions
from chalicelib.domain.model.repair import NodeRepair
from chalicelib.domain.model.signal import Signal
from tests.domain.looks import NOW, a_try, incident

PARTS: dict[str, Any] = {
    "tracking": AttemptTracking,
    "loss": BadLoss,
    "evidence": Evidence,
    "halt": Halt,
    "resubmission": Resubmissions,
}
# What occurred: no limit is measured from their times. `Incident.unpaused` moves an open question's deadline.
HISTORY = (Account, Approval, Hold, Signal)
HISTORY_OF_NODES = NodeRepair  # its own times have clocks; what it lists is history
BEGAN = NOW - timedelta(minutes=30)
BEFORE = BEGAN - timedelta(minutes=10)
PAUSE = NOW - BEGAN


def _kinds(hint: Any) -> Iterator[type]:
    """The dataclasses that a field's type names."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for member in typing.get_args(hint):
        yield from _kinds(member)


def _reached(kind: type, found: set[type]) -> set[type]:
    """The records that an Incident holds, without those that are history."""
    found.add(kind)
    if kind is not HISTORY_OF_NODES:
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            for one in _kinds(hints[field.name]):
                if one not in HISTORY and one not in found:
                    _reached(one, found)
    return found


def test_every_time_of_an_incident_says_what_a_pause_does_to_it() -> None:
    reached = _reached(Incident, set())
    assert {*PARTS.values(), Try, NodeRepair} <= reached
    undecided = [f"{kind.__name__}.{name}" for kind in reached for name, clock in clocks_of(kind).items() if not clock]
    assert undecided == []


def test_a_time_without_a_clock_is_found() -> None:
    @dataclasses.dataclass(frozen=True)
    class Forgetful:
        at: datetime
        until: datetime | None = None

    assert clocks_of(Forgetful) == {"at": None, "until": None}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_moves_its_own_times_as_their_types_say(part: str) -> None:
    clocks = clocks_of(PARTS[part])
    before = dataclasses.replace(incident(), **{part: PARTS[part](**dict.fromkeys(clocks, BEFORE))})
    after = getattr(dataclasses.replace(before, paused_since=BEGAN).unpaused(now=NOW), part)
    assert {name: getattr(after, name) for name in clocks} == {
        name: BEFORE if clock is Clock.FACT else BEFORE + PAUSE for name, clock in clocks.items()
    }


def test_what_began_in_the_pause_is_moved_by_the_rest_of_it_only() -> None:
    within = BEGAN + timedelta(minutes=10)
    pause = Pause(BEGAN, NOW)
    assert pause.since(within) == NOW
    assert pause.due(within) == within + PAUSE


@pytest.mark.parametrize(("phase", "moves"), [(Phase.RESUBMITTING, True), (Phase.VERIFYING, False)])
def test_an_order_to_start_is_aged_by_no_pause_until_its_start_is_known(phase: Phase, moves: bool) -> None:
    case = incident(phase, paused_since=BEGAN, tries=(a_try(at=BEFORE),))
    (moved,) = case.unpaused(now=NOW).resubmission.tries
    assert moved.at == (BEFORE + PAUSE if moves else BEFORE)


def test_no_field_is_in_two_parts() -> None:
    names = [field.name for kind in (Incident, *PARTS.values()) for field in dataclasses.fields(kind)]
    assert len(names) == len({*names})
    assert {name for name, kind in typing.get_type_hints(Incident).items() if kind in PARTS.values()} == {*PARTS}


def test_a_change_reaches_the_part_that_has_the_field() -> None:
    made = incident().changed(attempt="lm-r3", rollbacks=2, unseen_since=BEFORE, asks=4)
    assert (made.attempt, made.loss.rollbacks, made.tracking.unseen_since, made.halt.asks) == ("lm-r3", 2, BEFORE, 4)
    both = incident().changed(loss=BadLoss(rollbacks=1), onset_attempt="lm")
    assert both.loss == BadLoss(rollbacks=1, onset_attempt="lm")
    with pytest.raises(TypeError, match="no_such_field"):
        incident().changed(no_such_field=1)
