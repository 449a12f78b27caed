"""Large runs' reports, read by their hosts' summaries: the same verdict as from all ranks' own, in bounded calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chalicelib.aws.s3.mailbox import S3Mailbox
from chalicelib.aws.s3.reports import MAX_PLACES, MAX_READS
from chalicelib.domain.model.known import Known, Unknown
from rekindle.detectors.rank_rules import STRONG, RankRule
from rekindle.detectors.ranks import RankVerdict, find_suspects, first_bad
from rekindle.protocol.flights import MAX_GROUPS, Call, CallState, Flight, GroupFlight
from rekindle.protocol.reports import RankReport, ReportKind, report_key
from rekindle.protocol.summaries import MAX_SUMMARIES, HostSummary, ranks_beside, ranks_in_summary, summary_key
from simulation.cloud.store import MemoryObjects, MemoryS3
from tests.adapters.samples import T0, job
from tests.sizes import examples

WAITS = (
    "Thread pin:\n"
    '  File "queue.py", line 1, in get\n'
    "Thread MainThread:\n"
    '  File "train.py", line 3, in main\n'
    '  File "/x/torch/distributed/distributed_c10d.py", line 9, in all_reduce\n'
)
BUSY = 'Thread MainThread:\n  File "train.py", line 3, in main\n  File "loader.py", line 4, in read\n'
OFF = timedelta(minutes=7)  # of every host's clock: only S3's dates are right


@dataclass
class Hands:
    """A clock that is moved by hand."""

    at: datetime = T0

    def now(self) -> datetime:
        return self.at


@dataclass
class Box:
    """A mailbox in S3, and every call that the service makes."""

    clock: Hands = field(default_factory=Hands)
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.objects = MemoryObjects(cast("Any", self.clock), "training")
        client = MemoryS3(self.objects, lambda operation, _: self.calls.append(operation))
        self.mailbox = S3Mailbox(client, bucket="stack")

    def put(self, key: str, body: bytes) -> None:
        self.objects.put(f"runs/lm-7b/{key}", body)

    def say(self, reports: Iterable[RankReport]) -> None:
        for report in reports:
            self.put(report.key, report.to_json())

    def summarise(self, kind: ReportKind, reports: Iterable[RankReport], *, age_s: float = 0.0) -> None:
        hosts: dict[int, list[RankReport]] = {}
        for report in reports:
            hosts.setdefault(ranks_beside(report.rank, report.world_size).start, []).append(report)
        for ranks in hosts.values():
            summary = HostSummary.of(kind, [(age_s, rank) for rank in ranks], at=self.clock.now() + OFF)
            self.put(summary.key, summary.to_json())

    def read(self, kind: ReportKind = ReportKind.STALL) -> Any:
        self.calls.clear()
        return self.mailbox.reports(job(), "lm-7b", kind)

    def later(self, **more: float) -> None:
        self.clock.at += timedelta(**more)


def stall(rank: int, world: int, stacks: str = WAITS, *, box: Box, **more: Any) -> RankReport:
    base: dict[str, Any] = {"kind": ReportKind.STALL, "step": 7, "phase": "training", "silent_s": 60.0}
    named = {"job_id": "lm-7b", "attempt": "lm-7b", "rank": rank, "world_size": world, "host": f"node-{rank // 8}"}
    return RankReport(**(base | named | {"at": box.clock.now() + OFF, "stacks": stacks} | more))


def pace(rank: int, world: int, *, box: Box) -> RankReport:
    return stall(rank, world, "", box=box, kind=ReportKind.PACE, silent_s=None)


def judged(found: Any, world: int) -> RankVerdict:
    assert isinstance(found, Known), found
    return find_suspects(found.value, world)


@pytest.mark.parametrize("world", [1, 8, 1024, 1025, 2048, 16_384, 16_385, 100_000, 262_144, 262_145, 10**7])
def test_a_run_has_at_most_so_many_summaries_and_each_rank_stands_in_one(world: int) -> None:
    span = ranks_in_summary(world)
    assert (span > 0) is (1024 < world <= 262_144)
    if span:
        assert -(-world // span) <= MAX_SUMMARIES
        assert [ranks_beside(rank, world) for rank in (0, span - 1, span)] == [
            range(span),
            range(span),
            range(span, min(2 * span, world)),
        ]
        assert ranks_beside(world - 1, world).stop == world


@pytest.mark.long
def test_of_16384_ranks_on_2048_hosts_the_busy_one_is_named_in_bounded_calls() -> None:
    box, world = Box(), 16_384
    box.say(pace(rank, world, box=box) for rank in range(world))
    stalls = [stall(rank, world, BUSY if rank == 9001 else WAITS, box=box) for rank in range(world)]
    box.say(stalls)
    box.later(seconds=4)
    box.summarise(ReportKind.STALL, stalls, age_s=4.0)
    box.later(seconds=2)
    verdict = judged(box.read(), world)
    assert (verdict.suspect_ranks, verdict.hosts, verdict.rule) == ((9001,), ("node-1125",), RankRule.NOT_WAITING)
    assert verdict.confidence >= STRONG
    counts = Counter(box.calls)
    assert counts["GetObject"] == 2048
    assert counts["ListObjectsV2"] <= 1 + 3 + 17 + 1


@pytest.mark.long
def test_of_16384_ranks_a_host_whose_eight_are_all_mute_is_named_by_what_they_greeted() -> None:
    box, world = Box(), 16_384
    box.say(pace(rank, world, box=box) for rank in range(world))
    stalls = [stall(rank, world, box=box) for rank in range(world) if rank // 8 != 77]
    box.say(stalls)
    box.summarise(ReportKind.STALL, stalls)
    verdict = judged(box.read(), world)
    assert (verdict.suspect_ranks, verdict.hosts) == (tuple(range(616, 624)), ("node-77",))
    assert verdict.rule is RankRule.SILENT
    assert Counter(box.calls)["GetObject"] == 2047 + 8


def test_without_any_summary_more_ranks_than_one_look_reads_are_unknown_and_not_half_a_picture() -> None:
    box, world = Box(), 8192
    box.say(stall(rank, world, box=box) for rank in range(MAX_READS))
    assert isinstance(box.read(), Known)
    box.say([stall(MAX_READS, world, box=box)])
    assert isinstance(box.read(), Unknown)


def test_a_mailbox_filled_with_names_of_summaries_is_not_read_through() -> None:
    box = Box()
    for number in range(MAX_SUMMARIES + 1):
        box.put(summary_key("lm-7b", ReportKind.STALL, number), b"{}")
    assert isinstance(box.read(), Unknown)
    assert "GetObject" not in box.calls


def test_a_rack_whose_summaries_are_missing_is_read_rank_by_rank() -> None:
    box, world = Box(), 2048
    stalls = [stall(rank, world, BUSY if rank == 70 else WAITS, box=box) for rank in range(world)]
    box.say(stalls)
    box.summarise(ReportKind.STALL, [stall for stall in stalls if not 64 <= stall.rank < 320])
    verdict = judged(box.read(), world)
    assert (verdict.suspect_ranks, verdict.hosts) == ((70,), ("node-8",))
    assert Counter(box.calls)["GetObject"] == (2048 - 256) // 8 + 256


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"v":1}', b"x" * 70_000])
def test_a_summary_that_cannot_be_read_costs_its_ranks_own_reports_and_nothing_else(raw: bytes) -> None:
    box, world = Box(), 1032
    stalls = [stall(rank, world, BUSY if rank == 70 else WAITS, box=box) for rank in range(world)]
    box.say(stalls)
    box.summarise(ReportKind.STALL, stalls)
    box.put(summary_key("lm-7b", ReportKind.STALL, 64), raw)
    assert judged(box.read(), world).suspect_ranks == (70,)


def test_another_jobs_or_attempts_summary_is_not_believed() -> None:
    box, world = Box(), 1032
    stalls = [stall(rank, world, box=box) for rank in range(world)]
    box.say(stalls)
    box.summarise(ReportKind.STALL, stalls)
    foreign = [replace(stall, job_id="another", stacks=BUSY) for stall in stalls[64:72]]
    summary = HostSummary.of(ReportKind.STALL, [(0.0, report) for report in foreign], at=foreign[0].at)
    box.put(summary_key("lm-7b", ReportKind.STALL, 64), summary.to_json())
    assert judged(box.read(), world).suspect_ranks == ()


def test_a_summary_of_an_earlier_stall_gives_nobody_an_alibi() -> None:
    box, world = Box(), 1032
    old = [stall(rank, world, box=box) for rank in range(world)]
    box.say(old)
    box.summarise(ReportKind.STALL, old)
    box.later(hours=1)
    new = [stall(rank, world, box=box, step=90) for rank in range(world) if rank // 8 != 5]
    box.say(new)
    box.summarise(ReportKind.STALL, new)
    verdict = judged(box.read(), world)
    assert (verdict.suspect_ranks, verdict.rule) == (tuple(range(40, 48)), RankRule.SILENT)
    assert verdict.hosts == ("node-5",)


def test_a_newer_own_report_counts_more_than_the_summary_s_copy() -> None:
    box, world = Box(), 1032
    stalls = [stall(rank, world, BUSY if rank == 3 else WAITS, box=box) for rank in range(world)]
    box.say(stalls)
    box.summarise(ReportKind.STALL, stalls)
    box.later(seconds=30)
    box.say([stall(3, world, box=box), stall(4, world, BUSY, box=box)])
    assert judged(box.read(), world).suspect_ranks == (4,)


def test_the_first_of_1032_ranks_with_a_bad_value_is_named() -> None:
    box, world = Box(), 1032
    bad = [
        stall(rank, world, "", box=box, kind=ReportKind.NON_FINITE, step=6 if rank == 99 else 7, metric="loss")
        for rank in range(world)
    ]
    box.say(bad)
    box.summarise(ReportKind.NON_FINITE, bad)
    found = box.read(ReportKind.NON_FINITE)
    assert isinstance(found, Known)
    verdict = first_bad(found.value, world)
    assert (verdict.suspect_ranks, verdict.hosts) == ((99,), ("node-12",))
    assert Counter(box.calls)["GetObject"] == 129


def test_what_a_relay_brought_first_is_judged_though_no_rank_s_own_report_has_come() -> None:
    box, world = Box(), 16_384
    stalls = [stall(rank, world, BUSY if rank == 9001 else WAITS, box=box) for rank in range(world)]
    box.summarise(ReportKind.STALL, stalls)
    assert judged(box.read(), world).suspect_ranks == (9001,)


@pytest.mark.long
@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.data(),
    world=st.integers(1025, 1100),
    has_greeted=st.booleans(),
    gone=st.frozensets(st.integers(0, 137), max_size=20),
    old=st.frozensets(st.integers(0, 137), max_size=20),
)
def test_summaries_and_the_ranks_own_reports_come_to_the_same_verdict(
    data: st.DataObject, world: int, has_greeted: bool, gone: frozenset[int], old: frozenset[int]
) -> None:
    """gone: hosts without a summary. old: hosts whose summary was written before their last two ranks reported."""
    odd = data.draw(st.dictionaries(st.integers(0, world - 1), st.sampled_from(["busy", "mute", "behind"]), max_size=9))
    box, plain = Box(), list[RankReport]()
    if has_greeted:
        plain += [pace(rank, world, box=box) for rank in range(world)]
    box.say(plain)
    stalls = [
        stall(
            rank, world, BUSY if odd.get(rank) == "busy" else WAITS, box=box, step=6 if odd.get(rank) == "behind" else 7
        )
        for rank in range(world)
        if odd.get(rank) != "mute"
    ]
    early = [stall for stall in stalls if not (stall.rank // 8 in old and stall.rank % 8 > 5)]
    box.say(early)
    box.summarise(ReportKind.STALL, [report for report in early if report.rank // 8 not in gone])
    box.later(seconds=5)
    box.say(stall for stall in stalls if stall not in early)
    assert judged(box.read(), world) == find_suspects([*plain, *stalls], world)
    assert len(box.calls) <= 1 + 10 + MAX_READS + MAX_PLACES


@pytest.mark.long
@given(
    kinds=st.lists(st.sampled_from([ReportKind.STALL, ReportKind.PACE]), min_size=1, max_size=8),
    stacks=st.lists(st.text(max_size=30_000), min_size=1, max_size=8),
    ages=st.lists(st.floats(0, 1e6), min_size=8, max_size=8),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_written_is_read_again(kinds: list[ReportKind], stacks: list[str], ages: list[float]) -> None:
    box = Box()
    reports = [
        (ages[rank], stall(64 + rank, 2048, stacks[rank % len(stacks)][-16_384:], box=box, kind=kind))
        for rank, kind in enumerate(kinds)
    ]
    summary = HostSummary.of(ReportKind.STALL, reports, at=box.clock.now())
    again = HostSummary.from_json(summary.to_json())
    assert again == summary
    assert [one.at for one in again.dated(box.clock.now())] == [
        box.clock.now() - timedelta(seconds=age) for age, _ in reports
    ]
    assert report_key("lm-7b", ReportKind.STALL, 64) != summary.key


def test_recorders_stand_in_a_summary_once_and_each_rank_keeps_its_own() -> None:
    box = Box()

    def recorder(seq: int) -> Flight:
        call = Call(seq=seq, op="all_reduce", state=CallState.WAITING)
        return Flight(groups=tuple(GroupFlight(name=str(at), entered=seq, calls=(call,)) for at in range(MAX_GROUPS)))

    reports = [stall(rank, 2048, box=box, flight=recorder(40 if rank == 9 else 41)) for rank in range(8, 16)]
    summary = HostSummary.of(ReportKind.STALL, [(1.0, report) for report in reports], at=T0)
    assert len(summary.flights) == 2
    read = HostSummary.from_json(summary.to_json()).dated(None)
    entered = {report.rank: report.flight.groups[0].entered for report in read if report.flight is not None}
    assert entered == {rank: 40 if rank == 9 else 41 for rank in range(8, 16)}
    apart = [replace(report, flight=recorder(report.rank + 1)) for report in reports]
    assert HostSummary.from_json(HostSummary.of(ReportKind.STALL, [(1.0, report) for report in apart], at=T0).to_json())
