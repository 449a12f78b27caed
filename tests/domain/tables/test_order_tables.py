"""Orders by people, one row per phase and observation: to stop a run for good, and to move it off a node."""

# ruff: noqa: E501 - a table is read by its rows

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import ActionResult, Done, Notify, Severity, action_name
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus as S
from chalicelib.domain.model.observation import Observation, ReplyView
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.document import DEFAULT_POLICY as P
from chalicelib.domain.policy.document import Policy
from rekindle.protocol.signals import FaultClass as F
from tests.domain.looks import MINUTE, NOW, UNSEEN, a_try, incident, look, seen, signal, view

SHADOW = dataclasses.replace(P, shadow=True)
LONG = timedelta(hours=7)
STOP = {"do": "stop", "who": "ada"}
SAVE_FIRST = STOP | {"checkpoint": True}
MOVE = {"do": "move", "who": "ada", "move": "ip-10-0-0-1"}
REQUEST = "inc-lm-1-c1"
BOTH = ("Notify", "Notify")  # what a person must do, and that the order was not carried out


def stop(phase: Phase, order: dict[str, Any] = STOP, **more: Any) -> Incident:
    return incident(phase, **({"order": order} | more))


def stopping(asked: timedelta = MINUTE / 2, *, entered: timedelta = MINUTE) -> Incident:
    case = stop(Phase.STOPPING, stop_hold=False, stop_asked_at=NOW - asked)
    return dataclasses.replace(case, phase_entered_at=NOW - entered)


def answered(action: str, done: Done) -> tuple[ActionResult, ...]:
    return (ActionResult(action=action, done=done, detail="because"),)


def reply(outcome: str) -> Known[ReplyView]:
    return Known(ReplyView(request_id=REQUEST, outcome=outcome, step=100, why=""))


def overdue(case: Incident) -> Incident:
    return case.changed(ask=dataclasses.replace(case.halt.ask, deadline_at=NOW))  # type: ignore[type-var]


def unsent(**more: Any) -> Incident:
    return stop(Phase.RESUBMITTING, tries=(a_try(**more),))


