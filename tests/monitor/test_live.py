"""The monitor with real threads and a real directory as mailbox."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rekindle.monitor as rekindle
from rekindle.monitor import Monitor
from rekindle.monitor.base.run import Identity, Run
from rekindle.monitor.base.trouble import Trouble
from rekindle.monitor.base.worker import Worker
from rekindle.monitor.mail.mailbox_thread import Mail
from rekindle.monitor.mail.requests import Requests
from rekindle.protocol.keys import doorbell_key, reply_key
from rekindle.protocol.mailbox import LossState, ReplyOutcome, RunPhase
from rekindle.protocol.manifests import ITSELF, SaveKind, relative_path, verify_listing
from rekindle.protocol.wire import Place
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor
from tests.monitor.exchanges import MemoryExchange, Shared


@pytest.fixture
def box(tmp_path: Path) -> ObservedBox:
    return ObservedBox(tmp_path / "mailbox")


class Trainer:
    """A save function that writes two shards and remembers when it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[tuple[int, str, str]] = []

    def save(self, step: int, kind: str) -> Path:
        self.calls.append((step, kind, threading.current_thread().name))
        root = self.folder / f"step-{step}"
        (root / "shards").mkdir(parents=True)
        (root / "shards" / "0.bin").write_bytes(b"weights" * step)
        (root / "optimizer.bin").write_bytes(b"moments")
        (root / "_SUCCESS").touch()
        return root


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path / "checkpoints")


@pytest.fixture
def started() -> Iterator[list[Monitor]]:
    monitors: list[Monitor] = []
    yield monitors
    for monitor in monitors:
        monitor.finish(timeout_s=PATIENCE_S)


def start(started: list[Monitor], box: ObservedBox, trainer: Trainer | None, **more: object) -> Monitor:
    arguments = {"config": QUICK, "env": {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}} | more
    if trainer is not None:
        arguments["save"] = trainer.save
    monitor = start_monitor(mailbox=box, **arguments)  # type: ignore[arg-type]
    assert not monitor.is_silent
    started.append(monitor)
    return monitor


def sizes(root: str) -> dict[str, int]:
    base = Path(Place.parse(root).path)
    found = [base] if base.is_file() else [path for path in base.rglob("*") if path.is_file()]
    return {relative_path(str(base), str(path)) or "": path.stat().st_size for path in found}


