"""Eight real processes of a run of 2,048 ranks stall, and one of them is frozen: what their host's summary says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rekindle.detectors.frames import training_frames
from rekindle.protocol.reports import ReportKind, report_key
from rekindle.protocol.summaries import HostSummary, summary_key
from tests.monitor.boxes import ObservedBox
from tests.monitor.processes import until

WORLD, FIRST = 2048, 64
RANK = f"""
import os, sys, threading
from rekindle.monitor import Ranks
from rekindle.monitor.base.settings import Config
from rekindle.monitor.mail.boxes import DirectoryBox
from rekindle.monitor.starting import start_in

config = Config(watch_s=0.1, stall_floor_s=1.0, stall_factor=2.0, poll_s=1.0, heartbeat_s=1.0)
rank = int(sys.argv[2])
ranks = Ranks(rank=rank, world_size={WORLD})
monitor = start_in(os.environ, mailbox=DirectoryBox(sys.argv[1]), ranks=ranks, config=config)
for step in range(1, 40):
    threading.Event().wait(0.05)
    monitor.step(step, loss=2.0)

def waits_for_the_others():
    threading.Event().wait()

waits_for_the_others()
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    env = {
        **os.environ,
        "REKINDLE_JOB_ID": "job",
        "TRAINING_JOB_NAME": "run-1",
        "NODE_NAME": "node-8",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    started = [
        subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path / "box"), str(FIRST + number)], env=env)
        for number in range(8)
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("frozen", [0, 5])
def test_whichever_rank_is_frozen_the_others_write_what_their_host_s_ranks_said(
    ranks: list[subprocess.Popen[bytes]], tmp_path: Path, frozen: int
) -> None:
    box = ObservedBox(tmp_path / "box")
    greeted = [report_key("run-1", ReportKind.PACE, FIRST + number) for number in range(8)]
    until(lambda: all(box.get(key) is not None for key in greeted))
    os.kill(ranks[frozen].pid, signal.SIGSTOP)
    found: list[HostSummary] = []

    def has_seven() -> bool:
        raw = box.get(summary_key("run-1", ReportKind.STALL, FIRST))
        found[:] = [] if raw is None else [HostSummary.from_json(raw)]
        return bool(found) and sum(report.kind is ReportKind.STALL for _, report in found[0].reports) == 7

    until(has_seven)
    said = {report.rank: report for _, report in found[0].reports}
    assert said[FIRST + frozen].kind is ReportKind.PACE
    assert {report.host for report in said.values()} == {"node-8"}
    frames = [training_frames(report.stacks) for rank, report in said.items() if rank != FIRST + frozen]
    assert all(any(frame.function == "waits_for_the_others" for frame in one) for one in frames)
