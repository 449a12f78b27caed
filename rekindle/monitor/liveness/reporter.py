"""One rank's own reports: its stall, its first value that is not finite, its pace. On a thread of its own.

Rank 0 also reads all ranks' paces and compares them. A pace is only reported where the script hands over `work_s`:
in synchronous training all ranks' steps take equally long, as each waits for the slowest, so only a rank's own work
tells them apart. The first pace has no seconds: it greets, so that the rank's host is known. Costs: docs/monitor.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from rekindle.detectors.pace import StragglerWatch
from rekindle.detectors.points import Verdict
from rekindle.monitor.base.run import Run
from rekindle.monitor.base.state import median
from rekindle.monitor.base.worker import Worker
from rekindle.monitor.mail.boxes import Box, mailbox_failed
from rekindle.protocol.flights import Flight, RasSuspect
from rekindle.protocol.reports import MAX_METRIC_CHARS, RankReport, ReportKind, report_prefix
from rekindle.protocol.summaries import ranks_beside
from rekindle.protocol.wire import MailboxError

if TYPE_CHECKING:  # in large runs only
    from rekindle.monitor.liveness.host_summaries import HostSummaries

MAX_WAITING = 8
MAX_TRIES = 5
RETRY_S = 5.0
S_PER_RANK = 1.0  # all ranks together report at most one pace a second
GREETING_S_PER_RANK = 0.002  # and 500 greetings, far below what a prefix in S3 takes (3,500 a second)


class Reporter:
    """`stall` and `non_finite` are for any thread and never wait; all I/O is in `turn`."""

    def __init__(
        self,
        run: Run,
        *,
        box: Box,
        phase: Callable[[], str],
        stragglers: StragglerWatch | None,
        on_straggler: Callable[[Verdict, dict[int, RankReport]], None],
    ) -> None:
        self._box = box
        self._identity, self._clock = identity, clock = run.identity, run.clock
        self._state, self._trouble = run.state, run.trouble
        self._phase = phase
        self._on_straggler = on_straggler
        self._waiting: deque[RankReport] = deque(maxlen=MAX_WAITING)
        self._summaries = self._host_summaries()
        self._stalled: RankReport | None = None  # the newest stall of this rank
        self._tries = 0
        self._pace_s = max(run.config.pace_s, S_PER_RANK * identity.world_size)
        # Spread over the window, so that no thousand ranks write in the same second.
        share = identity.rank / identity.world_size
        self._pace_at = clock.monotonic() + self._pace_s * (1 + share)
        self._read_at = clock.monotonic() + self._pace_s * 2.5
        is_alone = identity.world_size == 1
        self._greet_at = math.inf if is_alone else clock.monotonic() + GREETING_S_PER_RANK * identity.rank
        self._stragglers = stragglers
        self._arrived: dict[int, tuple[bytes, float]] = {}  # each rank's newest pace, and when it was first seen here
        self.worker = Worker("report", self._turn, run.trouble, is_done=lambda: not self._waiting)

    def _host_summaries(self) -> HostSummaries | None:
        if not ranks_beside(self._identity.rank, self._identity.world_size):
            return None
        from rekindle.monitor.liveness.host_summaries import HostSummaries

        return HostSummaries(box=self._box, identity=self._identity, clock=self._clock)

    def stall(
        self,
        *,
        silent_s: float,
        phase: str,
        stacks: str,
        flight: Flight | None = None,
        ras: tuple[RasSuspect, ...] = (),
    ) -> None:
        self._stalled = replace(
            self._report(ReportKind.STALL),
            phase=phase,
            silent_s=round(silent_s, 3),
            stacks=stacks,
            flight=flight,
            ras=ras,
        )
        self._add(self._stalled)

    def heard_of_ras(self, suspects: tuple[RasSuspect, ...]) -> None:
        """RAS has answered after the stall was reported: it is reported again, unless the rank has moved since."""
        stalled, now = self._stalled, self._clock.now()
        if stalled is not None and stalled.silent_s is not None and stalled.step == self._state.step:
            silent_s = round(stalled.silent_s + max(0.0, (now - stalled.at).total_seconds()), 3)
            self._add(replace(stalled, at=now, silent_s=silent_s, ras=suspects))

    def non_finite(self, step: int, metric: str) -> None:
        self._add(replace(self._report(ReportKind.NON_FINITE), step=step, metric=metric[:MAX_METRIC_CHARS]))

    def _turn(self) -> float:
        return self.turn(is_last=self.worker.is_stopping)

    def turn(self, *, is_last: bool) -> float:
        """Write what waits, and what is due. Returns seconds until something is due again."""
        now = self._clock.monotonic()
        if now >= self._greet_at:
            self._greet_at = math.inf
            # A rank that is frozen later says nothing any more; where it ran must be on record before.
            self._waiting.append(self._report(ReportKind.PACE))
        if now >= self._pace_at and not is_last:
            self._pace_at = now + self._pace_s
            self._take_pace()
        wrote = self._write_all()
        if not is_last:
            self._summarise()
        if now >= self._read_at and not is_last:
            self._read_at = now + self._pace_s
            if self._stragglers is not None:
                self._compare(self._stragglers)
        summarise_at = math.inf if self._summaries is None else self._summaries.next_at
        next_at = min(self._pace_at, self._read_at, self._greet_at, summarise_at)
        wait_s = max(0.0, next_at - self._clock.monotonic())
        return wait_s if wrote else min(wait_s, RETRY_S)

    def _add(self, report: RankReport) -> None:
        self._waiting.append(report)
        self.worker.wake()

    def _report(self, kind: ReportKind) -> RankReport:
        return RankReport(
            kind=kind,
            job_id=self._identity.job_id,
            attempt=self._identity.attempt,
            rank=self._identity.rank,
            world_size=self._identity.world_size,
            host=self._identity.host,
            at=self._clock.now(),
            step=self._state.step,
            phase=self._phase(),
            life=self._identity.life,
        )

    def _take_pace(self) -> None:
        work_s = median(self._state.work)
        self._state.work.clear()
        if work_s is not None and self._identity.world_size > 1:
            self._waiting.append(replace(self._report(ReportKind.PACE), step_s=work_s))

    def _write_all(self) -> bool:
        while self._waiting:
            report = self._waiting[0]
            try:
                self._box.put(report.key, report.to_json())
                if self._summaries is not None:
                    self._summaries.reported(report)
            except MailboxError as err:
                self._trouble.once("bad_report", "A report of this rank cannot be written (%s)", err)
            except Exception as err:  # whatever the transport does, training continues
                mailbox_failed(self._trouble, self._box, "writing a report", err)
                self._tries += 1
                if self._tries < MAX_TRIES:
                    return False
            self._tries = 0
            if self._waiting and self._waiting[0] is report:  # a full queue drops its oldest from the other end
                self._waiting.popleft()
        return True

    def _summarise(self) -> None:
        if self._summaries is None:
            return
        try:
            self._summaries.turn()
        except MailboxError as err:
            self._trouble.once("bad_summary", "The summary of this host's reports cannot be written (%s)", err)
        except Exception as err:  # whatever the transport does, training continues
            mailbox_failed(self._trouble, self._box, "writing the summary of this host's reports", err)

    def _compare(self, stragglers: StragglerWatch) -> None:
        """Read all ranks' newest paces, and judge them against each other."""
        try:
            paces = self._read_paces()
        except Exception as err:  # whatever the transport does, training continues
            mailbox_failed(self._trouble, self._box, "reading the ranks' paces", err)
            return
        steps = {rank: report.step_s for rank, report in paces.items() if report.step_s is not None}
        if len(steps) > 1:
            for verdict in stragglers.update(self._state.step or 0, steps):
                self._on_straggler(verdict, paces)

    def _paces(self) -> str:
        return f"{report_prefix(self._identity.attempt, self._identity.life)}{ReportKind.PACE.value}-"

    def _read_paces(self) -> dict[int, RankReport]:
        """Paces that arrived here within the last two windows; an older one is of a rank that reports no more.

        A pace arrives when its object is first seen to have changed: the dates in them are by other hosts' clocks.
        """
        found: dict[int, RankReport] = {}
        now = self._clock.monotonic()
        for key in self._box.names(self._paces()):
            raw = self._box.get(key)
            if raw is None:
                continue
            try:
                report = RankReport.from_json(raw)
            except MailboxError as err:
                self._trouble.once("bad_report", "A rank's report cannot be read (%s); it is ignored", err)
                continue
            if report.key != key or report.world_size != self._identity.world_size:
                continue
            seen, arrived_at = self._arrived.get(report.rank, (None, now))
            if seen != raw:
                arrived_at = now
            self._arrived[report.rank] = (raw, arrived_at)
            if now - arrived_at <= 2 * self._pace_s:
                found[report.rank] = report
        return found
