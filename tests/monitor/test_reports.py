"""What each rank says of itself, and what rank 0 makes of all ranks' paces."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rekindle.detectors.frames import training_frames, waits_in
from rekindle.detectors.pace import StragglerWatch
from rekindle.detectors.points import Severity
from rekindle.detectors.rank_rules import RankRule
from rekindle.detectors.ranks import find_suspects, first_bad
from rekindle.monitor import Monitor
from rekindle.monitor.base.run import Identity, Run
from rekindle.monitor.base.state import RunState
from rekindle.monitor.base.trouble import Trouble
from rekindle.monitor.live import LiveMonitor
from rekindle.monitor.liveness.reporter import MAX_TRIES, Reporter
from rekindle.protocol.keys import reply_key
from rekindle.protocol.mailbox import ReplyOutcome
from rekindle.protocol.reports import RankReport, ReportKind, report_key
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor
from tests.monitor.exchanges import MemoryExchange, Shared


@pytest.fixture
def box(tmp_path: Path) -> ObservedBox:
    return ObservedBox(tmp_path / "mailbox")


@pytest.fixture
def started() -> Iterator[list[Monitor]]:
    monitors: list[Monitor] = []
    yield monitors
    for monitor in monitors:
        monitor.finish(timeout_s=PATIENCE_S)


def start(started: list[Monitor], box: ObservedBox, rank: int, world: int, **more: Any) -> LiveMonitor:
    env = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1", "NODE_NAME": f"node-{rank // 8}"}
    arguments: dict[str, Any] = {"config": QUICK, "env": env} | more
    monitor = start_monitor(mailbox=box, rank=rank, world_size=world, **arguments)
    assert isinstance(monitor, LiveMonitor)
    started.append(monitor)
    return monitor


def report(box: ObservedBox, kind: ReportKind, rank: int) -> RankReport:
    key = report_key("run-1", kind, rank)
    box.wait(lambda: key in box.written)
    raw = box.get(key)
    assert raw is not None
    return RankReport.from_json(raw)


def test_every_rank_reports_its_own_stall_with_its_stacks(started: list[Monitor], box: ObservedBox) -> None:
    config = replace(QUICK, stall_startup_s=0.1)
    for rank in (0, 1, 9):
        start(started, box, rank, 16, config=config)
    for rank in (0, 1, 9):  # this, the training thread, blocks here
        told = report(box, ReportKind.STALL, rank)
        assert (told.rank, told.world_size, told.host, told.phase) == (rank, 16, f"node-{rank // 8}", "startup")
        assert told.silent_s is not None
        assert told.silent_s >= 0.1  # beyond its limit, and then rounded to milliseconds
        assert "test_every_rank_reports_its_own_stall" in told.stacks


def test_one_rank_that_has_a_bad_value_first_is_told_from_those_it_infects(
    started: list[Monitor], box: ObservedBox
) -> None:
    ranks = [start(started, box, rank, 4) for rank in range(4)]
    ranks[2].local_non_finite(10, "grad")
    for monitor in ranks:
        monitor.step(10, loss=2.0)
        monitor.step(11, loss=math.nan)
    told = [report(box, ReportKind.NON_FINITE, rank) for rank in range(4)]
    assert [(item.step, item.metric) for item in told] == [(11, "loss"), (11, "loss"), (10, "grad"), (11, "loss")]
    verdict = first_bad(told, 4)
    assert (verdict.suspect_ranks, verdict.rule) == ((2,), RankRule.ALONE_FIRST)


def test_a_rank_s_own_bad_value_keeps_its_weights_from_being_saved_until_a_later_loss_is_finite(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    def save(step: int, kind: str) -> Path:
        path = tmp_path / f"{step}.bin"
        path.write_bytes(b"weights")
        return path

    monitor = start(started, box, 0, 1, save=save)
    monitor.local_non_finite(10, "grad")
    box.ask("r1", "run-1")
    box.wait_polls()
    monitor.step(10, loss=2.0)
    assert (box.reply("r1").outcome, box.manifests) == (ReplyOutcome.CANNOT, [])
    monitor.step(11, loss=2.0)
    box.ask("r2", "run-1")
    box.wait_polls()
    monitor.step(12, loss=2.0)
    assert box.reply("r2").outcome is ReplyOutcome.SAVED


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.s = 0.0

    def now(self) -> datetime:
        return datetime(2026, 11, 21, tzinfo=UTC) + timedelta(seconds=self.s)

    def monotonic(self) -> float:
        return self.s


def reporter(
    box: ObservedBox,
    clock: Hands,
    rank: int,
    world: int,
    state: RunState,
    told: list[Any],
    trouble: Trouble | None = None,
) -> Reporter:
    return Reporter(
        Run(
            identity=Identity(
                job_id="job", attempt="run-1", attempt_number=1, rank=rank, world_size=world, host=f"node-{rank}"
            ),
            clock=clock,
            trouble=trouble or Trouble(),
            state=state,
        ),
        box=box,
        phase=lambda: "training",
        stragglers=StragglerWatch() if rank == 0 else None,
        on_straggler=lambda verdict, paces: told.append((verdict, paces)),
    )


def test_paces_are_reported_once_a_window_and_compared_on_rank_0(box: ObservedBox) -> None:
    clock, told = Hands(), []
    states = [RunState() for _ in range(3)]
    ranks = [reporter(box, clock, rank, 3, state, told) for rank, state in enumerate(states)]
    for second in range(0, 3000, 10):
        clock.s = float(second)
        for rank, state in enumerate(states):
            state.took(second, 1.0, 0.9 if rank == 2 else 0.5)  # the steps are equally long: the others wait
            ranks[rank].turn(is_last=False)
    assert box.written.count(report_key("run-1", ReportKind.PACE, 2)) == 1 + 9
    assert {verdict.evidence["rank"] for verdict, _ in told} == {2}
    verdict, paces = told[-1]
    assert verdict.severity is Severity.ACT
    assert {r: (item.step_s, item.host) for r, item in paces.items()} == {
        0: (0.5, "node-0"),
        1: (0.5, "node-1"),
        2: (0.9, "node-2"),
    }


def test_without_own_work_times_a_rank_only_says_once_where_it_runs(box: ObservedBox) -> None:
    clock, told = Hands(), []
    state = RunState()
    one = reporter(box, clock, 0, 2, state, told)
    for second in range(0, 2000, 50):
        clock.s = float(second)
        state.took(second, 1.0, None)
        one.turn(is_last=False)
    assert (box.written, told) == ([report_key("run-1", ReportKind.PACE, 0)], [])
    greeting = RankReport.from_json(box.get(report_key("run-1", ReportKind.PACE, 0)) or b"")
    assert (greeting.host, greeting.step_s) == ("node-0", None)


def test_thousands_of_ranks_do_not_greet_in_the_same_second(box: ObservedBox) -> None:
    clock = Hands()
    last = reporter(box, clock, 4095, 4096, RunState(), [])
    assert last.turn(is_last=False) == pytest.approx(8.19)
    assert box.written == []
    clock.s = 8.2
    last.turn(is_last=False)
    assert box.written == [report_key("run-1", ReportKind.PACE, 4095)]


def test_a_rank_alone_has_nobody_to_greet(box: ObservedBox) -> None:
    reporter(box, Hands(), 0, 1, RunState(), []).turn(is_last=False)
    assert box.written == []


def test_thousands_of_ranks_report_at_most_one_pace_a_second(box: ObservedBox) -> None:
    clock = Hands()
    state = RunState()
    one = reporter(box, clock, 4095, 4096, state, [])
    for second in range(0, 4 * 4096, 64):
        clock.s = float(second)
        state.took(second, 1.0, 0.5)
        one.turn(is_last=False)
    assert box.written.count(report_key("run-1", ReportKind.PACE, 4095)) == 1 + 2


def test_a_mailbox_that_fails_is_tried_again_and_then_given_up(box: ObservedBox) -> None:
    class Broken(ObservedBox):
        def put(self, key: str, body: bytes) -> None:
            raise OSError("no route to the mailbox")

    clock, trouble = Hands(), Trouble()
    one = reporter(Broken(Path(box.uri)), clock, 1, 2, RunState(), [], trouble)
    one.non_finite(3, "loss")
    turns = 0
    while one._waiting:
        one.turn(is_last=False)
        turns += 1
    assert turns == MAX_TRIES


@pytest.mark.long
def test_ranks_that_wait_and_the_one_that_does_not_are_told_apart_from_live_stacks(
    started: list[Monitor], box: ObservedBox
) -> None:
    """A main thread blocked inside the monitor's own agreement waits for the others; here it does so for real."""
    shared, told = Shared(), list[RankReport]()

    def at_the_meeting(operation: str, key: str) -> None:
        """Rank 0 has come to the agreed step, and rank 1 has not: it never steps again."""
        if (operation, key.endswith("/here/0")) == ("put", True):
            pause = threading.Event()
            for _ in range(int(PATIENCE_S / 0.02)):  # on a slow machine there may be one from before the meeting
                found = report(box, ReportKind.STALL, 0)
                if waits_in(training_frames(found.stacks)) is not None:
                    break
                pause.wait(0.02)
            told.append(found)

    config = replace(QUICK, stall_startup_s=0.1, stall_floor_s=0.1)
    more: dict[str, Any] = {"config": config, "save": lambda s, k: None}
    monitor = start(started, box, 0, 2, exchange=lambda: MemoryExchange(shared, after=at_the_meeting), **more)
    start(started, box, 1, 2, exchange=lambda: MemoryExchange(shared), **more)
    pause, step, asked = threading.Event(), 0, 0
    while not told:
        if asked == 0 or reply_key(f"r{asked}") in box.written:  # on a slow machine: that the run stands still
            asked += 1
            box.ask(f"r{asked}", "run-1")
        step += 1
        assert step < PATIENCE_S / 0.005
        pause.wait(0.005)
        monitor.step(step, loss=1.0)
    verdict = find_suspects(told, 2)
    assert (verdict.suspect_ranks, verdict.rule) == ((1,), RankRule.SILENT)
    assert threading.current_thread() is threading.main_thread()
