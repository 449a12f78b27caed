"""The ranks agree on a save through an exchange: at the same call, on all ranks or on none."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import boto3
import pytest
from moto import mock_aws

import rekindle.monitor as rekindle
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.run import Identity
from rekindle.monitor.mail.boxes import DirectoryBox, open_box
from rekindle.monitor.mail.exchange import MAX_RANKS_ON_S3, BoxExchange, exchange_of
from rekindle.monitor.saving.agreement_terms import Notice, Plan, RankRequest
from rekindle.protocol.keys import manifest_prefix, reply_key, request_key
from rekindle.protocol.mailbox import CheckpointReply, CheckpointRequest, ReplyOutcome
from rekindle.protocol.manifests import Manifest
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor
from tests.monitor.exchanges import MemoryExchange, Shared, check_contract
from tests.monitor.stories import Fault, Story
from tests.monitor.test_process import ROOT

pytestmark = pytest.mark.long

STORIES = 240
AT_ONCE = 8


# ---- exchanges -------------------------------------------------------------------------------------------------------


def test_memory_keeps_the_contract() -> None:
    shared = Shared()
    check_contract(lambda: MemoryExchange(shared))


def test_a_directory_keeps_the_contract(tmp_path: Path) -> None:
    check_contract(lambda: BoxExchange(DirectoryBox(str(tmp_path)), attempt="run-1", world_size=2))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        boto3.client("s3").create_bucket(Bucket="mailbox")
        yield "s3://mailbox/job"


def test_s3_keeps_the_contract(bucket: str) -> None:
    box = open_box(bucket, Clients())
    # S3 makes one conditional write of several win; moto looks and writes in two steps, which threads come between.
    check_contract(lambda: BoxExchange(box, attempt="run-1", world_size=2), races=False)
    of = partial(Identity, job_id="job", attempt="run-1", attempt_number=1, rank=0)
    assert exchange_of(box, of(world_size=MAX_RANKS_ON_S3)) is not None
    assert exchange_of(box, of(world_size=MAX_RANKS_ON_S3 + 1)) is None, "a look is a paid request"


def test_a_notice_is_read_as_it_was_written_and_nothing_else_is() -> None:
    notice = Notice(session="s", era=3, plan=Plan(number=2, wish=RankRequest.SAVE, at_call=9), lost="why", is_over=True)
    assert Notice.from_text(notice.to_text()) == notice
    for text in ("", "[]", "{}", '{"session": 1}', notice.to_text().replace("2, 1, 9", "2, 9, 9")):
        with pytest.raises(ValueError):
            Notice.from_text(text)


# ---- random runs -----------------------------------------------------------------------------------------------------


def played(seeds: range, make: Callable[[int], Story]) -> tuple[list[Story], list[str]]:
    logger = logging.getLogger("rekindle.monitor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        stories = [make(seed) for seed in seeds]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = list(pool.map(lambda story: story.play(), stories))
    finally:
        logger.setLevel(before)
    return stories, [what for wrong in found for what in wrong]


def test_in_random_runs_with_random_faults_all_ranks_save_at_the_same_call_or_none_does() -> None:
    stories, wrong = played(range(STORIES), Story)
    assert wrong == []
    whole = {story.fault for story in stories for calls in story.entered.values() if len(calls) == story.world}
    assert whole >= {Fault.NONE, Fault.ONCE_BEFORE, Fault.ONCE_AFTER, Fault.FREEZES, Fault.FAILS_TO_SAVE}


class Miscounts(MemoryExchange):
    """Breaks the contract: keys that are not there count as there, so no answer is waited for."""

    def has_all(self, keys: Sequence[str]) -> bool:
        return True


def test_the_random_runs_notice_when_a_plan_is_decided_without_the_ranks_answers() -> None:
    faults = (Fault.FREEZES, Fault.FINISHES)
    _, wrong = played(range(24), lambda seed: Story(seed, Miscounts, faults, patience_s=8.0))
    assert any("did not save, the others did" in what for what in wrong)


def test_after_a_failure_that_passes_the_ranks_agree_again() -> None:
    passing = tuple(fault for fault in Fault if fault.passes)
    _, wrong = played(range(1000, 1040), lambda seed: Story(seed, faults=passing, asks_again=True))
    assert wrong == []


# ---- one fault at a time, with whole monitors ------------------------------------------------------------------------


def together(world: int, train: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def start(box: ObservedBox, rank: int, world: int, **more: object) -> rekindle.Monitor:
    arguments = {"config": QUICK, "env": {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}} | more
    return start_monitor(mailbox=box, rank=rank, world_size=world, **arguments)  # type: ignore[arg-type]


def test_an_exchange_that_never_answers_holds_training_up_once_and_a_wish_is_then_met_alone(tmp_path: Path) -> None:
    box, shared, released = ObservedBox(tmp_path), Shared(), threading.Event()
    held: list[str] = []

    def black_hole(operation: str, key: str) -> None:
        if key.endswith("/here/1"):  # a connection that hangs, from the meeting on
            held.append(key)
            released.wait()

    saves: list[int] = []
    ends: dict[int, bool] = {}

    def train(rank: int) -> None:
        before = black_hole if rank == 1 else lambda _, __: None
        opened = lambda: MemoryExchange(shared, before)  # noqa: E731
        monitor = start(box, rank, 2, exchange=opened, save=lambda step, kind: saves.append(rank))
        if rank == 0:
            box.ask("r1", "run-1")
        pause, step = threading.Event(), 0
        while reply_key("r1") not in box.written or (rank == 1 and step < 2000):
            step += 1
            pause.wait(0.002 if reply_key("r1") not in box.written else 0)
            monitor.step(step, loss=1.0)
        ends[rank] = monitor.should_stop
        if rank == 1:
            assert len(held) == 1, "asked for once"
            monitor.finish(timeout_s=0.5)
        else:
            monitor.finish(timeout_s=5.0)

    together(2, train)
    released.set()
    assert saves == [], "rank 1 did not come, so no rank saves"
    assert ends == {0: False, 1: False}
    reply = box.reply("r1")
    assert "ranks 1 of 2" in reply.why


def test_a_run_that_ends_normally_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rank 0 ends first, and with it the process that holds the exchange."""
    box, shared, is_gone = ObservedBox(tmp_path), Shared(), threading.Event()

    def gone(operation: str, key: str) -> None:
        if is_gone.is_set():
            raise ConnectionResetError("Connection reset by peer")

    def train(rank: int) -> None:
        monitor = start(box, rank, 3, exchange=lambda: MemoryExchange(shared, gone))
        pause = threading.Event()
        for step in range(1, 30):
            pause.wait(0.002)
            monitor.step(step, loss=1.0)
        if rank == 0:
            monitor.finish(timeout_s=PATIENCE_S)
            is_gone.set()
        else:
            assert is_gone.wait(PATIENCE_S)
            for step in range(30, 60):
                pause.wait(0.01)
                monitor.step(step, loss=1.0)
            monitor.finish(timeout_s=PATIENCE_S)
        assert "coordinator" not in monitor.health()
        assert "exchange_failures" not in monitor.health()

    together(3, train)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_what_an_earlier_launch_left_in_the_directory_is_not_obeyed(tmp_path: Path) -> None:
    box = ObservedBox(tmp_path)
    old = BoxExchange(box, attempt="run-1", world_size=2)
    old.put(
        "notice", Notice(session="old", plan=Plan(number=7, wish=RankRequest.STOP, at_call=3), is_over=True).to_text()
    )
    old.put("old/wish", str(int(RankRequest.STOP)))
    for name in ("m1/0", "m1/1", "7/ack/0", "7/ack/1"):
        old.put(f"old/{name}", "1")
    old.put_new("old/7/fate", "go")
    saves: list[int] = []
    box.ask("r1", "run-1")

    def train(rank: int) -> None:
        def save(step: int, kind: str) -> str:
            saves.append(rank)
            path = tmp_path / "step.bin"
            path.write_bytes(b"weights")
            return str(path)

        monitor = start(box, rank, 2, save=save)
        pause, step = threading.Event(), 0
        while reply_key("r1") not in box.written or len(saves) < 2:
            step += 1
            assert step < PATIENCE_S / 0.002
            pause.wait(0.002)
            monitor.step(step, loss=1.0)
            assert not monitor.should_stop
        monitor.finish(timeout_s=PATIENCE_S)

    together(2, train)
    assert sorted(saves) == [0, 1]
    assert box.reply("r1").outcome is ReplyOutcome.SAVED