ROWS: list[tuple[str, Incident, Observation, Policy, str, Phase, tuple[str, ...]]] = [
    # ---- a stop
    ("while nothing is decided", stop(Phase.OPEN), seen(), P, "order.stop_now", Phase.STOPPING, ("StopJob",)),
    ("while it is held", stop(Phase.HOLDING), seen(), P, "order.stop_now", Phase.STOPPING, ("StopJob",)),
    ("while it is watched", stop(Phase.WATCHING), seen(), P, "order.stop_now", Phase.STOPPING, ("StopJob",)),
    ("of a new attempt", stop(Phase.VERIFYING), seen(view(name="lm-r2")), P, "order.stop_now", Phase.STOPPING, ("StopJob",)),
    ("in shadow mode", stop(Phase.HOLDING), seen(), SHADOW, "guard.shadow", Phase.HANDED_OVER, BOTH),
    ("with a save", stop(Phase.HOLDING, SAVE_FIRST), seen(), P, "order.stop_save", Phase.CHECKPOINTING, ("RequestCheckpoint",)),
    ("with a save, of a run that begins", stop(Phase.HOLDING, SAVE_FIRST), seen(view(S.STARTING)), P, "order.stop_now", Phase.STOPPING, ("StopJob",)),
    ("waits for the save", stop(Phase.CHECKPOINTING, SAVE_FIRST), seen(), P, "order.stop_saving", Phase.CHECKPOINTING, ()),
    ("whose save was not asked", stop(Phase.CHECKPOINTING, SAVE_FIRST), seen(results=answered("RequestCheckpoint", Done.UNAVAILABLE)), P, "order.stop_saving", Phase.CHECKPOINTING, ("RequestCheckpoint",)),
    ("whose save was refused", stop(Phase.CHECKPOINTING, SAVE_FIRST), seen(results=answered("RequestCheckpoint", Done.REFUSED)), P, "order.stop_now", Phase.STOPPING, ("StopJob",)),
    ("is saved", stop(Phase.CHECKPOINTING, SAVE_FIRST), seen(reply=reply("saved")), P, "order.stop_now", Phase.STOPPING, ("StopJob",)),
    ("whose save is late", overdue(stop(Phase.CHECKPOINTING, SAVE_FIRST)), seen(), P, "order.stop_now", Phase.STOPPING, ("StopJob",)),
    ("that is under way", stopping(), seen(), P, "order.stop_waiting", Phase.STOPPING, ()),
    ("that shows", stopping(), seen(view(S.STOPPING)), P, "order.stop_waiting", Phase.STOPPING, ()),
    ("that does not show for long", stopping(P.timing.look_max), seen(), P, "order.stop_again", Phase.STOPPING, ("StopJob",)),
    ("that shows for long", stopping(P.timing.look_max), seen(view(S.STOPPING)), P, "order.stop_waiting", Phase.STOPPING, ()),
    ("that was not sent", stopping(), seen(results=answered("StopJob", Done.UNAVAILABLE)), P, "order.stop_again", Phase.STOPPING, ("StopJob",)),
    ("that is refused", stopping(), seen(results=answered("StopJob", Done.REFUSED)), P, "order.stop_refused", Phase.HANDED_OVER, BOTH),
    ("that never ends", stopping(entered=LONG), seen(view(S.STOPPING)), P, "order.stop_stuck", Phase.HANDED_OVER, BOTH),
    ("of a run that we stop for another reason, held", stop(Phase.STOPPING, stop_hold=True), seen(), P, "order.stop_now", Phase.STOPPING, ("StopJob",)),
    ("of a run that has ended", stopping(), seen(view(S.STOPPED)), P, "order.stop", Phase.STOPPED, ("Notify",)),
    ("of a run that has failed", stop(Phase.HOLDING), seen(view(S.FAILED)), P, "order.stop", Phase.STOPPED, ("Notify",)),
    ("of a run that is not seen", stop(Phase.HOLDING), seen(UNSEEN), P, "order.stop_unseen", Phase.HOLDING, ()),
    ("of a run that is not known once", stopping(), seen(view(S.GONE)), P, "attempt.not_listed", Phase.STOPPING, ()),
    ("beside a start that cannot have been sent", unsent(), seen(view(S.GONE, name="lm-r2")), P, "order.stop_unsent", Phase.RESUBMITTING, ()),
    ("beside a start that was refused", unsent(), seen(view(S.FAILED), results=answered("ResubmitJob", Done.REFUSED)), P, "order.stop", Phase.STOPPED, ("Notify",)),
    ("of a run that lives after all", stop(Phase.RESUBMITTING), seen(), P, "order.stop_lives", Phase.VERIFYING, ()),
    # ---- a move
    ("a move", stop(Phase.HOLDING, MOVE), seen(), P, "order.move_save", Phase.CHECKPOINTING, ("RequestCheckpoint",)),
    ("a move in shadow mode", stop(Phase.HOLDING, MOVE), seen(), SHADOW, "guard.shadow", Phase.HANDED_OVER, ("Notify",)),
    ("a move waits for the save", stop(Phase.CHECKPOINTING, MOVE), seen(), P, "order.move_saving", Phase.CHECKPOINTING, ()),
    ("a move is saved", stop(Phase.CHECKPOINTING, MOVE), seen(reply=reply("saved")), P, "order.move_saved", Phase.STOPPING, ("StopJob",)),
    ("a move is not saved", stop(Phase.CHECKPOINTING, MOVE), seen(reply=reply("cannot")), P, "order.move_unsaved", Phase.STOPPED, ("Notify",)),
    ("a move of a run that begins", stop(Phase.HOLDING, MOVE), seen(view(S.STARTING)), P, "order.move_unsaved", Phase.STOPPED, ("Notify",)),
    ("a move of a run that ended", stop(Phase.HOLDING, MOVE), seen(view(S.FAILED)), P, "order.move_over", Phase.HOLDING, ()),
    ("a move of a run that ended while it saved", stop(Phase.CHECKPOINTING, MOVE), seen(view(S.FAILED)), P, "order.move_over", Phase.HOLDING, ()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "what", "policy", "rule", "phase", "actions"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_the_table(
    case: Incident, what: Observation, policy: Policy, rule: str, phase: Phase, actions: tuple[str, ...]
) -> None:
    decision = look(case, what, policy)
    assert (decision.rule, decision.incident.phase, tuple(action_name(action) for action in decision.actions)) == (
        rule,
        phase,
        actions,
    )


def test_an_end_while_it_saves_says_that_the_save_is_not_waited_for() -> None:
    text = "what it was asked to save is not waited for"
    assert text in look(stop(Phase.CHECKPOINTING, MOVE), seen(view(S.FAILED))).reason
    assert text not in look(stop(Phase.HOLDING, MOVE), seen(view(S.FAILED))).reason


def test_a_run_that_was_moved_is_not_moved_again() -> None:
    moved = incident(Phase.VERIFYING, F.UNCLEAR, order=MOVE)
    assert not look(moved, seen(view(name="lm-r2"))).rule.startswith("order.")


@pytest.mark.parametrize(
    ("at", "by", "severity"),
    [
        (NOW + MINUTE, "lm-by-hand", Severity.WARNING),
        (NOW - MINUTE, "lm-by-hand", Severity.INFO),  # before the order, which was about it as well
        (NOW + MINUTE, "lm", Severity.INFO),
    ],
)
def test_the_end_of_what_others_started_since_an_order_to_stop_is_told_with_it(
    at: datetime, by: str, severity: Severity
) -> None:
    order = signal(None, kind=SignalKind.ORDER_STOP)
    case = stop(Phase.OPEN, signals=(order, signal(F.SOFTWARE_CRASH, kind=SignalKind.ATTEMPT_STATE, attempt=by, at=at)))
    (told,) = look(case, seen(view(S.FAILED))).actions
    assert isinstance(told, Notify)
    assert (told.severity, "lm-by-hand" in told.text) == (severity, severity is Severity.WARNING)
