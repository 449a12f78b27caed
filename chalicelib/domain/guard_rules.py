"""What a policy says about holding back: which steps people are asked about, and at what hours nothing is done. Data.

Both are lists of rows; an empty list holds nothing back. Readers raise InvalidPolicy, which names the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

from chalicelib.domain.approvals import ApprovalAnswer
from chalicelib.domain.errors import InvalidPolicy
from chalicelib.domain.faults import FaultClass
from chalicelib.domain.policy_readers import count, duration, number, text

MAX_ROWS: Final = 20
Row = TypeVar("Row")
Word = TypeVar("Word", bound=StrEnum)
DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK: Final = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_DEFAULTS: Final = {"approve": ApprovalAnswer.APPROVED, "deny": ApprovalAnswer.DENIED}
_WORD_OF: Final = {answer: word for word, answer in _DEFAULTS.items()}


class Harm(StrEnum):
    """Actions that may cost more than they save: what a guard can hold back. The rest asks, tells or undoes.

    Source: DESIGN §7; what each of them ends, spends or takes away is told in docs/guardrails.md.
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
class ApprovalRule:
    """One row: people are asked about a step to which every given condition applies; none given, about each.

    actions, faults   the step is one of these, the Incident's fault one of those; empty: any
    min_nodes         it takes at least so many nodes out of their work
    min_gpu_hours     it throws away at least so many GPU-hours of training
    deadline, default what counts when nobody has answered in time

    What is not known is never small: a row asks where its condition cannot be told.
    """

    deadline: timedelta
    default: ApprovalAnswer
    actions: tuple[Harm, ...] = ()
    faults: tuple[FaultClass, ...] = ()
    min_nodes: int | None = None
    min_gpu_hours: float | None = None

    def to_wire(self) -> dict[str, Any]:
        """The row as it stands in a document."""
        when: dict[str, Any] = {}
        if self.actions:
            when["actions"] = [one.value for one in self.actions]
        if self.faults:
            when["faults"] = [one.value for one in self.faults]
        if self.min_nodes is not None:
            when["min_nodes"] = self.min_nodes
        if self.min_gpu_hours is not None:
            when["min_gpu_hours"] = self.min_gpu_hours
        return {"when": when, "deadline_s": self.deadline.total_seconds(), "default": _WORD_OF[self.default]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One row: `actions` are held inside, or outside, of a span of the day on some days of the week. Times are UTC.

    A span whose end is not after its begin ends on the next day; `days` are those on which it begins.
    """

    name: str
    begin: time
    end: time
    days: tuple[str, ...] = DAYS
    holds_outside: bool = False
    actions: tuple[Harm, ...] = ()

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
            begin, end = (day + timedelta(hours=one.hour, minutes=one.minute) for one in (self.begin, self.end))
            found.append((begin, end if end > begin else end + timedelta(days=1)))
        return _joined(found)

    def to_wire(self) -> dict[str, Any]:
        """The row as it stands in a document."""
        return {
            "name": self.name,
            "from": f"{self.begin:%H:%M}",
            "to": f"{self.end:%H:%M}",
            "days": list(self.days),
            "holds": "outside" if self.holds_outside else "inside",
            "actions": [one.value for one in self.actions],
        }


def _joined(spans: list[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Spans that touch are one: what is held by both is not let go between them."""
    found: list[tuple[datetime, datetime]] = []
    for begin, end in spans:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def read_approvals(key: str, value: Any) -> tuple[ApprovalRule, ...]:
    """The field `approvals`."""
    return _rows(key, value, _approval)


def read_windows(key: str, value: Any) -> tuple[Window, ...]:
    """The field `windows`."""
    return _rows(key, value, _window)


def _rows(key: str, value: Any, read: Callable[[str, Mapping[str, Any]], Row]) -> tuple[Row, ...]:
    if not isinstance(value, list) or len(value) > MAX_ROWS:
        raise InvalidPolicy(key, f"must be a list of at most {MAX_ROWS} rows")
    found = []
    for index, row in enumerate(value):
        if not isinstance(row, Mapping):
            raise InvalidPolicy(f"{key}[{index}]", "must be an object")
        found.append(read(f"{key}[{index}]", row))
    return tuple(found)


def _known(path: str, row: Mapping[str, Any], columns: set[str], needed: set[str]) -> None:
    for name in sorted(set(row) - columns):
        raise InvalidPolicy(f"{path}.{name}", "is not a column")
    for name in sorted(needed - set(row)):
        raise InvalidPolicy(f"{path}.{name}", "is missing")


def _approval(path: str, row: Mapping[str, Any]) -> ApprovalRule:
    _known(path, row, {"when", "deadline_s", "default"}, {"deadline_s", "default"})
    if row["default"] not in _DEFAULTS:
        raise InvalidPolicy(f"{path}.default", "must be approve or deny")
    when = row.get("when", {})
    if not isinstance(when, Mapping):
        raise InvalidPolicy(f"{path}.when", "must be an object")
    _known(f"{path}.when", when, {"actions", "faults", "min_nodes", "min_gpu_hours"}, set())
    nodes, hours = when.get("min_nodes"), when.get("min_gpu_hours")
    return ApprovalRule(
        deadline=duration(60, 30 * 86400.0)(f"{path}.deadline_s", row["deadline_s"]),
        default=_DEFAULTS[row["default"]],
        actions=_words(f"{path}.when.actions", when.get("actions", []), Harm),
        faults=_words(f"{path}.when.faults", when.get("faults", []), FaultClass),
        min_nodes=None if nodes is None else count(1, 1_000_000)(f"{path}.when.min_nodes", nodes),
        min_gpu_hours=None if hours is None else number(0, 1e9)(f"{path}.when.min_gpu_hours", hours),
    )


def _window(path: str, row: Mapping[str, Any]) -> Window:
    _known(path, row, {"name", "from", "to", "days", "holds", "actions"}, {"from", "to"})
    if row.get("holds", "inside") not in ("inside", "outside"):
        raise InvalidPolicy(f"{path}.holds", "must be inside or outside")
    days = row.get("days", list(DAYS))
    if not isinstance(days, list) or not days or any(one not in DAYS for one in days):
        raise InvalidPolicy(f"{path}.days", f"must be a list of {', '.join(DAYS)}")
    return Window(
        name=text(f"{path}.name", row.get("name", "maintenance")),
        begin=_clock(f"{path}.from", row["from"]),
        end=_clock(f"{path}.to", row["to"]),
        days=tuple(one for one in DAYS if one in days),
        holds_outside=row.get("holds") == "outside",
        actions=_words(f"{path}.actions", row.get("actions", []), Harm),
    )


def _clock(key: str, value: Any) -> time:
    if not isinstance(value, str) or not _CLOCK.fullmatch(value):
        raise InvalidPolicy(key, "must be a time of day in UTC such as 22:30")
    return time.fromisoformat(value)


def _words(key: str, value: Any, kind: type[Word]) -> tuple[Word, ...]:
    if not isinstance(value, list) or any(one not in list(kind) for one in value):
        raise InvalidPolicy(key, f"must be a list of {', '.join(kind)}")
    return tuple(one for one in kind if one in value)
