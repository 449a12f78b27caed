"""What the ranks of one host say of themselves, in one object: so that a stall of 16,384 ranks is read in 2,048 reads.

    <mailbox>/rekindle/reports/<attempt>/hosts-<kind>-<first rank, five digits>.json

Written beside the ranks' own reports (`rekindle.protocol.reports`) in runs of more than SUMMARISED_ABOVE ranks, by any
living rank of the host (`rekindle.monitor.liveness.host_summaries`), overwritten by a later one. A host is eight
consecutive ranks, as on p4d and p5; where hosts have fewer or more, a summary is of several hosts or of a part of one,
and each rank's own host stands in it. Above 16,384 ranks a summary holds more of them, so that there are never more
than MAX_SUMMARIES. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Annotated, ClassVar, Final

from rekindle.compat import Self
from rekindle.protocol.bounds import Count, Finite, Identity, Items, Number, Rank, Whole, WorldSize
from rekindle.protocol.codec import Document
from rekindle.protocol.flights import MAX_GROUPS, MAX_RAS, Flight, RasSuspect
from rekindle.protocol.lives import OfLife
from rekindle.protocol.message import Message
from rekindle.protocol.reports import (
    MAX_REPORT_BYTES,
    MAX_REPORT_STACKS_CHARS,
    HostName,
    MetricName,
    PhaseName,
    RankReport,
    ReportKind,
    Stacks,
    report_prefix,
)
from rekindle.protocol.wire import MAX_RANK, MailboxError

SUMMARISED_ABOVE: Final = 1024  # ranks; the reports of fewer are read one by one
RANKS_PER_HOST: Final = 8  # Source: EC2's p4d, p4de, p5, p5e, p5en and p6-b200 have eight GPUs
MAX_SUMMARIES: Final = 2048  # of one kind and attempt
MAX_RANKS: Final = 128  # in one summary: of runs with more than 262,144 ranks there is none
SUMMARISED: Final = frozenset({ReportKind.STALL, ReportKind.NON_FINITE})
MAX_FLIGHTS: Final = (
    16  # different ones in one summary: ranks that wait for one hold the same, stages of a pipeline not
)
MAX_AGE_S: Final = 10.0 * 365 * 86400

_NAME: Final = re.compile(r"hosts-(?P<kind>[a-z_]{1,32})-(?P<rank>[0-9]{5,8})\.json\Z")
_MAIN_THREAD: Final = "Thread MainThread:"


def ranks_in_summary(world_size: int) -> int:
    """How many consecutive ranks stand in one summary; 0 where none is written."""
    if world_size <= SUMMARISED_ABOVE:
        return 0
    span = RANKS_PER_HOST
    while span * MAX_SUMMARIES < world_size:
        span *= 2
    return span if span <= MAX_RANKS else 0


def ranks_beside(rank: int, world_size: int) -> range:
    """The ranks in whose summary `rank` stands, itself among them; empty where none is written."""
    span = ranks_in_summary(world_size)
    first = rank - rank % span if span else 0
    return range(first, min(first + span, world_size) if span else 0)


def summary_prefix(attempt: str, kind: ReportKind, life: int = 0) -> str:
    """With what the keys of an attempt's summaries of one kind begin. Raises: MailboxError for a bad id."""
    return f"{report_prefix(attempt, life)}hosts-{kind.value}-"


def summary_key(attempt: str, kind: ReportKind, first_rank: int, life: int = 0) -> str:
    """Raises: MailboxError for a bad id or rank."""
    if isinstance(first_rank, bool) or not 0 <= first_rank <= MAX_RANK:
        raise MailboxError("first_rank", f"must be 0 to {MAX_RANK}")
    return f"{summary_prefix(attempt, kind, life)}{first_rank:05d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryName:
    """Which summary of an attempt: of what, and from which rank on."""

    kind: ReportKind
    first_rank: int


