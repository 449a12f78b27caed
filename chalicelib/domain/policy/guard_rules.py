"""What a policy says about holding back: which steps people are asked about, and at what hours nothing is done. Data.

Both are lists of rows of a policy document; an empty list holds nothing back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from typing import Final

from chalicelib.domain.model.approvals import ApprovalAnswer
from chalicelib.domain.policy.fields import declared, group, required
from chalicelib.domain.policy.kinds import (
    DAY_S,
    Count,
    Number,
    OneOf,
    OrNone,
    Seconds,
    SomeOf,
    Text,
    TimeOfDay,
    words_of,
)
from rekindle.protocol.signals import FaultClass

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class Harm(StrEnum):
    """Actions that may cost more than they save: what a guard can hold back. The rest asks, tells or undoes.

    docs/guardrails.md#which-actions-can-be-held lists what each of them ends, spends or takes away.
    """

    STOP_JOB = "StopJob"
    RESUBMIT_JOB = "ResubmitJob"
    CORDON_NODE = "CordonNode"
    REBOOT_NODE = "RebootNode"
    REPLACE_NODE = "ReplaceNode"
    CHECK_NODE = "CheckNode"
    QUARANTINE_CHECKPOINT = "QuarantineCheckpoint"
    RESIZE_JOB = "ResizeJob"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalCondition:
    """The steps to which a row applies: those to which every given condition applies; none given, all.

    A row asks where its condition is unknown: an unknown number counts as above the threshold.
    """

    actions: tuple[Harm, ...] = declared((), SomeOf(words_of(Harm)), "the step is one of these; empty: any")
    faults: tuple[FaultClass, ...] = declared(
        (), SomeOf(words_of(FaultClass)), "the Incident's fault is one of these; empty: any"
    )
    min_nodes: int | None = declared(
        None,
        OrNone(Count(1, 1_000_000, "nodes")),
        "it takes at least so many nodes out of their work: all of the run's, or the one",
    )
    min_gpu_hours: float | None = declared(
        None,
        OrNone(Number(0, 1e9, "GPU-hours")),
        "it throws away at least so much training: what was trained since the checkpoint that is resumed from",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRule:
    """One row: which steps people are asked about, for how long, and what counts without an answer."""

    when: ApprovalCondition = group(ApprovalCondition)
    deadline: timedelta = required(Seconds(60, 30 * DAY_S), "how long an answer is waited for")
    default: ApprovalAnswer = required(
        OneOf({"approve": ApprovalAnswer.APPROVED, "deny": ApprovalAnswer.DENIED}),
        "what counts when no one has answered by then",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One row: `actions` are held inside, or outside, of a span of the day on some days of the week. Times are UTC.

    A span whose end is not after its begin ends on the next day; `days` are those on which it begins.
    """

    name: str = declared("maintenance", Text(1, 64), "what the timeline calls it")
    begin: time = required(TimeOfDay(), "when it begins, UTC", key="from")
    end: time = required(TimeOfDay(), "when it ends, UTC; not after `from`: on the next day", key="to")
    days: tuple[str, ...] = declared(
        DAYS, SomeOf({day: day for day in DAYS}, least=1), "the days of the week on which it begins"
    )
    holds_outside: bool = declared(
        False,
        OneOf({"inside": False, "outside": True}),
        "`inside`: the steps are not done within these hours; `outside`: only within them",
        key="holds",
    )
    actions: tuple[Harm, ...] = declared((), SomeOf(words_of(Harm)), "which steps; empty: all")

    def holds_until(self, now: datetime) -> datetime | None:
        """When it stops holding; None where it does not hold at `now`."""
        spans = self._spans(now)
        inside = next((end for begin, end in spans if begin <= now < end), None)
        if not self.holds_outside:
            return inside
        return None if inside is not None else min(begin for begin, _ in spans if begin > now)

    def _spans(self, now: datetime) -> list[tuple[datetime, datetime]]:
        """Those that touch yesterday to a week from now: there is one after `now` among them."""
        found = []
        midnight = datetime.combine(now.astimezone(UTC).date(), time(), tzinfo=UTC)
        for offset in range(-1, 9):
            day = midnight + timedelta(days=offset)
            if DAYS[day.weekday()] not in self.days:
                continue
            begin, end = (day + timedelta(hours=hour.hour, minutes=hour.minute) for hour in (self.begin, self.end))
            found.append((begin, end if end > begin else end + timedelta(days=1)))
        return _joined(found)


def _joined(spans: list[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Spans that touch are one: what is held by both is not let go between them."""
    found: list[tuple[datetime, datetime]] = []
    for begin, end in spans:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found
