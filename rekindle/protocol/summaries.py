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
from typing import Any, ClassVar, Final

from rekindle.compat import Self
from rekindle.protocol.reports import MAX_REPORT_BYTES, MAX_REPORT_STACKS_CHARS, RankReport, ReportKind, report_prefix
from rekindle.protocol.wire import MAX_RANK, MailboxError, Message, Reader

SUMMARISED_ABOVE: Final = 1024  # ranks; the reports of fewer are read one by one
RANKS_PER_HOST: Final = 8  # Source: EC2's p4d, p4de, p5, p5e, p5en and p6-b200 have eight GPUs
MAX_SUMMARIES: Final = 2048  # of one kind and attempt
MAX_RANKS: Final = 128  # in one summary: of runs with more than 262,144 ranks there is none
SUMMARISED: Final = frozenset({ReportKind.STALL, ReportKind.NON_FINITE})
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


def summary_prefix(attempt: str, kind: ReportKind) -> str:
    """With what the keys of an attempt's summaries of one kind begin. Raises: MailboxError for a bad id."""
    return f"{report_prefix(attempt)}hosts-{kind.value}-"


def summary_key(attempt: str, kind: ReportKind, first_rank: int) -> str:
    """Raises: MailboxError for a bad id or rank."""
    if isinstance(first_rank, bool) or not 0 <= first_rank <= MAX_RANK:
        raise MailboxError("first_rank", f"must be 0 to {MAX_RANK}")
    return f"{summary_prefix(attempt, kind)}{first_rank:05d}.json"


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
class HostSummary(Message):
    """One report of each rank of a host that has one, with its age in seconds when this was written.

    Ages are by the store's clock where it tells, so that no two hosts' clocks are compared; `at` of a report is by its
    own host's, and tells it from an earlier one. Of the stacks only the training thread's, of all ranks together no
    more than of one rank's own report; equal ones stand there once.
    """

    LIMIT_BYTES: ClassVar[int] = MAX_REPORT_BYTES

    kind: ReportKind
    job_id: str
    attempt: str
    first_rank: int
    world_size: int
    at: datetime
    reports: tuple[tuple[float, RankReport], ...]

    @classmethod
    def of(cls, kind: ReportKind, aged: Iterable[tuple[float, RankReport]], *, at: datetime) -> Self:
        """Of at least one report, all of one attempt and of ranks beside each other; their stacks are cut here."""
        given = sorted(((age_s, _lean(report)) for age_s, report in aged), key=lambda one: one[1].rank)
        different = len({report.stacks for _, report in given})
        most = MAX_REPORT_STACKS_CHARS // max(1, different)
        first = given[0][1]
        return cls(
            kind=kind,
            job_id=first.job_id,
            attempt=first.attempt,
            first_rank=ranks_beside(first.rank, first.world_size).start,
            world_size=first.world_size,
            at=at,
            reports=tuple((age_s, replace(report, stacks=report.stacks[-most:])) for age_s, report in given),
        )

    @property
    def key(self) -> str:
        return summary_key(self.attempt, self.kind, self.first_rank)

    def dated(self, written_at: datetime | None) -> tuple[RankReport, ...]:
        """The reports, each with the time at which it was written, by the clock of `written_at`: when this one was."""
        now = written_at or self.at
        return tuple(replace(report, at=now - timedelta(seconds=age_s)) for age_s, report in self.reports)

    def to_wire(self) -> dict[str, Any]:
        stacks = sorted({report.stacks for _, report in self.reports if report.stacks})
        place = {text: index for index, text in enumerate(stacks)}
        return {
            "kind": self.kind.value,
            "job_id": self.job_id,
            "attempt": self.attempt,
            "first_rank": self.first_rank,
            "world_size": self.world_size,
            "at": self.at.isoformat(),
            "stacks": stacks,
            "ranks": [
                {
                    "rank": report.rank,
                    "kind": report.kind.value,
                    "age_s": age_s,
                    "at": report.at.isoformat(),
                    "host": report.host,
                    "step": report.step,
                    "phase": report.phase,
                    "silent_s": report.silent_s,
                    "metric": report.metric,
                    "stacks": place.get(report.stacks),
                }
                for age_s, report in self.reports
            ],
        }

    @classmethod
    def from_reader(cls, reader: Reader) -> Self:
        world_size = reader.whole("world_size", 1, MAX_RANK)
        span = ranks_in_summary(world_size)
        first = reader.whole("first_rank", 0, world_size - 1)
        if not span or first % span:
            raise MailboxError("first_rank", f"is not the first rank of a summary in a run of {world_size}")
        stacks = [_stack(index, text) for index, text in enumerate(reader.items("stacks", span))]
        job_id, attempt, at = reader.identity("job_id"), reader.identity("attempt"), reader.moment("at")
        ranks = ranks_beside(first, world_size)
        reports: dict[int, tuple[float, RankReport]] = {}
        for index, item in enumerate(reader.items("ranks", span)):
            if not isinstance(item, dict):
                raise MailboxError(f"ranks[{index}]", "must be an object")
            inner = Reader(item, f"ranks[{index}].")
            number = inner.optional_whole("stacks", 0, len(stacks) - 1)
            report = RankReport.from_reader(
                Reader(
                    item
                    | {"job_id": job_id, "attempt": attempt, "world_size": world_size}
                    | {"stacks": "" if number is None else stacks[number]},
                    f"ranks[{index}].",
                )
            )
            if report.rank not in ranks or report.rank in reports:
                raise MailboxError(f"ranks[{index}].rank", "is another host's, or stands there twice")
            reports[report.rank] = (inner.number("age_s", 0.0, MAX_AGE_S), report)
        kind = reader.word("kind", ReportKind)
        if kind not in SUMMARISED or not reports:
            raise MailboxError("kind", "is not one of which there are summaries, or no rank stands in it")
        return cls(
            kind=kind,
            job_id=job_id,
            attempt=attempt,
            first_rank=first,
            world_size=world_size,
            at=at,
            reports=tuple(reports[rank] for rank in sorted(reports)),
        )


def _stack(index: int, text: object) -> str:
    if not isinstance(text, str) or len(text) > MAX_REPORT_STACKS_CHARS:
        raise MailboxError(f"stacks[{index}]", f"must be a string of at most {MAX_REPORT_STACKS_CHARS} characters")
    return text


def _lean(report: RankReport) -> RankReport:
    """With the training thread's stack alone, which is reported last (`rekindle.monitor.base.stacks`)."""
    begins = report.stacks.rfind(_MAIN_THREAD)
    return replace(report, stacks=report.stacks[begins:] if begins > 0 else report.stacks, step_s=None)
