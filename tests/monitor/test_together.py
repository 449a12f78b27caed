"""One object per host with what its ranks reported: whoever of them lives writes it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rekindle.monitor.base.run import Identity, Run
from rekindle.monitor.base.trouble import Trouble
from rekindle.monitor.liveness.host_summaries import LOOK_AGAIN_S, SETTLE_S, TURN_S
from rekindle.monitor.liveness.reporter import Reporter
from rekindle.protocol.reports import ReportKind, report_key
from rekindle.protocol.summaries import HostSummary, summary_key
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor
from tests.monitor.test_reports import Hands

WORLD = 2048
FIRST = 64
HOST = range(FIRST, FIRST + 8)
SUMMARY = summary_key("run-1", ReportKind.STALL, FIRST)


class Host:
    """The reporters of one host's ranks, in virtual time."""

    def __init__(self, box: ObservedBox, world: int = WORLD, lives: range = HOST) -> None:
        self.box, self.clock, self.trouble = box, Hands(), Trouble()
        self.clock.s = 1000.0
        self.ranks = {
            rank: Reporter(
                Run(
                    identity=Identity(
                        job_id="job", attempt="run-1", attempt_number=1, rank=rank, world_size=world, host="node-8"
                    ),
                    clock=self.clock,
                    trouble=self.trouble,
                ),
                box=box,
                phase=lambda: "training",
                stragglers=None,
                on_straggler=lambda verdict, paces: None,
            )
            for rank in lives
        }

    def run(self, seconds: float, mute: frozenset[int] = frozenset()) -> None:
        until = self.clock.s + seconds
        while self.clock.s < until:
            self.clock.s += 0.25
            for rank, one in self.ranks.items():
                if rank not in mute:
                    one.turn(is_last=False)

    def stall(self, *ranks: int) -> None:
        for rank in ranks:
            self.ranks[rank].stall(silent_s=60.0, phase="training", stacks="Thread MainThread:\n")

    def summary(self, kind: ReportKind = ReportKind.STALL) -> HostSummary:
        raw = self.box.get(summary_key("run-1", kind, FIRST))
        assert raw is not None
        return HostSummary.from_json(raw)

    def kinds(self) -> dict[int, ReportKind]:
        return {report.rank: report.kind for _, report in self.summary().reports}


@pytest.fixture
def box(tmp_path: Path) -> ObservedBox:
    return ObservedBox(tmp_path / "mailbox")


def test_of_eight_ranks_that_stall_together_the_first_one_writes_for_all(box: ObservedBox) -> None:
    host = Host(box)
    host.run(10)
    host.stall(*HOST)
    host.run(60)
    assert host.kinds() == dict.fromkeys(HOST, ReportKind.STALL)
    assert box.written.count(SUMMARY) == 1
    assert {report.host for _, report in host.summary().reports} == {"node-8"}


@pytest.mark.parametrize("mute", [frozenset({FIRST}), frozenset(HOST) - {FIRST + 5}, frozenset({FIRST, FIRST + 1})])
def test_where_the_first_rank_is_mute_the_next_one_writes_and_says_where_the_mute_run(
    box: ObservedBox, mute: frozenset[int]
) -> None:
    host = Host(box)
    host.run(10)  # all greet
    host.stall(*(set(HOST) - mute))
    host.run(SETTLE_S + 8 * TURN_S + 1, mute)
    kinds = host.kinds()
    assert {rank for rank, kind in kinds.items() if kind is ReportKind.PACE} == mute
    assert {rank for rank, kind in kinds.items() if kind is ReportKind.STALL} == set(HOST) - mute
    assert box.written.count(SUMMARY) == 1


