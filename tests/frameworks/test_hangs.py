"""Hangs of real gloo runs under the monitor: the rank that holds them up is named by what their recorders show."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import hangs
from rekindle.monitor.base.trouble import Trouble
from rekindle.monitor.liveness.flight import FlightRecorder, switch_on

pytestmark = pytest.mark.process


def play(kind: str, world: int, bad: int) -> hangs.Outcome:
    """In a process of its own, which forks the ranks: this one has threads."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(hangs.play, (kind, world, bad))


@pytest.mark.parametrize("kind", ["another group", "all wait for storage"])
def test_what_the_stacks_do_not_tell_the_recorders_do(kind: str) -> None:
    outcome = play(kind, 3, 1)
    assert outcome.is_right, outcome
    assert not outcome.was_right  # else this would say nothing of the recorders


# Each kind at the smallest size of these that shows it; `make bench ARGS=hangs` plays all sizes up to 8.
CASES = {kind: (kind, world, bad) for kind, world, bad in reversed(list(hangs.cases((3, 4))))}


@pytest.mark.parametrize(("kind", "world", "bad"), CASES.values())
def test_each_hang_is_named_and_no_node_is_wrongly_accused(kind: str, world: int, bad: int) -> None:
    outcome = play(kind, world, bad)
    assert outcome.is_right, outcome
    assert not outcome.condemns_wrongly


def test_torch_is_told_to_record_unless_someone_has_decided_that() -> None:
    untold: dict[str, str] = {}
    switch_on(untold)
    assert untold == {"TORCH_FR_BUFFER_SIZE": "2000"}
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        told = {name: "0"}
        switch_on(told)
        assert told == {name: "0"}


def test_a_recorder_that_never_answers_costs_a_second_and_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    never, asked = threading.Event(), []

    def handle(*_: Any) -> None:
        asked.append(1)
        never.wait()

    c10d = SimpleNamespace(_WorkerServer=handle)
    monkeypatch.setitem(sys.modules, "torch.distributed", SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", c10d)
    recorder = FlightRecorder(Trouble())
    begun = time.monotonic()
    assert [recorder.read(0.1), recorder.read(60.0), recorder.read(60.0)] == [None, None, None]
    assert time.monotonic() - begun < 30.0
    assert asked == [1]
    never.set()
