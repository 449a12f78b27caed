"""When a new attempt is past where the old one ended, and when that is enough to call it recovered."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.decide import Decision
from chalicelib.domain.model.action import Notify, Severity, StopJob
from chalicelib.domain.model.evidence import Onset
from chalicelib.domain.model.incident import Failure, Phase, Try
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import STALLED, AttemptStatus
from chalicelib.domain.model.signal import SignalKind, SignalSource
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.domain.resume.load_failures import condemned
from chalicelib.domain.resume.rollback import onset_to_precede
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import MINUTE, NOW, UNSEEN, incident, look, seen, signal, view

WELL: dict[str, Any] = {
    "name": "lm-r2",
    "step": 105,
    "first_step": Known(91),
    "loss_state": "finite",
    "loss_health": "ok",
    "heartbeat_at": NOW,
    "work": "training",
}


def test_an_attempt_that_is_past_the_old_one_and_well_has_recovered() -> None:
    told = look(incident(Phase.VERIFYING, FaultClass.NON_FINITE, onset_attempt="lm"), seen(view(**WELL)))
    assert (told.rule, told.incident.phase) == ("verify.passed", Phase.RECOVERED)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"heartbeat_at": NOW - 4 * MINUTE}, "old"),
        ({"first_step": Known(104)}, "3 steps of its own"),
        ({"loss_state": "none"}, "not known to be finite"),
    ],
)
def test_what_is_not_shown_yet_is_waited_for(changes: dict[str, Any], says: str) -> None:
    told = look(incident(Phase.VERIFYING, FaultClass.NON_FINITE, onset_attempt="lm"), seen(view(**WELL | changes)))
    assert (told.rule, told.incident.phase) == ("verify.doubt", Phase.VERIFYING)
    assert says in told.reason


def test_one_whose_heartbeat_says_that_it_stands_still_is_stuck_again() -> None:
    told = look(incident(Phase.VERIFYING), seen(view(**WELL | {"work": STALLED})))
    assert (told.rule, told.incident.phase, told.incident.fault) == (
        "playbook.checkpoint",
        Phase.CHECKPOINTING,
        FaultClass.HANG,
    )


def test_a_run_that_reports_no_loss_recovers_by_its_steps() -> None:
    told = look(incident(Phase.VERIFYING), seen(view(**WELL | {"loss_state": "none", "loss_health": "unknown"})))
    assert told.rule == "verify.passed"


def test_after_a_bad_loss_one_that_stays_unknown_is_a_persons_to_judge() -> None:
    case = incident(
        Phase.VERIFYING,
        FaultClass.NON_FINITE,
        onset_attempt="lm",
        doubt_since=NOW - DEFAULT_POLICY.timing.verify_blind,
    )
    told = look(case, seen(view(**WELL | {"loss_state": "none"})))
    assert (told.rule, told.incident.phase) == ("verify.doubt_limit", Phase.HANDED_OVER)


def test_steps_that_cannot_be_seen_are_told_of_once_for_each_attempt() -> None:
    case = incident(Phase.VERIFYING, seen_as=f"lm-r2:{AttemptStatus.RUNNING}", seen_since=NOW - timedelta(minutes=6))
    what = seen(view(name="lm-r2", step=None))
    told = look(case, what)
    assert [action.severity for action in told.actions if isinstance(action, Notify)] == [Severity.WARNING]
    again = look(told.incident, what)
    assert (again.rule, again.actions) == ("verify.blind", ())


def test_a_stall_is_not_acted_on_while_its_heartbeat_cannot_be_read() -> None:
    asked = incident(Phase.CHECKPOINTING, FaultClass.HANG, signals=(signal(),))
    assert asked.halt.ask is not None
    asked = dataclasses.replace(
        asked, halt=dataclasses.replace(asked.halt, ask=dataclasses.replace(asked.halt.ask, deadline_at=NOW))
    )
    unread = seen(view(is_heartbeat_unread=True, step=None), reply=UNSEEN)
    told = look(asked, unread)
    assert told.rule == "hang.unread"
    assert not any(isinstance(action, StopJob) for action in told.actions)
    assert asked.halt.ask is not None
    stuck = dataclasses.replace(
        asked,
        halt=dataclasses.replace(
            asked.halt, ask=dataclasses.replace(asked.halt.ask, outcome="cannot", why="it is stuck")
        ),
    )
    waited = dataclasses.replace(
        stuck, evidence=dataclasses.replace(stuck.evidence, evidence_since=NOW - timedelta(hours=1))
    )
    assert any(isinstance(action, StopJob) for action in look(waited, unread).actions)


def test_a_stall_is_not_acted_on_where_it_and_the_newest_heartbeat_are_old() -> None:
    long_ago = NOW - timedelta(minutes=11)
    asked = incident(Phase.CHECKPOINTING, FaultClass.HANG, signals=(signal(at=long_ago),))
    assert asked.halt.ask is not None
    asked = dataclasses.replace(
        asked, halt=dataclasses.replace(asked.halt, ask=dataclasses.replace(asked.halt.ask, deadline_at=NOW))
    )
    old = look(asked, seen(view(work="stalled", heartbeat_at=long_ago), reply=UNSEEN))
    assert old.rule == "hang.unread"
    assert "its newest heartbeat is 11 min old" in old.reason
    fresh = look(asked, seen(view(work="stalled", heartbeat_at=NOW), reply=UNSEEN))
    assert fresh.rule != "hang.unread"


def test_a_checkpoint_is_not_passed_over_for_an_end_that_other_starts_come_to_as_well() -> None:
    tries = tuple(
        Try(
            number=number,
            name=f"lm-r{number}",
            clone_of="lm",
            at=NOW,
            resume_step=Known(90),
            resume_manifest="m90",
            ended=True,
            died_at_load=True,
        )
        for number in (2, 3)
    )
    ends = tuple(Failure(attempt=one.name, signature="batch 41 is empty", step=Known(90)) for one in tries)
    case = incident(Phase.VERIFYING, FaultClass.SOFTWARE_CRASH, tries=tries, failures=ends)
    assert condemned(case, UNSEEN, DEFAULT_POLICY) is not None
    first = Failure(attempt="lm", signature="batch 41 is empty", step=Known(91))
    assert (
        condemned(
            dataclasses.replace(case, resubmission=dataclasses.replace(case.resubmission, failures=(first, *ends))),
            UNSEEN,
            DEFAULT_POLICY,
        )
        is None
    )


@pytest.mark.parametrize(("onset", "before"), [(130, 130), (103, 100), (98, 98)])
def test_a_loss_that_goes_bad_well_past_the_first_onset_is_another_one(onset: int, before: int) -> None:
    case = incident(
        Phase.VERIFYING,
        FaultClass.NON_FINITE,
        onsets=(Onset(attempt="lm", fault=FaultClass.NON_FINITE, step=Known(100)),),
        onset_attempt="lm-r2",
        onset_fault=FaultClass.NON_FINITE,
        onset_step=Known(onset),
    )
    assert onset_to_precede(case) == Known(before)


def test_a_stall_is_not_acted_on_once_the_run_has_reported_that_it_moves_again() -> None:
    moves = signal(None, kind=SignalKind.PROGRESS_RESUMED, at=NOW - timedelta(seconds=30), triggers=False)
    stall = signal(at=NOW - timedelta(minutes=1))
    asked = incident(Phase.CHECKPOINTING, FaultClass.HANG, signals=(stall, moves))
    assert asked.halt.ask is not None
    stuck = dataclasses.replace(
        asked,
        halt=dataclasses.replace(
            asked.halt, ask=dataclasses.replace(asked.halt.ask, outcome="cannot", why="it is stuck")
        ),
    )
    old = seen(view(step=44, heartbeat_at=NOW - timedelta(minutes=9)), reply=UNSEEN)
    held = look(stuck, old)
    assert held.rule == "hang.unread"
    assert not any(isinstance(action, StopJob) for action in held.actions)
    for case, what in (
        (dataclasses.replace(stuck, signals=(*stuck.signals, signal(at=NOW - timedelta(seconds=1)))), old),
        (stuck, seen(view(work="stalled", heartbeat_at=NOW), reply=UNSEEN)),
    ):
        assert look(case, what).rule != "hang.unread"  # stuck once more, by a newer word


def test_a_stall_that_was_over_is_closed_when_no_other_is_reported() -> None:
    moves = signal(None, kind=SignalKind.PROGRESS_RESUMED, at=NOW - timedelta(minutes=11), triggers=False)
    case = incident(
        Phase.HOLDING,
        FaultClass.HANG,
        phase_entered_at=NOW - timedelta(minutes=11),
        signals=(signal(at=NOW - timedelta(minutes=12)), moves),
    )
    asked = dataclasses.replace(
        case, phase=Phase.CHECKPOINTING, halt=incident(Phase.CHECKPOINTING, FaultClass.HANG).halt
    )
    over = look(asked, seen(view(step=44, heartbeat_at=NOW - timedelta(minutes=20)), reply=UNSEEN))
    assert (over.rule, over.incident.phase) == ("hang.moves_again", Phase.STOPPED)


def test_an_end_that_is_announced_for_another_day_is_told_and_nothing_else() -> None:
    def announced(ahead: timedelta) -> Decision:
        starts_at = (NOW + ahead).isoformat()
        notice = signal(
            FaultClass.PLANNED_END,
            kind=SignalKind.HEALTH_NOTICE,
            source=SignalSource.HEALTH,
            node="gpu-2",
            evidence={"starts_at": starts_at, "ends_at": (NOW + timedelta(days=30)).isoformat()},
        )
        return look(incident(), seen(view(), new_signals=(notice,)))

    far = announced(timedelta(days=9))
    assert (far.rule, far.incident.phase) == ("notice.far_off", Phase.STOPPED)
    assert [action.severity for action in far.actions if isinstance(action, Notify)] == [Severity.WARNING]
    near = announced(timedelta(minutes=50))
    assert near.rule == "playbook.checkpoint"


@pytest.mark.parametrize(
    ("ago", "rule"), [(MINUTE, "verify.last_heartbeat"), (16 * MINUTE, "verify.completed_unseen")], ids=str
)
def test_a_new_attempt_that_completed_while_its_heartbeat_cannot_be_read_is_no_recovery(
    ago: timedelta, rule: str
) -> None:
    """Nor where the step at which the old one ended is not known."""
    case = incident(Phase.VERIFYING, FaultClass.PLANNED_END, target_step=Unknown("never seen"))
    ended = view(AttemptStatus.COMPLETED, name="lm-r2", step=None, is_heartbeat_unread=True, ended_at=NOW - ago)
    assert look(case, seen(ended)).rule == rule
