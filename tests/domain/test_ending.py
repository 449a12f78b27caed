"""Whether a run that its platform calls completed has finished."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.start_view import StartView
from chalicelib.domain.run.ending import SETTLES, crashed, doubt, is_settled, judged

NOW = datetime(2035, 1, 1, tzinfo=UTC)
CRASHED_STEP: dict[str, Any] = {"start": StartView(handle="7", step_end="exit code 7")}
WELL: dict[str, Any] = {"start": StartView(handle="7")}
MONITOR: dict[str, Any] = {"heartbeat_at": NOW - timedelta(minutes=5), "work": "training"}


def view(**more: Any) -> AttemptView:
    told = {"name": "lm", "status": AttemptStatus.COMPLETED, "ended_at": NOW - SETTLES} | more
    return AttemptView(**told)


@pytest.mark.parametrize(
    ("facts", "is_doubted", "status"),
    [
        (WELL, False, AttemptStatus.COMPLETED),
        ({}, False, AttemptStatus.COMPLETED),  # a training job without a monitor: its code counts
        (WELL | MONITOR | {"work": "finished"}, False, AttemptStatus.COMPLETED),
        (CRASHED_STEP | MONITOR | {"work": "finished"}, False, AttemptStatus.COMPLETED),
        (WELL | MONITOR | {"is_heartbeat_last": True}, False, AttemptStatus.COMPLETED),
        (CRASHED_STEP, True, AttemptStatus.COMPLETED),
        (WELL | MONITOR, True, AttemptStatus.COMPLETED),
        (WELL | {"is_heartbeat_unread": True}, True, AttemptStatus.COMPLETED),
        (MONITOR, True, AttemptStatus.COMPLETED),  # a training job whose monitor never finished
        (CRASHED_STEP | MONITOR, True, AttemptStatus.FAILED),
        (CRASHED_STEP | MONITOR | {"is_heartbeat_last": True}, True, AttemptStatus.FAILED),
        (WELL | MONITOR | {"is_heartbeat_last": True, "died_of": "RuntimeError"}, True, AttemptStatus.FAILED),
        (CRASHED_STEP | MONITOR | {"ended_at": NOW}, True, AttemptStatus.STOPPING),  # its last word may be on its way
        (CRASHED_STEP | {"status": AttemptStatus.STOPPED}, False, AttemptStatus.STOPPED),
    ],
)
def test_an_ending_is_weighed(facts: dict[str, Any], is_doubted: bool, status: AttemptStatus) -> None:
    seen = view(**facts)
    assert (bool(doubt(seen)), judged(seen, now=NOW).status) == (is_doubted, status)


def test_only_a_monitor_s_last_word_is_waited_for() -> None:
    just_ended = {"ended_at": NOW}
    assert is_settled(view(**CRASHED_STEP | just_ended), NOW)
    assert not is_settled(view(**CRASHED_STEP | MONITOR | just_ended), NOW)
    assert not is_settled(view(start=StartView(handle="7", has_mailbox=True), **just_ended), NOW)
    assert not is_settled(view(**WELL | just_ended, is_heartbeat_unread=True), NOW)
    assert is_settled(view(**CRASHED_STEP | MONITOR), NOW)


def test_what_crashed_is_named() -> None:
    assert crashed(view(**CRASHED_STEP)) == "a step ended with exit code 7"
    failed = judged(view(**CRASHED_STEP | MONITOR), now=NOW)
    assert failed.failure_reason == "a step ended with exit code 7, although the job's own exit code is 0"