def test_a_request_is_saved_at_the_next_step_sealed_by_a_manifest_and_then_answered(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    monitor = start(started, box, trainer)
    monitor.step(41, loss=2.5)
    box.ask("r1", "run-1")
    box.wait_polls()
    assert trainer.calls == [], "nothing is saved between steps: the state is not consistent there"
    monitor.step(42, loss=2.4)

    reply = box.reply("r1")
    assert (reply.outcome, reply.step) == (ReplyOutcome.SAVED, 42)
    assert trainer.calls == [(42, "emergency", threading.current_thread().name)]
    assert reply.manifest is not None
    manifest = box.manifest(reply.manifest)
    assert (manifest.step, manifest.kind, manifest.request_id) == (42, SaveKind.EMERGENCY, "r1")
    assert [item.path for item in manifest.files] == ["optimizer.bin", "shards/0.bin"]
    assert manifest.loss == 2.4
    assert verify_listing(manifest, sizes(manifest.root)) == ()
    assert reply.bytes == manifest.total_bytes == 7 + 7 * 42
    answered = [key for key in box.written if key in (reply.manifest, reply_key("r1"))]
    assert answered == [reply.manifest, reply_key("r1")], "the manifest first, the reply last"

    monitor.step(43, loss=2.3)
    box.wait_polls()
    assert len(trainer.calls) == 1, "a request is served once"


def test_a_superseded_monitor_refuses_writes_no_manifest_and_says_so_once(
    started: list[Monitor], box: ObservedBox, trainer: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = start(started, box, trainer)
    monitor.step(1, loss=1.0)
    box.fence("run-2", 2, "run-1")
    box.wait_polls()
    box.ask("r1", "run-1")
    assert box.reply("r1").outcome is ReplyOutcome.REFUSED
    monitor.step(2, loss=1.0)
    monitor.saved(trainer.save(2, "periodic"), 2)
    assert monitor.flush(PATIENCE_S)
    assert monitor.superseded
    assert monitor.should_stop
    assert box.manifests == []
    assert [record.message for record in caplog.records if "superseded" in record.message] == [
        "This attempt was superseded by run-2: its checkpoints no longer count, the run should end"
    ]


def test_an_attempt_made_by_hand_that_met_the_old_fence_saves_once_it_is_adopted(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    """Its environment is a copy: the number of the attempt it was cloned from, which the fence names."""
    box.fence("run-2", 2, "run-1")
    env = {"REKINDLE_JOB_ID": "job", "REKINDLE_ATTEMPT": "2", "TRAINING_JOB_NAME": "by-hand"}
    monitor = start(started, box, trainer, env=env)
    box.wait_polls()
    assert monitor.superseded
    box.fence("by-hand", 3, "run-1", "run-2")
    box.wait_polls()
    assert not monitor.superseded
    monitor.saved(trainer.save(7, "periodic"), 7)
    assert monitor.flush(PATIENCE_S)
    assert len(box.manifests) == 1


def test_a_fence_that_falls_between_save_and_manifest_still_holds(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    monitor = start(started, box, trainer, config=replace(QUICK, poll_s=3600.0))
    box.wait(lambda: box.polls >= 1)
    box.fence("run-2", 2, "run-1")
    monitor.saved(trainer.save(7, "periodic"), 7)
    assert monitor.flush(PATIENCE_S)
    assert monitor.superseded
    assert box.manifests == []


def test_a_zombie_does_not_answer_in_its_successors_name(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    box.fence("run-2", 2, "run-1")
    start(started, box, trainer)
    box.ask("r-for-new", "run-2")
    box.wait_polls(3)
    assert reply_key("r-for-new") not in box.written


def test_requests_that_expired_or_name_a_dead_attempt_are_refused(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    box.fence("run-1", 1, "run-0")
    start(started, box, trainer)
    box.ask("late", "run-1", within_s=0)
    box.ask("other", "run-0")
    assert box.reply("late").outcome is ReplyOutcome.REFUSED
    assert box.reply("other").why == "the request is for another attempt"
    assert trainer.calls == []


def test_a_main_thread_that_never_comes_to_a_step_answers_cannot_with_its_stack(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    monitor = start(started, box, trainer)
    monitor.step(5, loss=1.0)
    box.ask("r1", "run-1", within_s=4.0)  # long enough to be read in time on a busy machine
    reply = box.reply("r1")  # this, the training thread, hangs here instead of stepping
    assert reply.outcome is ReplyOutcome.CANNOT
    assert "after step 5" in reply.why
    assert reply.stacks is not None
    assert "test_a_main_thread_that_never_comes_to_a_step" in reply.stacks
    monitor.step(6, loss=1.0)
    assert trainer.calls == [], "an answered request is no longer served"


def test_a_thread_that_is_known_to_be_stuck_is_answered_for_long_before_the_deadline(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    brisk = replace(QUICK, stall_floor_s=0.2, stall_startup_s=0.2)
    monitor = start(started, box, trainer, config=brisk)
    monitor.step(5, loss=1.0)
    box.ask("before", "run-1", within_s=86400.0)  # the stall is judged after it was asked, or before: both
    reply = box.reply("before")
    assert (reply.outcome, "is stuck" in reply.why) == (ReplyOutcome.CANNOT, True)
    box.ask("after", "run-1", within_s=86400.0)
    reply = box.reply("after")
    assert (reply.outcome, "is stuck" in reply.why) == (ReplyOutcome.CANNOT, True)
    monitor.step(6, loss=1.0)  # it moves again: the next request is served
    assert trainer.calls == []


def test_a_save_that_has_begun_answers_for_itself_however_long_it_is_silent(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    """The thread is stalled inside the save, as far as the watchdog can tell: its own end is the answer."""
    brisk = replace(QUICK, stall_saving_s=0.2)

    def save(step: int, kind: str) -> Path:
        box.wait(lambda: any("stall" in key for key in box.written))
        box.wait_polls()
        root = tmp_path / "ckpt"
        root.mkdir()
        (root / "model.bin").write_bytes(b"weights")
        return root

    monitor = start_monitor(
        save=save, mailbox=box, config=brisk, env={"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}
    )
    started.append(monitor)
    box.ask("r1", "run-1", within_s=86400.0)
    box.wait_polls()
    monitor.step(1, loss=1.0)
    assert box.reply("r1").outcome is ReplyOutcome.SAVED


def test_a_save_function_that_raises_is_an_answer_and_training_goes_on(
    started: list[Monitor], box: ObservedBox
) -> None:
    def broken(step: int, kind: str) -> str:
        raise OSError("No space left on device")

    monitor = start_monitor(
        save=broken, mailbox=box, config=QUICK, env={"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}
    )
    started.append(monitor)
    box.ask("r1", "run-1")
    box.wait_polls()
    monitor.step(1, loss=1.0)
    reply = box.reply("r1")
    assert reply.outcome is ReplyOutcome.CANNOT
    assert "No space left" in reply.why
    assert box.manifests == []


@pytest.mark.parametrize("damage", ["empty", "missing"])
def test_a_damaged_checkpoint_gets_no_manifest(
    started: list[Monitor], box: ObservedBox, tmp_path: Path, damage: str
) -> None:
    def save(step: int, kind: str) -> Path:
        root = tmp_path / "ckpt"
        root.mkdir()
        if damage == "empty":
            (root / "model.bin").touch()
        return root

    monitor = start_monitor(
        save=save, mailbox=box, config=QUICK, env={"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}
    )
    started.append(monitor)
    box.ask("r1", "run-1")
    box.wait_polls()
    monitor.step(1, loss=1.0)
    assert box.reply("r1").outcome is ReplyOutcome.CANNOT
    assert box.manifests == []


def test_weights_poisoned_by_a_bad_loss_are_not_saved(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    monitor = start(started, box, trainer)
    monitor.step(1, loss=math.nan)
    box.ask("r1", "run-1")
    box.wait_polls()
    monitor.step(2, loss=math.nan)
    assert "not finite" in box.reply("r1").why
    assert trainer.calls == []


def test_a_bad_loss_reaches_the_heartbeat_as_a_state_never_as_a_number_and_once_it_lasts(
    started: list[Monitor], box: ObservedBox
) -> None:
    monitor = start(started, box, None)
    monitor.step(8, loss=1.0)
    monitor.step(9, loss=math.nan)
    heartbeat = box.wait_heartbeat("run-1", lambda heartbeat: heartbeat.step == 9)
    assert (heartbeat.loss, heartbeat.loss_state) == (None, LossState.NONE)
    for step in (10, 11):
        monitor.step(step, loss=math.nan)
    heartbeat = box.wait_heartbeat("run-1", lambda heartbeat: heartbeat.step == 11)
    assert (heartbeat.loss, heartbeat.loss_state) == (None, LossState.NAN)


def test_heartbeats_say_where_the_run_is_and_that_it_finished(started: list[Monitor], box: ObservedBox) -> None:
    monitor = start(started, box, None)
    first = box.wait_heartbeat("run-1", lambda heartbeat: True)
    assert (first.phase, first.step) == (RunPhase.STARTUP, None)
    for step in range(100, 105):
        monitor.step(step, loss=1.5)
    heartbeat = box.wait_heartbeat("run-1", lambda heartbeat: heartbeat.step == 104)
    assert (heartbeat.first_step, heartbeat.loss, heartbeat.phase) == (100, 1.5, RunPhase.TRAINING)
    with monitor.phase("evaluation"):
        box.wait_heartbeat("run-1", lambda heartbeat: heartbeat.phase is RunPhase.EVALUATION)
    monitor.finish(timeout_s=PATIENCE_S)
    last = box.heartbeat("run-1")
    assert last is not None
    assert last.phase is RunPhase.FINISHED


def test_a_periodic_save_of_one_file_is_sealed_off_the_training_thread(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    monitor = start(started, box, None)
    monitor.step(10, loss=1.0)
    snapshot = tmp_path / "snapshot-10.npz"
    snapshot.write_bytes(b"all of it")
    monitor.saved(snapshot, 10, data={"sampler": 1234})
    assert monitor.flush(PATIENCE_S)
    [key] = box.manifests
    manifest = box.manifest(key)
    assert (manifest.root, manifest.kind, manifest.data) == (str(snapshot), SaveKind.PERIODIC, {"sampler": 1234})
    assert [item.path for item in manifest.files] == [ITSELF]
    assert verify_listing(manifest, sizes(manifest.root)) == ()


def test_a_periodic_save_that_comes_first_answers_the_request(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    monitor = start(started, box, trainer)
    monitor.step(10, loss=1.0)
    box.ask("r1", "run-1")
    box.wait_polls()
    monitor.saved(trainer.save(10, "periodic"), 10)
    assert (box.reply("r1").outcome, box.reply("r1").step) == (ReplyOutcome.SAVED, 10)
    monitor.step(11, loss=1.0)
    assert len(trainer.calls) == 1


def test_a_local_checkpoint_folder_that_is_uploaded_is_named_by_its_uri(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    env = {
        "REKINDLE_JOB_ID": "job",
        "TRAINING_JOB_NAME": "run-1",
        "REKINDLE_CHECKPOINT_DIR": str(trainer.folder),
        "REKINDLE_CHECKPOINT_URI": "s3://bucket/job/ckpt",
        "REKINDLE_RESUME_STEP": "3",
        "REKINDLE_RESUME_URI": "s3://bucket/job/ckpt/step-3",
        "REKINDLE_SKIP": "[[4,6]]",
    }
    monitor = start(started, box, trainer, env=env)
    assert monitor.resume_path == str(trainer.folder / "step-3")
    assert [step for step in range(8) if monitor.should_skip(step)] == [4, 5]
    monitor.saved(trainer.save(8, "periodic"), 8)
    assert monitor.flush(PATIENCE_S)
    assert box.manifest(box.manifests[0]).root == "s3://bucket/job/ckpt/step-8"


def in_threads(world: int, train: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def train_until(monitor: Monitor, is_so: Callable[[], bool], *, pace_s: float = 0.002) -> int:
    """Steps until something is so; the number of the last one."""
    pause, step = threading.Event(), 0
    while not is_so():
        step += 1
        assert step < PATIENCE_S / pace_s
        pause.wait(pace_s)
        monitor.step(step, loss=1.0)
    return step


def test_ranks_that_see_the_request_at_different_times_save_at_the_same_step(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    world = 3
    saves: list[tuple[int, int]] = []
    root = tmp_path / "sharded"
    root.mkdir()
    box.ask("r1", "run-1")

    def train(rank: int) -> None:
        def save(step: int, kind: str) -> Path | None:
            saves.append((rank, step))
            (root / f"rank-{rank}.bin").write_bytes(bytes([rank + 1]) * 10)
            return root if rank == 0 else None

        monitor = start(started, box, None, save=save, rank=rank, world_size=world)
        train_until(monitor, lambda: len(saves) == world, pace_s=0.002 * (1 + rank))

    in_threads(world, train)
    reply = box.reply("r1")
    assert saves == [(rank, reply.step) for rank, _ in saves]
    assert sorted(rank for rank, _ in saves) == [0, 1, 2]
    assert reply.manifest is not None
    assert [item.path for item in box.manifest(reply.manifest).files] == [f"rank-{rank}.bin" for rank in range(world)]


def test_one_rank_that_fails_to_save_spoils_the_checkpoint_for_all(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    file = tmp_path / "ckpt.bin"
    file.write_bytes(b"fine here")
    box.ask("r1", "run-1")

    class DiskFull(BaseException):
        """As torch's CheckpointException is."""

    def train(rank: int) -> None:
        def save(step: int, kind: str) -> Path:
            if rank == 1:
                raise DiskFull("no space left on device")
            return file

        monitor = start(started, box, None, save=save, rank=rank, world_size=2)
        train_until(monitor, lambda: reply_key("r1") in box.written)
        assert not monitor.should_stop, "all came out of the save, so all can train on"

    in_threads(2, train)
    reply = box.reply("r1")
    assert reply.outcome is ReplyOutcome.CANNOT
    assert "rank 1" in reply.why
    assert "no space left on device" in reply.why
    assert box.manifests == []


def test_a_rank_whose_loss_is_not_finite_refuses_the_save_for_all(started: list[Monitor], box: ObservedBox) -> None:
    saves: list[int] = []

    def train(rank: int) -> None:
        def save(step: int, kind: str) -> str:
            saves.append(rank)
            return "/nowhere"

        monitor = start(started, box, None, save=save, rank=rank, world_size=2)
        if rank == 0:
            box.ask("r1", "run-1")
        pause, step = threading.Event(), 0
        while reply_key("r1") not in box.written:
            step += 1
            pause.wait(0.002)
            monitor.step(step, loss=math.nan if rank == 1 else 1.0)

    in_threads(2, train)
    reply = box.reply("r1")
    assert "rank 1: the loss or the gradient is not finite" in reply.why
    assert (saves, box.manifests) == ([], [])


def test_ranks_that_have_nothing_to_agree_through_never_save_on_request_and_say_so_once(
    started: list[Monitor], box: ObservedBox, trainer: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = start(started, box, trainer, rank=0, world_size=2, exchange=lambda: None)
    box.ask("r1", "run-1")
    train_until(monitor, lambda: reply_key("r1") in box.written)
    reply = box.reply("r1")
    assert reply.outcome is ReplyOutcome.CANNOT
    assert "no coordinator" in reply.why
    assert trainer.calls == []
    assert caplog.text.count("No coordinator") == 1


def test_rank_0_saves_by_itself_where_its_save_needs_no_other_rank(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    monitor = start(started, box, trainer, rank=0, world_size=2, exchange=lambda: None, saves_alone=True)
    other = start(started, box, trainer, rank=1, world_size=2, exchange=lambda: None, saves_alone=True)
    box.ask("r1", "run-1")
    train_until(monitor, lambda: reply_key("r1") in box.written)
    train_until(other, lambda: True)
    assert box.reply("r1").outcome is ReplyOutcome.SAVED
    assert len(trainer.calls) == 1


def test_ranks_that_can_no_longer_agree_train_on_and_answer_cannot(
    started: list[Monitor], box: ObservedBox, trainer: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(operation: str, key: str) -> None:
        raise RuntimeError("Connection reset by peer")

    opener = lambda: MemoryExchange(Shared(), broken)  # noqa: E731
    monitor = start(started, box, trainer, rank=0, world_size=2, exchange=opener)
    box.ask("r1", "run-1")
    train_until(monitor, lambda: reply_key("r1") in box.written and monitor.health().get("coordinator", 0) >= 2)
    reply = box.reply("r1")
    assert reply.outcome is ReplyOutcome.CANNOT
    assert "Connection reset by peer" in reply.why
    assert trainer.calls == []
    assert caplog.text.count("No coordinator") == 1
    assert not monitor.should_stop


def test_a_stall_is_noticed_while_the_main_thread_is_blocked_and_its_end_too(
    started: list[Monitor], box: ObservedBox, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(QUICK, stall_startup_s=0.15, stall_floor_s=0.1)
    monitor = start(started, box, None, config=config)
    for step in range(1, 8):
        monitor.step(step, loss=1.0)
    # On a busy machine the start may be a stall already, and what follows one again before its beat is written.
    box.wait_heartbeat("run-1", lambda heartbeat: (heartbeat.phase, heartbeat.step) == (RunPhase.STALLED, 7))
    step, pause = 8, threading.Event()
    while (
        (heartbeat := box.heartbeat("run-1")) is None
        or heartbeat.phase is not RunPhase.TRAINING
        or (heartbeat.step or 0) < 8
    ):
        monitor.step(step, loss=1.0)
        step += 1
        assert not pause.wait(0.01)
        assert step < PATIENCE_S / 0.01
    assert "Steps move again" in caplog.text


def test_a_script_that_evaluates_unannounced_does_not_stall_and_one_that_hangs_after_it_does(
    started: list[Monitor], box: ObservedBox, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(QUICK, stall_startup_s=2.0, stall_floor_s=2.0)
    monitor = start(started, box, None, config=config)

    def estimate_loss() -> None:
        assert not threading.Event().wait(5.0)

    def exchange() -> None:
        box.wait_heartbeat("run-1", lambda heartbeat: heartbeat.phase is RunPhase.STALLED)

    for step in range(1, 8):
        monitor.step(step, loss=1.0)
    estimate_loss()
    assert "No step for" not in caplog.text
    monitor.step(8, loss=1.0)
    exchange()
    assert "No step for" in caplog.text


def test_a_loss_on_a_device_is_read_on_another_thread(started: list[Monitor], box: ObservedBox) -> None:
    read_on: list[str] = []

    class Array:
        """What is used of a jax.Array, whose reading may wait for the device."""

        shape = ()

        def item(self) -> float:
            read_on.append(threading.current_thread().name)
            return math.inf

    Array.__module__ = "jax"
    monitor = start(started, box, None)
    for step in (1, 2, 3):
        monitor.step(step, loss=Array(), grad_norm=None)
    box.wait_heartbeat("run-1", lambda heartbeat: heartbeat.loss_state is LossState.INF)
    assert read_on == ["rekindle-late"] * 3


def test_nothing_that_training_hands_over_can_raise(started: list[Monitor], box: ObservedBox) -> None:
    monitor = start(started, box, None)
    monitor.step("seven")  # type: ignore[arg-type]
    monitor.step(1, loss="not a number", accuracy=object())
    monitor.saved("/no/such/place", -5, kind="nonsense")
    with monitor.phase("lunch"):
        pass
    with pytest.raises(ZeroDivisionError), monitor.phase("evaluation"):
        raise ZeroDivisionError
    monitor.step(2, loss=1.0)
    box.wait_heartbeat("run-1", lambda heartbeat: heartbeat.step == 2)
    assert sum(monitor.health().values()) >= 2


def test_rubbish_in_the_mailbox_is_ignored_and_told_once(
    started: list[Monitor], box: ObservedBox, trainer: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(box.uri) / "rekindle" / "requests"
    folder.mkdir(parents=True)
    (folder / "bad.json").write_bytes(b"\xff\x00")
    (folder / "..json").write_text("{}")
    (folder / "notes.txt").write_text("hello")
    (folder.parent / "fence.json").write_text("[]")
    monitor = start(started, box, trainer)
    box.wait_polls(3)
    box.ask("good", "run-1")
    box.wait_polls()
    monitor.step(1, loss=1.0)
    assert box.reply("good").outcome is ReplyOutcome.SAVED
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 2


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"REKINDLE_JOB_ID": "job"},
        {"REKINDLE_JOB_ID": "job", "REKINDLE_MAILBOX": "/tmp/x", "REKINDLE_MONITOR": "off"},
        {"REKINDLE_JOB_ID": "../escape", "REKINDLE_MAILBOX": "/tmp/x"},
        {"REKINDLE_JOB_ID": "job", "REKINDLE_MAILBOX": "relative/path"},
    ],
)
def test_a_monitor_that_is_off_or_not_told_enough_is_silent_and_harmless(env: dict[str, str]) -> None:
    monitor = start_monitor(save=lambda step, kind: None, env=env)
    assert monitor.is_silent
    monitor.step(1, loss=math.nan, anything=1)
    with monitor.phase("saving"):
        monitor.saved("/x", 1)
    assert not monitor.should_stop
    assert not monitor.should_skip(1)
    monitor.finish()


def test_settings_that_cannot_be_read_are_told_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = {
        "REKINDLE_JOB_ID": "job",
        "REKINDLE_MAILBOX": str(tmp_path),
        "REKINDLE_STALL_FLOOR_S": "soon",
        "REKINDLE_RESUME_STEP": "-1",
        "REKINDLE_ATTEMPT": "second",
    }
    monitor = start_monitor(env=env)
    monitor.finish(timeout_s=PATIENCE_S)
    assert monitor.resume.step is None
    assert "REKINDLE_STALL_FLOOR_S='soon'" in caplog.text
    assert "REKINDLE_RESUME_STEP" in caplog.text


def test_a_save_that_the_framework_makes_itself_right_after_answers_the_request(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    asked: list[int] = []

    def save(step: int, kind: str) -> object:
        asked.append(step)
        return rekindle.LATER

    monitor = start_monitor(
        save=save,  # type: ignore[arg-type]
        mailbox=box,
        config=QUICK,
        env={"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"},
    )
    started.append(monitor)
    box.ask("r1", "run-1")
    box.wait_polls()
    monitor.step(5, loss=1.0)
    assert (asked, box.manifests) == ([5], [])
    monitor.saved(trainer.save(5, "periodic"), 5)
    reply = box.reply("r1")
    assert (reply.outcome, reply.step) == (ReplyOutcome.SAVED, 5)
    assert reply.took_s is not None
    assert reply.manifest is not None
    assert box.manifest(reply.manifest).kind is SaveKind.EMERGENCY
    monitor.saved(trainer.save(6, "periodic"), 6)
    assert monitor.flush(PATIENCE_S)
    assert box.manifest(box.manifests[-1]).kind is SaveKind.PERIODIC


def test_where_the_doorbell_stays_quiet_requests_are_not_listed(
    started: list[Monitor], box: ObservedBox, trainer: Trainer
) -> None:
    class Counting(ObservedBox):
        looked = 0

        def get(self, key: str) -> bytes | None:
            if key == doorbell_key():
                with self._changed:
                    self.looked += 1
                    self._changed.notify_all()
            return super().get(key)

    counting = Counting(Path(box.uri))
    counting.ring("1")
    monitor = start(started, counting, trainer)
    counting.wait(lambda: counting.polls == 1)
    counting.ask("r1", "run-1")
    before = counting.looked
    counting.wait(lambda: counting.looked >= before + 3)
    assert counting.polls == 1
    counting.ring("2")
    counting.wait(lambda: counting.polls >= 2)
    counting.wait(lambda: counting.looked >= before + 5)
    monitor.step(1, loss=1.0)
    assert counting.reply("r1").outcome is ReplyOutcome.SAVED


def test_a_reply_whose_acknowledgement_was_lost_is_known_as_our_own(box: ObservedBox) -> None:
    class Forgetful(ObservedBox):
        def put_new(self, key: str, body: bytes) -> bool:
            super().put_new(key, body)
            return False  # the client sent it twice, and the second time something was there

    heard: list[str] = []
    identity = Identity(job_id="job", attempt="run-1", attempt_number=1, rank=0, world_size=1)
    mail = Mail(
        Run(identity=identity, config=QUICK),
        box=Forgetful(Path(box.uri)),
        requests=Requests(identity),
        heartbeat=lambda: pytest.fail("no beat is due"),
        position=lambda: "here",
        is_stuck=lambda: False,
        on_superseded=lambda by: None,
        on_reply=lambda reply: heard.append(reply.request_id),
    )
    request = box.ask("r1", "run-1")
    mail.answer(request, ReplyOutcome.CANNOT, "why")
    mail._write_replies()
    assert heard == ["r1"]
    box.put_new(reply_key("r2"), b"another's reply")
    mail.answer(box.ask("r2", "run-1"), ReplyOutcome.CANNOT, "why")
    mail._write_replies()
    assert heard == ["r1"], "the first reply stands, and it is not ours"


def test_a_threads_last_words_are_tried_again_when_they_fail() -> None:
    left = [3]

    def turn() -> float:
        left[0] -= 1
        return 3600.0

    worker = Worker("test", turn, Trouble(), is_done=lambda: left[0] == 0)
    worker.stop()
    worker.start()
    worker.end(time.monotonic() + PATIENCE_S)
    assert not worker._thread.is_alive()
    assert left == [0]


def test_a_thread_that_does_not_end_in_time_takes_no_further_turn() -> None:
    began, go_on, turns = threading.Event(), threading.Event(), [0]

    def turn() -> float:
        turns[0] += 1
        began.set()
        go_on.wait(PATIENCE_S)
        return 0.0

    worker = Worker("test", turn, Trouble(), is_done=lambda: False)
    worker.start()
    assert began.wait(PATIENCE_S)
    worker.end(time.monotonic())
    go_on.set()
    worker._thread.join(PATIENCE_S)
    assert not worker._thread.is_alive()
    assert turns == [1]


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3), st.just(object())
)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), VALUES, VALUES, VALUES),
        st.tuples(st.just("local_non_finite"), VALUES, VALUES, VALUES),
        st.tuples(st.just("saved"), VALUES, VALUES, VALUES),
        st.tuples(st.just("phase"), VALUES, VALUES, VALUES),
        st.tuples(st.just("alive"), VALUES, VALUES, VALUES),
    ),
    max_size=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(calls=CALLS)
def test_no_method_ever_raises_whatever_it_is_given(calls: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    box = ObservedBox(tmp_path_factory.mktemp("any"))
    env = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}
    monitor = start_monitor(mailbox=box, config=QUICK, env=env)
    try:
        for name, call, two, three in calls:
            if name == "step":
                monitor.step(call, loss=two, grad_norm=three, tokens=call, work_s=two, other=three)
            elif name == "local_non_finite":
                monitor.local_non_finite(call, two, ranks=three)
            elif name == "saved":
                monitor.saved(call, two, files=three, kind=call, took_s=two)
            elif name == "phase":
                with monitor.phase(call):
                    pass
            else:
                monitor.alive()
            assert isinstance(monitor.should_skip(3), bool)
            assert isinstance(monitor.should_stop, bool)
    finally:
        monitor.finish(timeout_s=PATIENCE_S)


@pytest.mark.parametrize(("how", "is_complete"), [("ends", True), ("raises", False), ("is stopped", False)])
def test_only_a_script_that_comes_to_its_end_is_said_to_have_finished(
    started: list[Monitor], box: ObservedBox, trainer: Trainer, how: str, is_complete: bool
) -> None:
    """Also where it calls `finish` in a `finally`: a run that is taken for finished is not recovered."""

    def run() -> None:
        monitor = start(started, box, trainer)
        try:
            monitor.step(1, loss=1.0)
            if how == "is stopped":
                box.fence("run-2", 2, "run-1")
                train_until(monitor, lambda: monitor.should_stop)
            if how == "raises":
                raise ZeroDivisionError("the script's own")
        finally:
            monitor.finish()

    if how == "raises":
        with pytest.raises(ZeroDivisionError):
            run()
    else:
        run()
    heartbeat = box.heartbeat("run-1")
    assert heartbeat is not None
    assert (heartbeat.phase is RunPhase.FINISHED) is is_complete
