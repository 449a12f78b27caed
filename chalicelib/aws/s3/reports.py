"""The ranks' own reports in S3, of small runs one by one, of large ones by their hosts' summaries first.

16,384 objects are too many for one observation. Their hosts' summaries are 2,048 (`rekindle.protocol.summaries`); of
single ranks only what no summary tells is read after that: a rank that reported after its host's summary was written,
one whose host has none, and where the mute ones run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, TypeVar

from chalicelib.aws.s3.objects import MAX_LISTED, Listed, Page, S3Objects
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from rekindle.protocol.reports import (
    MAX_REPORT_BYTES,
    RankReport,
    ReportKey,
    ReportKind,
    parse_report_key,
    report_key,
    report_prefix,
)
from rekindle.protocol.summaries import MAX_SUMMARIES, HostSummary, parse_summary_name, summary_prefix
from rekindle.protocol.wire import MailboxError, Place

_LOG = logging.getLogger(__name__)

MAX_READS: Final = 4096  # objects in one look: 2,048 summaries, and as many single ranks'
MAX_PLACES: Final = 256  # mute ranks of which it is asked where they run: a verdict on more names no host
READERS: Final = 10  # as many connections as a client of boto3 keeps; Source: botocore, max_pool_connections
SAME_S: Final = timedelta(seconds=3)  # S3 dates to the second, and both dates of one report are taken from its answers

_T = TypeVar("_T")


@dataclass(slots=True)
class _Found:
    """Summaries' keys, and of each rank its own report that tells most. is_large: paces may lie there beside."""

    summaries: list[str] = field(default_factory=list)
    own: dict[int, tuple[ReportKey, datetime]] = field(default_factory=dict)
    is_large: bool = False


class S3Reports:
    """Raises what `S3Objects` raises."""

    def __init__(self, objects: S3Objects) -> None:
        self._objects = objects

    def of(self, job: Job, root: Place, attempt: str, kind: ReportKind, life: int) -> Maybe[tuple[RankReport, ...]]:
        """See ports.Mailbox.reports. A report that cannot be read is left out: its rank then counts as silent."""
        found = self._listed(root, attempt, kind, life)
        if len(found.summaries) > MAX_SUMMARIES:  # no run of ours writes so many
            return Unknown(
                f"there are {len(found.summaries)} summaries of hosts, more than the {MAX_SUMMARIES} of a run"
            )
        summaries = self._read_all(found.summaries, lambda key: self._summary(job, attempt, root.join(key)))
        reported = {report.rank: report for reports in summaries for report in reports}
        wanted = [
            report_key(attempt, key.kind, rank, life)
            for rank, (key, written_at) in found.own.items()
            if _is_news(key, written_at, reported.get(rank), kind)
        ]
        if len(found.summaries) + len(wanted) > MAX_READS:
            return Unknown(
                f"{len(wanted)} ranks' reports are in no summary of their hosts, too many for one observation"
            )
        if found.is_large and reported:
            world_size = max(report.world_size for report in reported.values())
            mute = [rank for rank in range(world_size) if rank not in reported and rank not in found.own]
            wanted += [report_key(attempt, ReportKind.PACE, rank, life) for rank in mute[:MAX_PLACES]]
        own = self._read_all(wanted, lambda key: self._report(job, attempt, root.join(key)))
        return Known(tuple((reported | {report.rank: report for report in own}).values()))

    def _listed(self, root: Place, attempt: str, kind: ReportKind, life: int) -> _Found:
        """Of each rank its own word of that kind, where there is one."""
        folder = root.join(report_prefix(attempt, life))
        page = self._objects.page(folder)
        found, listed = _Found(), list(page.objects)
        if page.token is not None:
            summaries = list(self._objects.below(root.join(summary_prefix(attempt, kind, life)), folder=False))
            found.is_large = bool(summaries)
            listed = [*summaries, *self._of_kind(folder, kind)] if summaries else [*listed, *self._after(folder, page)]
        for item in listed:
            name, key = parse_summary_name(item.key), parse_report_key(item.key)
            if name is not None and name.kind is kind:
                found.summaries.append(f"{report_prefix(attempt, life)}{item.key.rpartition('/')[2]}")
            if key is None or (key.attempt, key.life) != (attempt, life):
                continue
            there = found.own.get(key.rank)
            if there is None or key.kind is kind or there[0].kind is not kind:
                found.own[key.rank] = key, item.modified_at
        return found

    def _after(self, folder: Place, page: Page) -> Iterable[Listed]:
        listed = 0
        while page.token is not None and listed < MAX_LISTED:
            page = self._objects.page(folder, page.token)
            listed += len(page.objects)
            yield from page.objects

    def _of_kind(self, folder: Place, kind: ReportKind) -> Iterable[Listed]:
        """Paces are not listed: of a large run they are a page per thousand ranks, and the summaries know the hosts."""
        return self._objects.below(Place(bucket=folder.bucket, path=f"{folder.path}{kind.value}-"), folder=False)

    def _read_all(self, keys: Sequence[str], read: Callable[[str], _T | None]) -> list[_T]:
        """Side by side, because every second of a hang costs as many GPUs as there are ranks."""
        with ThreadPoolExecutor(max_workers=READERS) as readers:
            return [report for report in readers.map(read, keys) if report is not None]

    def _summary(self, job: Job, attempt: str, place: Place) -> tuple[RankReport, ...] | None:
        raw, written_at = self._objects.read_dated(place, MAX_REPORT_BYTES)
        try:
            summary = HostSummary.from_json(raw or b"")
            _check(job, attempt, summary.job_id, summary.attempt)
        except MailboxError as err:
            _LOG.warning(
                "the summary of a host's reports cannot be used", extra={"key": place.path, "field": err.field}
            )
            return None
        return summary.dated(written_at)

    def _report(self, job: Job, attempt: str, place: Place) -> RankReport | None:
        raw, written_at = self._objects.read_dated(place, MAX_REPORT_BYTES)
        if raw is None:
            return None
        try:
            report = RankReport.from_json(raw)
            _check(job, attempt, report.job_id, report.attempt)
        except MailboxError as err:
            _LOG.warning("a rank's report cannot be used", extra={"key": place.path, "field": err.field})
            return None
        return report if written_at is None else replace(report, at=written_at)


def _is_news(own: ReportKey, written_at: datetime, reported: RankReport | None, kind: ReportKind) -> bool:
    """Whether the rank's own report says more than its host's summary says of it."""
    if reported is None:
        return True
    return own.kind is kind and (reported.kind is not kind or written_at > reported.at + SAME_S)


def _check(job: Job, attempt: str, named_job: str, named_attempt: str) -> None:
    """Raises: MailboxError."""
    if named_attempt != attempt:
        raise MailboxError("attempt", f"is {named_attempt}")
    if not job.is_named(named_job, attempt=attempt):
        raise MailboxError("job_id", f"is {named_job}")
