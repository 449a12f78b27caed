"""All ranks save at the same step, and ask each other seldom."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from rekindle.mailbox import CheckpointReply, CheckpointRequest, Manifest, manifest_prefix, reply_key, request_key
from rekindle.monitor import AllReduceMax
from rekindle.monitor.agree import Solo, Wish
from rekindle.monitor.agreement import MAX_APART, Agreement
from rekindle.monitor.trouble import Trouble
from tests.monitor.boxes import PATIENCE_S
from tests.monitor.test_process import ROOT


def collectives(agreement: Agreement, steps: int, wish: Wish = Wish.NOTHING) -> list[int]:
    """The steps, of so many, at which the ranks ask each other."""
    asked = []
    for step in range(1, steps + 1):
        if agreement.is_due():
            agreement.ask(wish)
            asked.append(step)
    return asked


def alone(step_s: float | None, agree_s: float = 5.0, every: int | None = None) -> Agreement:
    return Agreement(AllReduceMax(lambda v: v, every=every), Trouble(), agree_s=agree_s, step_s=lambda: step_s)


def test_a_given_number_of_steps_is_kept() -> None:
    assert collectives(alone(0.1, every=10), 35) == [10, 20, 30]
    assert collectives(Agreement(Solo(), Trouble(), agree_s=5, step_s=lambda: 1.0), 3) == [1, 2, 3]


def test_the_ranks_ask_each_other_about_every_five_seconds_of_training() -> None:
    asked = collectives(alone(0.1), 1000)
    assert asked[:6] == [1, 3, 7, 15, 31, 63], "twice as far each time: a few quick first steps settle nothing"
    assert {later - earlier for earlier, later in pairwise(asked[6:])} == {50}
    assert len(asked) == 24


def test_long_steps_ask_at_every_one_and_short_ones_not_too_seldom() -> None:
    assert collectives(alone(30.0), 5) == [1, 2, 3, 4, 5]
    assert collectives(alone(None), 5) == [1, 2, 3, 4, 5]
    fast = collectives(alone(1e-6), 5000)
    assert fast[-1] - fast[-2] == MAX_APART


def test_ranks_with_different_pace_agree_on_one_number_of_steps_and_the_highest_wish_wins() -> None:
    values: list[int] = []

    def highest_of_two(value: int) -> int:
        values.append(value)
        return max(value, int(Wish.SAVE) << 20 | 7)  # the other rank wants a save, and to ask again after 7 steps

    agreement = Agreement(AllReduceMax(highest_of_two), Trouble(), agree_s=5, step_s=lambda: 0.01)
    assert agreement.is_due()
    assert agreement.ask(Wish.NOTHING) is Wish.SAVE
    assert [agreement.is_due() for _ in range(7)] == [False] * 6 + [True]
    assert agreement.ask(Wish.STOP) is Wish.STOP
    assert all(value < 2**24 for value in values), "a small integer: any framework's all-reduce can carry it"


RANK = """
import json, os, sys, threading
from multiprocessing.connection import Client, Listener
from pathlib import Path
import rekindle.monitor as rekindle

here, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if rank == 0:
    with Listener(("127.0.0.1", 0), backlog=world) as listener:
        print(listener.address[1], flush=True)
        peers = [listener.accept() for _ in range(world - 1)]
    def highest(value):
        result = max([value] + [peer.recv() for peer in peers])
        for peer in peers:
            peer.send(result)
        return result
else:
    line = Client(("127.0.0.1", int(sys.argv[4])))
    def highest(value):
        line.send(value)
        return line.recv()

saves = []
def save(step, kind):
    saves.append(step)
    root = here / "ckpt" / f"step-{step}"
    root.mkdir(parents=True, exist_ok=True)
    (root / f"rank-{rank}.bin").write_bytes(b"w" * 10)
    return root

mon = rekindle.start(
    save=save, mailbox=str(here), rank=rank, world_size=world, handle_signals=True,
    coordinator=rekindle.AllReduceMax(highest),
    config=rekindle.Config(beat_s=0.2, poll_s=0.05, agree_s=0.05),
    env={"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"},
)
print("ready", flush=True)
step, pause = 0, threading.Event()
while not mon.should_stop:
    step += 1
    pause.wait(0.001 * (1 + rank))  # no collective in the steps themselves: the ranks drift apart between agreements
    mon.step(step, loss=1.0)
mon.finish()
print(json.dumps({"saves": saves, "last": step}), flush=True)
"""


def until(is_so: object, what: str) -> None:
    ticks = threading.Event()
    for _ in range(int(PATIENCE_S / 0.05)):
        if is_so():  # type: ignore[operator]
            return
        ticks.wait(0.05)
    raise AssertionError(f"still not so: {what}")


@pytest.mark.process
def test_processes_that_drift_apart_save_at_the_same_step_whoever_asks(tmp_path: Path) -> None:
    world = 3
    port = ""
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank in range(world):
            process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(RANK), str(tmp_path), str(rank), str(world), port],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            ranks.append(process)
            if rank == 0:
                assert process.stdout is not None
                port = process.stdout.readline().strip()
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        manifests = tmp_path / manifest_prefix()

        def count() -> int:
            return len(list(manifests.glob("step-*.json"))) if manifests.exists() else 0

        request = CheckpointRequest(
            request_id="r1",
            job_id="job",
            attempt="run-1",
            deadline_s=PATIENCE_S,
            reason="a test asks",
        )
        (tmp_path / request_key("r1")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / request_key("r1")).write_bytes(request.to_json())
        until((tmp_path / reply_key("r1")).exists, "the request is answered")
        ranks[1].send_signal(signal.SIGUSR1)
        until(lambda: count() >= 2, "a save after SIGUSR1 on rank 1")
        ranks[2].send_signal(signal.SIGTERM)
        said = [process.communicate(timeout=PATIENCE_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert [process.returncode for process in ranks] == [0] * world, said
    ends = [json.loads(out) for out, _ in said]
    assert ends[0] == ends[1] == ends[2], "the same saves, and the same last step"
    assert len(ends[0]["saves"]) == 3
    assert ends[0]["last"] == ends[0]["saves"][-1], "after SIGTERM the loop ends at the step that was saved"
    reply = CheckpointReply.from_json((tmp_path / reply_key("r1")).read_bytes())
    assert reply.step == ends[0]["saves"][0]
    assert reply.manifest is not None
    manifest = Manifest.from_json((tmp_path / reply.manifest).read_bytes())
    assert [item.path for item in manifest.files] == [f"rank-{rank}.bin" for rank in range(world)]
    assert (reply.bytes, reply.took_s is not None) == (10 * world, True)
    assert f"saved at step {reply.step}: 3 files, 30 bytes in " in reply.why
