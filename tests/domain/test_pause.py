"""A global pause takes no time: whatever was measured or waited for goes on where it stood."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chalicelib.domain.decide import Decision
from chalicelib.domain.model.action import ActionResult, Done
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus, Observation
from chalicelib.domain.policy.document import DEFAULT_POLICY
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, UNSEEN, a_try, decide, incident, seen, view

P = DEFAULT_POLICY
S = AttemptStatus
BEFORE = NOW - MINUTE
NEW: dict[str, Any] = {"name": "lm-r2", "step": None}
UNREACHED = (ActionResult(action="ResubmitJob", done=Done.UNAVAILABLE),)
REFUSED_ROOM = (ActionResult(action="ResubmitJob", done=Done.CAPACITY),)
PENDING: dict[str, Any] = {"attempt": "lm-r2", "attempt_number": 2}
AS_RUNNING: dict[str, Any] = {"seen_as": "lm-r2:running"}


def at(what: Observation, moment: datetime) -> Observation:
    return dataclasses.replace(what, observed_at=moment)


def paused_for(case: Incident, what: Observation, pause: timedelta) -> Decision:
    """Paused at `NOW`, lifted `pause` later, with a look at both moments."""
    held = decide(case, dataclasses.replace(at(what, NOW), paused=True, results=()), now=NOW, policy=P)
    assert held.rule == "guard.paused"
    later = NOW + pause
    return decide(held.incident, at(what, later), now=later, policy=P)


LIMITS = [
    ("stop", Phase.STOPPING, {"phase_entered_at": BEFORE}, seen(view(S.STOPPING)), "stop.stuck"),
    ("stop unseen", Phase.STOPPING, {"phase_entered_at": BEFORE}, seen(UNSEEN), "stop.unseen_limit"),
    ("open unseen", Phase.OPEN, {"unseen_since": BEFORE}, seen(UNSEEN), "open.unseen_limit"),
    ("checkpoint", Phase.CHECKPOINTING, {}, seen(view(step=None)), "checkpoint.late"),
    ("start", Phase.VERIFYING, {"phase_entered_at": BEFORE}, seen(view(S.STARTING, **NEW)), "verify.never_started"),
    ("blind", Phase.VERIFYING, AS_RUNNING | {"seen_since": BEFORE}, seen(view(**NEW)), "verify.blind_limit"),
    (
        "still",
        Phase.VERIFYING,
        {"watch_at": BEFORE, "watch_step": Known(95), "evidence_since": BEFORE},
        seen(view(name="lm-r2", step=95)),
        "verify.silent",
    ),
    (
        "unreachable",
        Phase.RESUBMITTING,
        PENDING | {"tries": (a_try(at=BEFORE),)},
        seen(UNSEEN, results=UNREACHED),
        "resubmit.unavailable_limit",
    ),
    (
        "capacity",
        Phase.RESUBMITTING,
        PENDING | {"tries": (a_try(),), "capacity_since": BEFORE},
        seen(UNSEEN, results=REFUSED_ROOM),
        "capacity.limit",
    ),
    (
        "checkpoints",
        Phase.RESUBMITTING,
        {"not_before": BEFORE},
        seen(view(S.STOPPED)),
        "resume.unseen_limit",
    ),
]


@pytest.mark.parametrize(
    ("phase", "facts", "what", "limit"), [row[1:] for row in LIMITS], ids=[row[0] for row in LIMITS]
)
def test_a_limit_does_not_run_while_paused(phase: Phase, facts: dict[str, Any], what: Observation, limit: str) -> None:
    case = incident(phase, FaultClass.HANG, **facts)
    unpaused = decide(case, at(what, NOW), now=NOW, policy=P)
    for hours in (1, 24, 1000):
        lifted = paused_for(case, what, timedelta(hours=hours))
        assert (lifted.rule, lifted.incident.phase) == (unpaused.rule, unpaused.incident.phase)
        assert lifted.incident.is_open or lifted.rule == unpaused.rule
    late = NOW + timedelta(hours=24)
    without = decide(case, at(what, late), now=late, policy=P)
    assert without.rule == limit, "the row must be about a limit that would have been reached"
    assert (without.rule, without.incident.phase) != (unpaused.rule, unpaused.incident.phase)


def test_what_is_left_of_a_limit_after_the_pause_still_runs_out() -> None:
    case = incident(Phase.STOPPING, FaultClass.HANG, phase_entered_at=NOW - P.timing.stop_limit + 2 * MINUTE)
    what = seen(view(S.STOPPING))
    lifted = paused_for(case, what, timedelta(hours=5))
    assert lifted.rule != "stop.stuck"
    later = NOW + timedelta(hours=5) + 2 * MINUTE
    assert decide(lifted.incident, at(what, later), now=later, policy=P).rule == "stop.stuck"


def test_a_quiet_look_while_paused_changes_nothing() -> None:
    what = dataclasses.replace(seen(view(S.STOPPING)), paused=True)
    first = decide(incident(Phase.STOPPING, FaultClass.HANG), what, now=NOW, policy=P)
    again = decide(first.incident, at(what, NOW + MINUTE), now=NOW + MINUTE, policy=P)
    assert again.incident == first.incident


def test_what_began_during_the_pause_counts_from_its_end() -> None:
    case = incident(Phase.OPEN, paused_since=NOW - 60 * MINUTE, unseen_since=NOW - 10 * MINUTE)
    lifted = case.unpaused(now=NOW)
    assert (lifted.tracking.unseen_since, lifted.paused_since) == (NOW, None)
    assert lifted.phase_entered_at == NOW


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_age_of_a_moment_is_its_age_less_the_pause(age_s: int, pause_s: int) -> None:
    entered, began = NOW - timedelta(seconds=age_s), NOW - timedelta(seconds=pause_s)
    lifted = incident(phase_entered_at=entered, paused_since=began).unpaused(now=NOW)
    assert NOW - lifted.phase_entered_at == max(timedelta(0), began - entered)
