"""What people are asked before it is done, and what has held a recovery back. Data on the Incident; pure.

An Approval covers one step of a recovery, by its `key`: asked once, answered once by a person or, at its deadline, by
the policy's default. A Hold is the line that says which guard kept something from being done, and since when.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from chalicelib.domain.model.codec import Record
from rekindle.protocol.signals import FaultClass

BREAKER_KEY: Final = "breaker"  # of the question whether the fleet-wide breaker shall be lifted
POLICY: Final = "policy"  # who answered, where no person did
STOP: Final = "stop"  # with what the key of each stop begins


def stop_key(attempt: str, fault: FaultClass) -> str:
    """Of the question whether `attempt` may be stopped for `fault`."""
    return f"{STOP}:{attempt}:{fault}"


class ApprovalAnswer(StrEnum):
    APPROVED = "approved"
    DENIED = "denied"


class Guard(StrEnum):
    """What can hold an Action back."""

    PAUSE = "pause"
    SHADOW = "shadow"
    APPROVAL = "approval"
    DENIED = "denied"
    WINDOW = "window"
    BREAKER = "breaker"
    CATCH_UP = "catch_up"
    REPAIR_BUDGET = "repair_budget"
    RETRY_BUDGET = "retry_budget"
    BACK_OFF = "back_off"
    LADDER = "ladder"
    SUSPECT_HARDWARE = "suspect_hardware"
    PROVENANCE = "provenance"
    STALE = "stale"
    DEFERENCE = "deference"
    DATA_LOSS = "data_loss"

    @property
    def stops_the_clock(self) -> bool:
        """No limit of the recovery runs while it holds. A pause keeps its own time (Incident.paused_since)."""
        return self in (Guard.APPROVAL, Guard.WINDOW, Guard.BREAKER, Guard.CATCH_UP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval(Record):
    """One question to people.

    `approval_id` is unique in its Incident. `key` names what it covers, so that the same step is never asked for twice.
    `what` is what will be done and `why` which rule asks, both for people; `actions` are the Actions' names. `default`
    is what counts at `deadline_at` without an answer; `answer` is None until then. `by` is who answered, "policy" for
    the default; `comment` is their comment. `phase` is the Incident's own when it was asked. `notified`: the question
    is known to have been delivered. `lapsed_at` is when it ceased to be about anything: what it covers was done, or is
    not wanted any more. From then on it covers nothing.
    """

    approval_id: str
    key: str
    actions: tuple[str, ...]
    what: str
    why: str
    asked_at: datetime
    deadline_at: datetime
    default: ApprovalAnswer
    answer: ApprovalAnswer | None = None
    by: str = ""
    answered_at: datetime | None = None
    comment: str = ""
    phase: str = ""
    notified: bool = False
    lapsed_at: datetime | None = None

    @property
    def is_pending(self) -> bool:
        """Not answered, its deadline not acted upon, and still about something."""
        return self.answer is None and self.lapsed_at is None

    @property
    def covers(self) -> bool:
        """It was approved, and still stands for what it was about."""
        return self.answer is ApprovalAnswer.APPROVED and self.lapsed_at is None

    @property
    def forbids(self) -> bool:
        """It was denied, and still stands for what it was about."""
        return self.answer is ApprovalAnswer.DENIED and self.lapsed_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Record):
    """A guard that held something back. `until` is when it stopped doing so; None: it still does.

    `actions` are the names of the Actions that were not carried out; `text` is the reason, for people.
    """

    guard: Guard
    since: datetime
    text: str
    actions: tuple[str, ...] = ()
    until: datetime | None = None
