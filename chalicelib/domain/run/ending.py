"""Whether a run that its platform calls completed has finished: weighed, not believed. Pure.

| by its monitor | a step or its script has crashed | the verdict |
|---|---|---|
| finished | | finished |
| not finished | yes | failed, and recovered |
| not finished | no, and it wrote its last heartbeat as it ended | finished: its script does not call `finish` |
| not finished | no, and it wrote none as it ended | nothing proves it: a person |
| cannot be read | no | nothing proves it: a person |
| no monitor | yes | nothing proves it: a person |
| no monitor | no | finished, by its codes |
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.model.observation import FINISHED, AttemptStatus, AttemptView, FailureVerdict
from rekindle.protocol.signals import FaultClass

SETTLES: Final = timedelta(minutes=2)  # by when a run's last heartbeat has come, also from a shared path
SILENT_CRASH: Final = FailureVerdict(fault=FaultClass.SOFTWARE_CRASH, rule="ending.crashed")


def doubt(view: AttemptView) -> str:
    """Why its success is in doubt; empty where it has not completed, or has finished."""
    if view.status is not AttemptStatus.COMPLETED or view.work == FINISHED:
        return ""
    if how := crashed(view):
        return f"{how}, although the job's own exit code is 0"
    if view.heartbeat_at is not None and not view.is_heartbeat_last:
        return "its monitor has not said that it finished, nor that its script came to its end"
    if view.is_heartbeat_unread:
        return "what its monitor wrote last cannot be read"
    return ""


def crashed(view: AttemptView) -> str:
    """How a part of it ended; empty where nothing crashed."""
    if view.start is not None and view.start.step_end:
        return f"a step ended with {view.start.step_end}"
    return f"its script ended by {view.died_of}" if view.died_of else ""


def is_settled(view: AttemptView, now: datetime) -> bool:
    """What its monitor wrote last has come by now; without a mailbox there is nothing to come."""
    has_no_mailbox = view.start is not None and not view.start.has_mailbox and not view.is_heartbeat_unread
    if view.heartbeat_at is None and has_no_mailbox:
        return True
    return view.ended_at is None or view.is_heartbeat_last or now - view.ended_at >= SETTLES


def judged(view: AttemptView, *, now: datetime) -> AttemptView:
    """As failed, where the run has a monitor that does not call it finished, and a step or its script has crashed; as
    still ending, while the monitor's last word may be on its way."""
    why = doubt(view)
    if not why or view.heartbeat_at is None or not crashed(view):
        return view
    if not is_settled(view, now):
        return replace(view, status=AttemptStatus.STOPPING, detail=f"{why}; its last heartbeat is waited for")
    return replace(view, status=AttemptStatus.FAILED, failure_reason=why, failure=SILENT_CRASH)
