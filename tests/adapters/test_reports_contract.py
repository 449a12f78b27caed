"""The ranks' own reports, over the fake and over S3; what a forensic checkpoint and a judged loss read as."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chalicelib.domain.model.evidence import FORENSIC
from chalicelib.domain.model.known import Known, Unknown
from rekindle.protocol.keys import heartbeat_key
from rekindle.protocol.mailbox import Heartbeat, LossState, RunPhase
from rekindle.protocol.manifests import SaveKind
from rekindle.protocol.reports import RankReport, ReportKind, report_key
from tests.adapters.samples import T0, attempt, job
from tests.adapters.test_mailbox_contract import VIEW, FakeDesk, S3Desk, Sides, s3, sides  # noqa: F401  fixtures


def report(rank: int, kind: ReportKind = ReportKind.STALL, **more: Any) -> RankReport:
    base = {"job_id": "lm-7b", "attempt": "lm-7b", "world_size": 4, "host": f"algo-{rank}", "at": T0, "step": 7}
    return RankReport(kind=kind, rank=rank, **(base | more))


def tell(desk: S3Desk | FakeDesk, *reports: RankReport) -> None:
    for report in reports:
        if isinstance(desk, S3Desk):
            desk.put(report.key, replace(report, at=report.at + desk.clock_off).to_json(), report.at)
        else:
            desk.mailbox.told.append(report)


def test_no_report_yet_is_known(sides: Sides) -> None:  # noqa: F811
    mailbox, _ = sides
    assert mailbox.reports(job(), "lm-7b", ReportKind.STALL) == Known(())


def test_a_run_without_a_mailbox_has_none_that_could_be_read(sides: Sides) -> None:  # noqa: F811
    mailbox, _ = sides
    assert isinstance(mailbox.reports(replace(job(), mailbox=""), "lm-7b", ReportKind.STALL), Unknown)


def test_reports_of_the_kind_come_and_others_only_for_ranks_that_have_none(sides: Sides) -> None:  # noqa: F811
    mailbox, desk = sides
    wanted, beside = report(0), report(0, ReportKind.PACE, step_s=1.0)
    silent = report(1, ReportKind.PACE, step_s=1.0)
    other = report(2, attempt="lm-7b-r2")
    tell(desk, wanted, beside, silent, other)
    found = mailbox.reports(job(), "lm-7b", ReportKind.STALL)
    assert isinstance(found, Known)
    assert sorted(found.value, key=lambda one: one.rank) == [wanted, silent]


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"v": 1}', b"x" * 70_000])
def test_a_report_that_cannot_be_read_leaves_its_rank_silent(s3: Any, raw: bytes) -> None:  # noqa: F811
    mailbox, desk = s3
    tell(desk, report(0))
    desk.put(report_key("lm-7b", ReportKind.STALL, 1), raw)
    desk.put(report_key("lm-7b", ReportKind.STALL, 2), report(2, job_id="another").to_json())
    assert mailbox.reports(job(), "lm-7b", ReportKind.STALL) == Known((report(0),))


@pytest.mark.parametrize(
    ("request_id", "kind"), [("inc-a-f1", FORENSIC), ("inc-a-c1", "emergency"), (None, "periodic")]
)
def test_a_checkpoint_asked_for_while_the_loss_was_bad_reads_as_forensic(
    s3: Any,  # noqa: F811
    request_id: str | None,
    kind: str,
) -> None:
    mailbox, desk = s3
    desk.checkpoint(100, request_id=request_id, kind=SaveKind.EMERGENCY if request_id else SaveKind.PERIODIC)
    assert [one.kind for one in mailbox.checkpoints(job(), [attempt()]).value] == [kind]


def test_what_the_heartbeat_says_of_the_loss_is_seen(s3: Any) -> None:  # noqa: F811
    mailbox, desk = s3
    told = {"loss_health": "spiking", "onset_step": 90, "healed_step": None, "loss_baseline": 2.5, "judged_step": 99}
    base = {"job_id": "lm-7b", "attempt": "lm-7b", "attempt_number": 1, "step": 100, "first_step": 1, "loss": 7.0}
    more = {"loss_state": LossState.FINITE, "phase": RunPhase.TRAINING, "step_s_median": 0.4, "rank": 0, "at": T0}
    desk.put(heartbeat_key("lm-7b"), Heartbeat(**base, **more, **told, world_size=8).to_json())  # type: ignore[arg-type]
    seen = mailbox.heartbeat(job(), VIEW)
    assert {name: getattr(seen, name) for name in told} == told
    assert seen.judged_at == Known(99)
