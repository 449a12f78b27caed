"""What the reports of single ranks say of an attempt: a suspicion, or nothing yet. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chalicelib.domain.model.evidence import Suspicion, SuspicionKind
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptView
from rekindle.detectors.ranks import find_suspects, first_bad, stalled
from rekindle.protocol.reports import RankReport, ReportKind, report_prefix
from rekindle.protocol.signals import FaultClass

MAX_TEXT_CHARS = 400
MAX_SUSPECTS = 16  # more than these are no minority to act on


def suspicion_of(attempt: str, kind: SuspicionKind, reports: Sequence[RankReport], *, kept_in: str) -> Maybe[Suspicion]:
    """The judgement of `rekindle.detectors.ranks` on one attempt's reports; Unknown while there is none to judge."""
    wanted = ReportKind.NON_FINITE if kind is SuspicionKind.NON_FINITE else ReportKind.STALL
    is_hang = kind is SuspicionKind.HANG
    spoken = stalled(reports).keys() if is_hang else {report.rank for report in reports if report.kind is wanted}
    if not spoken:
        return Unknown("no rank has reported")
    world_size = max(report.world_size for report in reports)
    judge = first_bad if kind is SuspicionKind.NON_FINITE else find_suspects
    verdict = judge(reports, world_size)
    return Known(
        Suspicion(
            attempt=attempt,
            kind=kind,
            rule=str(verdict.rule),
            text=verdict.text[:MAX_TEXT_CHARS],
            ranks=verdict.suspect_ranks[:MAX_SUSPECTS],
            hosts=verdict.hosts[:MAX_SUSPECTS],
            confidence=verdict.confidence,
            reports=len(spoken),
            world_size=world_size,
            kept_at=f"{kept_in.rstrip('/')}/{report_prefix(attempt)}",
        )
    )


def with_rank_zero(reports: Sequence[RankReport], view: AttemptView) -> Sequence[RankReport]:
    """With what the heartbeat, which is rank 0's, says of its loss, where rank 0's own report has not come.

    A report that is lost must not leave another rank alone with a bad value that both had. Where another rank judges
    the loss, the heartbeat says what that one found: then this makes a suspicion weaker, never stronger.
    """
    is_bad = view.loss_health == FaultClass.NON_FINITE and view.onset_step is not None
    if (
        not reports
        or not is_bad
        or any(report.rank == 0 and report.kind is ReportKind.NON_FINITE for report in reports)
    ):
        return reports
    newest = max(reports, key=lambda report: report.at)
    own = replace(newest, kind=ReportKind.NON_FINITE, rank=0, step=view.onset_step, host="", stacks="", metric="loss")
    return [*reports, own]