# ---- processes -------------------------------------------------------------------------------------------------------


RANK = """
import json, os, sys, threading
from pathlib import Path
from rekindle.monitor import Ranks
from rekindle.monitor.base.settings import Config
from rekindle.monitor.starting import start_in

here, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
saves = []
def at(other):
    try:
        return int((here / f"at-{other}").read_text() or 0)
    except FileNotFoundError:
        return 0

def save(step, kind):
    saves.append(step)
    root = here / "ckpt" / f"step-{step}"
    root.mkdir(parents=True, exist_ok=True)
    (root / f"rank-{rank}.bin").write_bytes(b"w" * 10)
    return root

mon = start_in(
    {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"},
    save=save, mailbox=str(here), ranks=Ranks(rank=rank, world_size=world), signals=("TERM", "USR1"),
    config=Config(heartbeat_s=0.2, poll_s=0.05, agree_s=0.05),
)
print("ready", flush=True)
step, pause = 0, threading.Event()
while not mon.should_stop:
    step += 1
    pause.wait(0.002 * (1 + rank))
    (here / f"at-{rank}").write_text(str(step))
    while step > 20 + min(at(other) for other in range(world)):  # they drift apart, but not for good
        pause.wait(0.001)
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
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank in range(world):
            process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(RANK), str(tmp_path), str(rank), str(world)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            ranks.append(process)
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
