"""What the look makes of the ranks' reports."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from chalicelib.domain.decision.reported import suspects_text
from chalicelib.domain.model.evidence import Suspicion, SuspicionKind, suspect_word
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.run.rank_reports import MAX_SUSPECTS, suspicion_of, with_rank_zero
from rekindle.protocol.flights import Call, CallState, Flight, GroupFlight
from rekindle.protocol.reports import RankReport, ReportKind
from tests.domain.looks import incident

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
COLLECTIVE = "/x/torch/distributed/distributed_c10d.py"


def bad(rank: int, step: int, world: int = 4, **more: Any) -> RankReport:
    base = {"kind": ReportKind.NON_FINITE, "job_id": "lm", "attempt": "lm", "at": AT, "host": f"h{rank}"}
    return RankReport(rank=rank, step=step, world_size=world, **(base | more))


def judged(*reports: RankReport, kind: SuspicionKind = SuspicionKind.NON_FINITE) -> Suspicion:
    found = suspicion_of("lm", kind, reports, kept_in="s3://b/jobs/lm/")
    assert isinstance(found, Known)
    return found.value


def test_the_rank_that_was_first_is_named_with_its_host_and_where_its_report_lies() -> None:
    one = judged(bad(0, 8), bad(1, 8), bad(2, 7), bad(3, 8))
    assert (one.ranks, one.hosts, one.is_complete) == ((2,), ("h2",), True)
    assert one.kept_at == "s3://b/jobs/lm/rekindle/reports/lm/"
    assert suspect_word(one) == "rank 2 on h2"


def test_all_at_once_names_nobody() -> None:
    one = judged(*(bad(rank, 7) for rank in range(4)))
    assert (one.ranks, suspect_word(one)) == ((), "no rank")


def test_reports_of_another_kind_are_no_word_on_this_one() -> None:
    found = suspicion_of("lm", SuspicionKind.HANG, [bad(0, 7)], kept_in="s3://b")
    assert found == Unknown("no rank has reported")


def test_a_part_of_the_ranks_is_not_complete() -> None:
    assert not judged(bad(0, 7), bad(1, 8)).is_complete


@pytest.mark.parametrize("reports", [[], [bad(0, 7, kind=ReportKind.PACE)]])
def test_nothing_said_is_unknown(reports: list[RankReport]) -> None:
    assert isinstance(suspicion_of("lm", SuspicionKind.NON_FINITE, reports, kept_in="s3://b"), Unknown)


def test_what_rank_0_s_heartbeat_says_stands_for_its_report_that_was_lost() -> None:
    heartbeat = AttemptView(name="lm", status=AttemptStatus.RUNNING, loss_health="non_finite", onset_step=7)
    alone = [bad(1, 7, world=2)]
    assert judged(*alone).ranks == (1,)
    assert judged(*with_rank_zero(alone, heartbeat)).ranks == ()
    assert judged(*with_rank_zero(alone, replace(heartbeat, onset_step=8))).ranks == (1,), "it had it later"
    for silent in (replace(heartbeat, loss_health="ok"), replace(heartbeat, onset_step=None)):
        assert with_rank_zero(alone, silent) == alone
    assert with_rank_zero([], heartbeat) == []
    both = [bad(0, 8, world=2), bad(1, 7, world=2)]
    assert with_rank_zero(both, heartbeat) == both, "its own report says it better"
    greeted = [bad(0, 3, world=2, kind=ReportKind.PACE), *alone]
    assert judged(*with_rank_zero(greeted, heartbeat)).ranks == ()


def test_a_suspicion_stays_small() -> None:
    many = [bad(rank, 7 if rank < 400 else 8, world=1024, host="x" * 200) for rank in range(1024)]
    one = judged(*many)
    assert len(one.ranks) <= MAX_SUSPECTS
    assert len(str(one.to_wire())) < 8000


def stuck(rank: int, entered: int, *, waits: bool = True, stacks: str = "") -> RankReport:
    state = CallState.WAITING if waits else CallState.DONE
    call = Call(seq=entered, op="all_reduce", state=state)
    group = GroupFlight(name="0", desc="default_pg", backend="nccl", entered=entered, calls=(call,))
    return bad(rank, 7, kind=ReportKind.STALL, stacks=stacks, flight=Flight(groups=(group,)))


def test_what_stacks_and_recorders_say_of_a_hang_is_one_suspicion() -> None:
    waits, reads = (f'Thread MainThread:\n  File "{file}", line 9, in f\n' for file in (COLLECTIVE, "loader.py"))
    reports = [stuck(rank, 41, stacks=waits) for rank in range(3)] + [stuck(3, 40, waits=False, stacks=reads)]
    one = judged(*reports, kind=SuspicionKind.HANG)
    alone = judged(*(replace(report, flight=None) for report in reports), kind=SuspicionKind.HANG)
    assert (one.ranks, one.hosts, one.is_complete) == ((3,), ("h3",), True)
    assert one.confidence > alone.confidence
    assert "has not entered all_reduce 41" in one.text


def test_that_nobody_is_missing_is_told() -> None:
    one = judged(*(stuck(rank, 40, waits=False) for rank in range(4)), kind=SuspicionKind.HANG)
    assert (one.ranks, one.clears_all) == ((), True)
    assert suspects_text(incident(suspicions=(one,))).startswith(" In lm nobody is missing: ")