def test_a_rank_that_reports_late_adds_itself(box: ObservedBox) -> None:
    host = Host(box)
    host.stall(*HOST[:7])
    host.run(30)
    assert set(host.kinds()) == set(HOST)  # by its greeting
    assert host.kinds()[HOST[7]] is ReportKind.PACE
    host.stall(HOST[7])
    host.run(SETTLE_S + 8 * TURN_S + 1)
    assert host.kinds() == dict.fromkeys(HOST, ReportKind.STALL)


def test_a_writer_that_dies_before_it_has_written_is_followed_by_the_next(box: ObservedBox) -> None:
    host = Host(box)
    host.stall(*HOST)
    host.run(SETTLE_S - 0.5)
    host.run(SETTLE_S + 2 * TURN_S, frozenset({FIRST}))
    assert host.kinds() == dict.fromkeys(HOST, ReportKind.STALL), "its own report was there"


def test_what_another_wrote_over_is_put_right_at_the_second_look(box: ObservedBox) -> None:
    host = Host(box)
    host.stall(*HOST)
    host.run(SETTLE_S + 8 * TURN_S + 1)
    alone = host.summary()
    box.put(SUMMARY, HostSummary.of(alone.kind, alone.reports[:1], at=alone.at).to_json())
    host.run(LOOK_AGAIN_S + 8 * TURN_S)
    assert host.kinds() == dict.fromkeys(HOST, ReportKind.STALL)


def test_a_second_stall_is_not_taken_for_the_first(box: ObservedBox) -> None:
    host = Host(box)
    host.stall(*HOST)
    host.run(60)
    before = host.summary()
    host.run(600)
    host.stall(*HOST)
    host.run(60)
    ages = [age_s for age_s, _ in host.summary().reports]
    assert host.summary().at > before.at + timedelta(seconds=600)
    assert max(ages) < SETTLE_S + 8 * TURN_S + 1, "each by its newest report"


def test_a_bad_value_has_a_summary_of_its_own(box: ObservedBox) -> None:
    host = Host(box)
    for rank in HOST:
        host.ranks[rank].non_finite(7 if rank == FIRST else 8, "loss")
    host.run(30)
    found = host.summary(ReportKind.NON_FINITE)
    assert [(report.rank, report.step) for _, report in found.reports] == [
        (rank, 7 if rank == FIRST else 8) for rank in HOST
    ]


def test_a_small_run_has_none(box: ObservedBox) -> None:
    host = Host(box, world=1024)
    host.stall(*HOST)
    host.run(60)
    assert not [key for key in box.written if "hosts-" in key]


def test_what_lies_there_unreadable_is_written_anew_and_a_mailbox_that_fails_raises_nothing(box: ObservedBox) -> None:
    host = Host(box)
    box.put(SUMMARY, b"{half")
    host.stall(*HOST)
    host.run(30)
    assert host.kinds() == dict.fromkeys(HOST, ReportKind.STALL)

    class Away(ObservedBox):
        def get_aged(self, key: str) -> tuple[bytes | None, float]:
            raise OSError("no route to the mailbox")

    there = Host(Away(Path(box.uri) / "other"))
    there.stall(*HOST)
    there.run(120)
    assert report_key("run-1", ReportKind.STALL, FIRST) in there.box.written


def test_a_monitor_of_a_large_run_writes_it(box: ObservedBox) -> None:
    config = replace(QUICK, stall_startup_s=0.1)
    env = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1", "NODE_NAME": "node-8"}
    monitor: Any = start_monitor(mailbox=box, rank=FIRST, world_size=WORLD, config=config, env=env)
    try:
        box.wait(lambda: SUMMARY in box.written)  # this, the training thread, blocks here
    finally:
        monitor.finish(timeout_s=PATIENCE_S)
    raw = box.get(SUMMARY)
    assert raw is not None
    found = HostSummary.from_json(raw)
    assert [(report.rank, report.kind, report.host) for _, report in found.reports] == [
        (FIRST, ReportKind.STALL, "node-8")
    ]
    assert "test_a_monitor_of_a_large_run_writes_it" in found.reports[0][1].stacks
