"""Reports of single ranks: their stacks when they stall, their first non-finite value, their pace.

    <mailbox>/rekindle/reports/<attempt, with its life>/<kind>-<rank, five digits>.json

Every rank writes its own objects (the other messages of the mailbox are rank 0's), so a rank that hangs can be
distinguished from those that wait for it, and a silent rank shows as a missing object. One object per kind and rank,
overwritten by a later report of the same kind: a job of N ranks never holds more than 4 N of them, and a stall of 4,096
ranks is 4,096 PUTs, about $0.02. Above 1,024 ranks each host writes a summary of them as well
(`rekindle.protocol.summaries`). `rekindle.detectors.ranks` judges them. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, ClassVar, Final

from rekindle.compat import StrEnum
from rekindle.protocol.bounds import Count, Finite, Identity, Items, Rank, Text, WorldSize
from rekindle.protocol.flights import MAX_RAS, Flight, RasSuspect
from rekindle.protocol.lives import OfLife, named, split_name
from rekindle.protocol.message import Message
from rekindle.protocol.wire import FOLDER, MAX_RANK, MailboxError, check_id, is_id

MAX_REPORT_STACKS_CHARS: Final = 16 * 1024  # the main thread's forty frames, and a few others', fit four times
MAX_REPORT_BYTES: Final = 64 * 1024  # JSON may need several bytes for one character
MAX_HOST_CHARS: Final = 255  # Source: RFC 1035, a full domain name
MAX_METRIC_CHARS: Final = 128

_KEY: Final = re.compile(
    rf"(?:(?P<prefix>.*)/)?{FOLDER}/reports/(?P<attempt>[A-Za-z0-9._-]{{1,128}})/"
    r"(?P<kind>[a-z_]{1,32})-(?P<rank>[0-9]{5,8})\.json\Z",
    re.DOTALL,
)


class ReportKind(StrEnum):
    """`stall`: no step for longer than the rank's own limit. `non_finite`: the first bad value of the rank's own.
    `pace`: how long its steps took lately."""

    STALL = "stall"
    NON_FINITE = "non_finite"
    PACE = "pace"


def report_prefix(attempt: str, life: int = 0) -> str:
    """Where the reports of a life lie, relative to the mailbox. Raises: MailboxError for a bad id."""
    return f"{FOLDER}/reports/{check_id(named(attempt, life), 'attempt')}/"


def report_key(attempt: str, kind: ReportKind, rank: int, life: int = 0) -> str:
    """Raises: MailboxError for a bad id or rank."""
    if isinstance(rank, bool) or not 0 <= rank <= MAX_RANK:
        raise MailboxError("rank", f"must be 0 to {MAX_RANK}")
    return f"{report_prefix(attempt, life)}{kind.value}-{rank:05d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportKey:
    attempt: str
    kind: ReportKind
    rank: int
    life: int = 0


def parse_report_key(key: str) -> ReportKey | None:
    """What a key stands for, or None for a key that is no report's."""
    match = _KEY.match(key)
    if match is None or not is_id(match["attempt"]) or match["kind"] not in set(ReportKind):
        return None
    attempt, life = split_name(match["attempt"])
    return ReportKey(attempt=attempt, kind=ReportKind(match["kind"]), rank=int(match["rank"]), life=life)


HostName = Annotated[str, Text(MAX_HOST_CHARS)]
PhaseName = Annotated[str, Text(32)]
MetricName = Annotated[str, Text(MAX_METRIC_CHARS)]
Stacks = Annotated[str, Text(MAX_REPORT_STACKS_CHARS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport(OfLife, Message):
    """One rank about itself.

    `step` is the last step that this rank finished (None: not one yet); for `non_finite` the step of the bad value.
    `silent_s` (how long it has not moved), `stacks`, `flight` (what its flight recorder holds) and `ras` (what NCCL's
    RAS answers there) belong to a stall, `metric` to a value that is not finite, `step_s` (the median seconds per step,
    waiting for other ranks left out where the rank can tell) to a pace.
    Innermost frame last, main thread last.
    """

    LIMIT_BYTES: ClassVar[int] = MAX_REPORT_BYTES

    kind: ReportKind
    job_id: Identity
    attempt: Identity
    rank: Rank
    world_size: WorldSize
    host: HostName = ""
    at: datetime
    step: Count | None = None
    phase: PhaseName = ""
    silent_s: Finite | None = None
    metric: MetricName | None = None
    stacks: Stacks = ""
    step_s: Finite | None = None
    flight: Flight | None = None
    ras: Annotated[tuple[RasSuspect, ...], Items(MAX_RAS)] = ()
    life: Count = 0

    @property
    def key(self) -> str:
        return report_key(self.attempt, self.kind, self.rank, self.life)

    def check_fields(self) -> None:
        """Raises: MailboxError for a rank that a run of that size does not have."""
        if self.rank >= self.world_size:
            raise MailboxError("rank", f"must be a whole number from 0 to {self.world_size - 1}")