def parse_summary_name(key: str) -> SummaryName | None:
    """What the last part of a key in an attempt's folder of reports stands for; None for what is no summary."""
    match = _NAME.match(key.rpartition("/")[2])
    if match is None or match["kind"] not in SUMMARISED:
        return None
    return SummaryName(kind=ReportKind(match["kind"]), first_rank=int(match["rank"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLine(Document):
    """What one rank reported, `age_s` seconds before the summary was written. `stacks` and `flight` are places in the
    summary's.
    """

    rank: Rank
    kind: ReportKind
    age_s: Annotated[float, Number(0.0, MAX_AGE_S)]
    at: datetime
    host: HostName = ""
    step: Count | None = None
    phase: PhaseName = ""
    silent_s: Finite | None = None
    metric: MetricName | None = None
    stacks: Annotated[int, Whole(0, MAX_RANKS - 1)] | None = None
    flight: Annotated[int, Whole(0, MAX_FLIGHTS - 1)] | None = None
    ras: Annotated[tuple[RasSuspect, ...], Items(MAX_RAS)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSummary(OfLife, Message):
    """One report of each rank of a host that has one, with its age in seconds when this was written.

    Ages are by the store's clock where it tells, so that no two hosts' clocks are compared; `at` of a report is by its
    own host's, and tells it from an earlier one. Of the stacks only the training thread's, of all ranks together no
    more than of one rank's own report, and so it is with the flight recorders' groups; equal ones stand there once.
    """

    LIMIT_BYTES: ClassVar[int] = MAX_REPORT_BYTES

    kind: ReportKind
    job_id: Identity
    attempt: Identity
    first_rank: Rank
    world_size: WorldSize
    at: datetime
    stacks: Annotated[tuple[Stacks, ...], Items(MAX_RANKS)]
    ranks: Annotated[tuple[RankLine, ...], Items(MAX_RANKS)]
    flights: Annotated[tuple[Flight, ...], Items(MAX_FLIGHTS)] = ()
    life: Count = 0

    @classmethod
    def of(cls, kind: ReportKind, aged: Iterable[tuple[float, RankReport]], *, at: datetime) -> Self:
        """Of at least one report, all of one attempt and of ranks beside each other; their stacks are cut here."""
        given = sorted(((age_s, _lean(report)) for age_s, report in aged), key=lambda pair: pair[1].rank)
        most = MAX_REPORT_STACKS_CHARS // max(1, len({report.stacks for _, report in given}))
        stacks = sorted({report.stacks[-most:] for _, report in given if report.stacks})
        place = {text: index for index, text in enumerate(stacks)}
        flights = list(dict.fromkeys(report.flight for _, report in given if report.flight is not None))[:MAX_FLIGHTS]
        groups = MAX_GROUPS // max(1, len(flights))
        first = given[0][1]
        return cls(
            kind=kind,
            job_id=first.job_id,
            attempt=first.attempt,
            first_rank=ranks_beside(first.rank, first.world_size).start,
            world_size=first.world_size,
            at=at,
            stacks=tuple(stacks),
            ranks=tuple(
                RankLine(
                    rank=report.rank,
                    kind=report.kind,
                    age_s=age_s,
                    at=report.at,
                    host=report.host,
                    step=report.step,
                    phase=report.phase,
                    silent_s=report.silent_s,
                    metric=report.metric,
                    stacks=place.get(report.stacks[-most:]),
                    flight=flights.index(report.flight) if report.flight in flights else None,
                    ras=report.ras,
                )
                for age_s, report in given
            ),
            flights=tuple(flight.cut_to(groups) for flight in flights),
            life=first.life,
        )

    @property
    def key(self) -> str:
        return summary_key(self.attempt, self.kind, self.first_rank, self.life)

    @property
    def reports(self) -> tuple[tuple[float, RankReport], ...]:
        """The reports by rank, each with its age in seconds."""
        return tuple((line.age_s, self._report(line)) for line in sorted(self.ranks, key=lambda line: line.rank))

    def dated(self, written_at: datetime | None) -> tuple[RankReport, ...]:
        """The reports, each with the time at which it was written, by the clock of `written_at`: when this one was."""
        now = written_at or self.at
        return tuple(replace(report, at=now - timedelta(seconds=age_s)) for age_s, report in self.reports)

    def check_fields(self) -> None:
        """Raises: MailboxError for ranks that do not stand together in a summary of this kind and size."""
        span = ranks_in_summary(self.world_size)
        if not span or self.first_rank >= self.world_size or self.first_rank % span:
            raise MailboxError("first_rank", f"is not the first rank of a summary in a run of {self.world_size}")
        if max(len(self.stacks), len(self.ranks)) > span:
            raise MailboxError("ranks", f"are more than the {span} of one summary")
        if self.kind not in SUMMARISED or not self.ranks:
            raise MailboxError("kind", "is not one of which there are summaries, or no rank stands in it")
        left = set(ranks_beside(self.first_rank, self.world_size))
        for index, line in enumerate(self.ranks):
            if line.rank not in left:
                raise MailboxError(f"ranks.{index}.rank", "is another host's, or stands there twice")
            if line.stacks is not None and line.stacks >= len(self.stacks):
                raise MailboxError(f"ranks.{index}.stacks", f"is none of the {len(self.stacks)}")
            if line.flight is not None and line.flight >= len(self.flights):
                raise MailboxError(f"ranks.{index}.flight", f"is none of the {len(self.flights)}")
            left.remove(line.rank)

    def _report(self, line: RankLine) -> RankReport:
        return RankReport(
            kind=line.kind,
            job_id=self.job_id,
            attempt=self.attempt,
            rank=line.rank,
            world_size=self.world_size,
            host=line.host,
            at=line.at,
            step=line.step,
            phase=line.phase,
            silent_s=line.silent_s,
            metric=line.metric,
            stacks="" if line.stacks is None else self.stacks[line.stacks],
            flight=None if line.flight is None else self.flights[line.flight],
            ras=line.ras,
            life=self.life,
        )


def _lean(report: RankReport) -> RankReport:
    """With the training thread's stack alone, which is reported last (`rekindle.monitor.base.stacks`)."""
    begins = report.stacks.rfind(_MAIN_THREAD)
    return replace(report, stacks=report.stacks[begins:] if begins > 0 else report.stacks, step_s=None)
