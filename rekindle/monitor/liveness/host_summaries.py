"""In runs of more than 1,024 ranks: one object per host with what its ranks reported (`rekindle.protocol.summaries`).

No rank is the host's writer, for that one may be the one that hangs. Each rank of a host that has reported looks
a while later, the first rank first, whether the host's summary holds its report, and writes it again where it does
not: of eight that report together one writes, and seven read it once. A host whose processes are all gone has no
summary, and its ranks count as silent. All I/O is on the reporter's thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from rekindle.monitor.base.run import Clock, Identity
from rekindle.monitor.mail.boxes import Box
from rekindle.protocol.reports import RankReport, ReportKind, report_key
from rekindle.protocol.summaries import MAX_AGE_S, HostSummary, ranks_beside, summary_key
from rekindle.protocol.wire import MailboxError

SETTLE_S: Final = 2.0  # ranks of one host report within their learned limits' differences
TURN_S: Final = 0.5  # between two ranks of a host
LOOK_AGAIN_S: Final = 20.0  # once: two that wrote at the same moment may each have left out the other
LOOKS: Final = 2
_ORDER: Final = {
    ReportKind.STALL: (ReportKind.STALL, ReportKind.PACE),
    ReportKind.NON_FINITE: (ReportKind.NON_FINITE, ReportKind.PACE),
}


@dataclass(slots=True)
class _DueReport:
    """A report of this rank's that the host's summary should hold; when that is looked at, by the monotonic clock."""

    report: RankReport
    at: float
    looks: int = 0


@dataclass(eq=False, kw_only=True)
class HostSummaries:
    """One rank's share in its host's summaries. `reported` and `turn` are for one thread."""

    box: Box
    identity: Identity
    clock: Clock

    def __post_init__(self) -> None:
        self._ranks = ranks_beside(self.identity.rank, self.identity.world_size)
        self._due: dict[ReportKind, _DueReport] = {}

    @property
    def next_at(self) -> float:
        """When there is something to do, by the monotonic clock; infinity where there is nothing."""
        return min((due.at for due in self._due.values()), default=math.inf)

    def reported(self, report: RankReport) -> None:
        """This rank has just written a report of its own."""
        if report.kind not in _ORDER or not self._ranks:
            return
        place = self.identity.rank - self._ranks.start
        self._due[report.kind] = _DueReport(report=report, at=self.clock.monotonic() + SETTLE_S + TURN_S * place)

    def turn(self) -> None:
        """Write the host's summaries where it is this rank's turn to. May raise what the transport raises."""
        for into, due in list(self._due.items()):
            now = self.clock.monotonic()
            if now < due.at:
                continue
            due.looks, due.at = due.looks + 1, now + LOOK_AGAIN_S
            if due.looks >= LOOKS:
                del self._due[into]
            if not self._is_in(into, due.report):
                self._write(into)

    def _is_in(self, into: ReportKind, report: RankReport) -> bool:
        """Whether the summary there holds that report."""
        raw = self.box.get(summary_key(self.identity.attempt, into, self._ranks.start, self.identity.life))
        try:
            there = HostSummary.from_json(raw or b"")
        except MailboxError:
            return False
        wanted = (report.rank, report.kind, report.at)
        return any((known.rank, known.kind, known.at) == wanted for _, known in there.reports)

    def _write(self, into: ReportKind) -> None:
        found = [one for rank in self._ranks if (one := self._newest(into, rank)) is not None]
        if found:
            summary = HostSummary.of(into, found, at=self.clock.now())
            self.box.put(summary.key, summary.to_json())

    def _newest(self, into: ReportKind, rank: int) -> tuple[float, RankReport] | None:
        """What that rank says that tells most, and its age in seconds. A greeting at least tells where it runs."""
        identity = self.identity
        for kind in _ORDER[into]:
            key = report_key(identity.attempt, kind, rank, identity.life)
            raw, age_s = self.box.get_aged(key)
            try:
                report = RankReport.from_json(raw or b"")
            except MailboxError:  # none, or an unreadable one
                continue
            if report.key != key or (report.job_id, report.world_size) != (identity.job_id, identity.world_size):
                continue
            if self.box.is_directory:  # it tells no ages; the ranks of a host share its clock
                age_s = (self.clock.now() - report.at).total_seconds()
            return round(min(max(0.0, age_s), MAX_AGE_S), 3), report
        return None
