"""What stands in a manifest, which of two saves of one step it names, and what follows it: real files, real threads."""

from __future__ import annotations

import os
import signal
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rekindle.monitor as rekindle
from rekindle.checkpoints.found import Stamp
from rekindle.checkpoints.marks import PROBLEM
from rekindle.monitor import Monitor
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.base.run import Identity, Run, SystemClock
from rekindle.monitor.saving.hasher import Hasher
from rekindle.monitor.saving.measure import Preempted, SaveUnsettled, measure
from rekindle.monitor.saving.saved import SaveResult
from rekindle.protocol.hashing import Interrupted, verify_hashes
from rekindle.protocol.keys import hashes_key, heartbeat_key, manifest_key
from rekindle.protocol.mailbox import ReplyOutcome
from rekindle.protocol.manifests import POISONED, Hashes, Manifest, SaveKind, verify_listing
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor

IDENTITY = Identity(job_id="job", attempt="run-1", attempt_number=1, rank=0, world_size=1)
ENV = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}


@pytest.fixture
def box(tmp_path: Path) -> ObservedBox:
    return ObservedBox(tmp_path / "mailbox")


@pytest.fixture
def started() -> Iterator[list[Monitor]]:
    monitors: list[Monitor] = []
    yield monitors
    for monitor in monitors:
        monitor.finish(timeout_s=PATIENCE_S)


def folder(at: Path, content: bytes = b"weights") -> Path:
    at.mkdir(parents=True, exist_ok=True)
    (at / "model.bin").write_bytes(content)
    (at / "optim.bin").write_bytes(b"moments")
    return at


def start(started: list[Monitor], box: ObservedBox, where: Path) -> Monitor:
    monitor = start_monitor(
        save=lambda step, kind: folder(where / f"emergency-{step}"), mailbox=box, config=QUICK, env=ENV
    )
    assert not monitor.is_silent
    started.append(monitor)
    return monitor


def emergency(monitor: Monitor, box: ObservedBox, step: int, request_id: str = "r1") -> Manifest:
    """The manifest of an emergency checkpoint of `step`."""
    box.ask(request_id, "run-1")
    box.wait_polls()
    monitor.step(step, loss=1.0)
    reply = box.reply(request_id)
    assert reply.outcome is ReplyOutcome.SAVED, reply.why
    return box.manifest(manifest_key(step, "run-1"))


# ---- the one manifest of a step ------------------------------------------------------------------------------------


def test_an_emergency_manifest_is_not_replaced_by_a_periodic_save_of_the_same_step(
    started: list[Monitor], box: ObservedBox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = start(started, box, tmp_path)
    first = emergency(monitor, box, 40)
    for number in range(3):
        monitor.saved(folder(tmp_path / f"periodic-{number}", b"other weights"), 40)
    assert monitor.flush(PATIENCE_S)
    assert box.manifest(manifest_key(40, "run-1")) == first
    assert first.kind is SaveKind.EMERGENCY
    assert [r.message for r in caplog.records if "sealed before" in r.message] == [
        f"Step 40 was sealed before, in {first.root}: no manifest is written for what was saved of it in "
        f"{tmp_path / 'periodic-0'}"
    ], "said once"
    assert monitor.health()["manifests_refused"] == 3


def test_the_same_root_saved_again_by_the_loop_leaves_the_emergency_manifest_and_its_hashes_right(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    monitor = start(started, box, tmp_path)
    first = emergency(monitor, box, 40)
    box.wait(lambda: hashes_key(40, "run-1") in box.written)
    again = folder(Path(first.root), b"WEIGHTS")
    os.utime(again / "model.bin", ns=(1, 1))  # a date of its own, however coarse the file system's are
    written = box.written.count(hashes_key(40, "run-1"))
    monitor.saved(again, 40)
    assert monitor.flush(PATIENCE_S)
    second = box.manifest(manifest_key(40, "run-1"))
    assert (second.kind, second.request_id, second.root) == (first.kind, first.request_id, first.root)
    assert second.files != first.files, "of the files that are there now"
    box.wait(lambda: box.written.count(hashes_key(40, "run-1")) > written)
    raw = box.get(hashes_key(40, "run-1"))
    assert raw is not None
    assert verify_hashes(second, Hashes.from_json(raw), again).checked == ("model.bin", "optim.bin")


def test_a_manifest_whose_checkpoint_is_gone_gives_way_to_a_whole_one(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    monitor = start(started, box, tmp_path)
    first = emergency(monitor, box, 40)
    (Path(first.root) / "model.bin").unlink()
    monitor.saved(folder(tmp_path / "second"), 40)
    assert monitor.flush(PATIENCE_S)
    second = box.manifest(manifest_key(40, "run-1"))
    assert second.root == str(tmp_path / "second")
    assert verify_listing(second, {"model.bin": 7, "optim.bin": 7}) == ()


def test_a_request_is_answered_with_the_manifest_that_stands(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    monitor = start(started, box, tmp_path)
    monitor.step(39, loss=1.0)
    monitor.saved(folder(tmp_path / "periodic"), 40)
    assert monitor.flush(PATIENCE_S)
    standing = emergency(monitor, box, 40)
    assert (standing.kind, standing.root) == (SaveKind.PERIODIC, str(tmp_path / "periodic"))
    assert box.reply("r1").bytes == standing.total_bytes


def test_rubbish_under_a_manifests_name_is_replaced(started: list[Monitor], box: ObservedBox, tmp_path: Path) -> None:
    box.put(manifest_key(7, "run-1"), b"{half a manif")
    monitor = start(started, box, tmp_path)
    monitor.saved(folder(tmp_path / "seven"), 7)
    assert monitor.flush(PATIENCE_S)
    assert box.manifest(manifest_key(7, "run-1")).root == str(tmp_path / "seven")


def test_a_word_of_emergency_from_the_trainer_makes_no_emergency(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    monitor = start(started, box, tmp_path)
    monitor.saved(folder(tmp_path / "own"), 5, kind="emergency")
    assert monitor.flush(PATIENCE_S)
    assert box.manifest(manifest_key(5, "run-1")).kind is SaveKind.PERIODIC


@pytest.mark.parametrize("is_later", [False, True], ids=["own save", "framework's save"])
def test_after_a_stop_only_the_save_that_the_stop_asked_for_is_sealed(
    started: list[Monitor], box: ObservedBox, tmp_path: Path, is_later: bool
) -> None:
    """What a framework saves in its tear-down claims the same step, or a later one, with other weights."""

    def save(step: int, kind: str) -> Any:
        return rekindle.LATER if is_later else folder(tmp_path / f"emergency-{step}")

    monitor = start_monitor(save=save, mailbox=box, config=QUICK, env=ENV, signals=("TERM", "USR1"))
    started.append(monitor)
    monitor.step(1, loss=1.0)
    monitor.saved(folder(tmp_path / "before"), 1)
    os.kill(os.getpid(), signal.SIGTERM)
    step, pause = 1, threading.Event()
    while not monitor.should_stop:
        step += 1
        monitor.step(step, loss=1.0)
        assert not pause.wait(0.01)
        assert step < PATIENCE_S / 0.01
    if is_later:
        monitor.saved(folder(tmp_path / f"emergency-{step}"), step)
    for late in (step, step + 1, step + 40):
        for kind in ("periodic", "final", "emergency"):
            monitor.saved(folder(tmp_path / f"tear-down-{late}-{kind}", b"other weights"), late, kind=kind)
    assert monitor.flush(PATIENCE_S)
    monitor.finish(timeout_s=PATIENCE_S)
    assert set(box.manifests) == {manifest_key(1, "run-1"), manifest_key(step, "run-1")}
    stop = box.manifest(manifest_key(step, "run-1"))
    assert (stop.kind, stop.root) == (SaveKind.EMERGENCY, str(tmp_path / f"emergency-{step}"))


# ---- poisoned ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "poisoned"), [(8, False), (9, True), (10, True)])
def test_a_manifest_says_whether_its_weights_may_be_poisoned(
    started: list[Monitor], box: ObservedBox, tmp_path: Path, step: int, poisoned: bool
) -> None:
    """The update of step 9 may be what made the loss of step 10 NaN, though its own loss was finite."""
    monitor = start(started, box, tmp_path)
    monitor.step(9, loss=2.0)
    monitor.step(10, loss=float("nan"))
    monitor.saved(folder(tmp_path / "save"), step)
    assert monitor.flush(PATIENCE_S)
    manifest = box.manifest(manifest_key(step, "run-1"))
    assert manifest.poisoned is poisoned
    assert manifest.loss is None, "never a finite loss beside weights that may hold NaN"
    assert verify_listing(manifest, {"model.bin": 7, "optim.bin": 7}) == ((POISONED,) if poisoned else ())


# ---- measured at once ----------------------------------------------------------------------------------------------


def test_an_emergency_is_sealed_while_a_huge_checkpoint_is_still_hashed(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    """64 GB, sparse: at the hasher's rate ten minutes, and minutes at any disk's."""
    monitor = start(started, box, tmp_path)
    huge = folder(tmp_path / "huge")
    with (huge / "model.bin").open("ab") as file:
        file.truncate(64 * 1024**3)
    monitor.step(10, loss=1.0)
    monitor.saved(huge, 10)
    box.wait(lambda: manifest_key(10, "run-1") in box.written)
    assert box.manifest(manifest_key(10, "run-1")).total_bytes == 64 * 1024**3 + 7
    emergency(monitor, box, 11)
    assert hashes_key(10, "run-1") not in box.written, "the periodic one is still being hashed"
    monitor.finish()
    assert hashes_key(10, "run-1") not in box.written, "and is given up at the end"


def test_manifest_and_reply_come_before_the_hashes(started: list[Monitor], box: ObservedBox, tmp_path: Path) -> None:
    monitor = start(started, box, tmp_path)
    manifest = emergency(monitor, box, 3)
    box.wait(lambda: hashes_key(3, "run-1") in box.written)
    order = [key for key in box.written if key != heartbeat_key("run-1")]
    assert [key.split("/")[1] for key in order] == ["lives", "manifests", "replies", "hashes"]
    raw = box.get(hashes_key(3, "run-1"))
    assert raw is not None
    assert verify_hashes(manifest, Hashes.from_json(raw), manifest.root).checked == ("model.bin", "optim.bin")


@pytest.mark.parametrize("damage", ["cut zip", "cut safetensors", "no metadata"])
def test_a_checkpoint_that_its_format_shows_to_be_damaged_gets_no_manifest(tmp_path: Path, damage: str) -> None:
    root = folder(tmp_path / "save")
    if damage == "cut zip":
        with zipfile.ZipFile(root / "model.pt", "w") as archive:
            archive.writestr("data.pkl", b"x" * 1000)
        os.truncate(root / "model.pt", 500)
    elif damage == "cut safetensors":
        header = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
        (root / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 8)
    else:
        (root / "shards").mkdir()
        (root / "shards" / "__0_0.distcp").write_bytes(b"shard")
    with pytest.raises(SaveUnsettled):
        measure(SaveResult(path=root), Clients())


def test_files_of_no_known_layout_are_the_trainers_own_and_are_sealed(tmp_path: Path) -> None:
    root = folder(tmp_path / "checkpoint-40")
    (root / "raw.npz").write_bytes(b"my own format")
    (root / "model.bin.tmp").write_bytes(b"left by a save that was killed")
    found = measure(SaveResult(path=root), Clients())
    assert [item.path for item in found.files] == ["model.bin", "optim.bin", "raw.npz"]


def test_a_save_with_many_files_gives_way_to_a_more_urgent_one(tmp_path: Path) -> None:
    with pytest.raises(Preempted):
        measure(SaveResult(path=folder(tmp_path / "many")), Clients(), is_preempted=lambda: True)


def test_more_saves_than_can_be_sealed_drop_the_oldest_periodic_one_and_never_an_emergency(
    started: list[Monitor], tmp_path: Path
) -> None:
    class Away(ObservedBox):
        is_away = True

        def put_new(self, key: str, body: bytes) -> bool:
            if self.is_away and "/manifests/" in key:
                raise OSError("the file system is away")
            return super().put_new(key, body)

    box = Away(tmp_path / "mailbox")
    monitor = start(started, box, tmp_path)
    box.ask("r1", "run-1")
    box.wait_polls()
    monitor.step(1, loss=1.0)
    for step in range(2, 20):
        monitor.saved(folder(tmp_path / f"periodic-{step}"), step)
    box.is_away = False
    assert monitor.flush(PATIENCE_S)
    assert box.reply("r1").outcome is ReplyOutcome.SAVED
    assert manifest_key(1, "run-1") in box.manifests
    assert manifest_key(19, "run-1") in box.manifests


# ---- hashes --------------------------------------------------------------------------------------------------------


def sealed(root: Path, step: int = 1) -> Manifest:
    files = measure(SaveResult(path=root), Clients()).files
    return Manifest(
        job_id="job",
        attempt="run-1",
        attempt_number=1,
        step=step,
        kind=SaveKind.PERIODIC,
        root=str(root),
        files=files,
        world_size=1,
        saved_at=SystemClock().now(),
    )


def turned(hasher: Hasher) -> None:
    """On a thread of its own, as in the monitor: its turn gives that thread the lowest priority, for good."""
    turning = threading.Thread(target=hasher.turn, daemon=True)
    turning.start()
    turning.join()


def hashed(box: ObservedBox, manifest: Manifest) -> Hashes:
    hasher = a_hasher(box)
    root = Path(manifest.root)
    hasher.submit(manifest, manifest.root, {item.path: Stamp.of(root / item.path) for item in manifest.files})
    turned(hasher)
    raw = box.get(hashes_key(manifest.step, manifest.attempt))
    assert raw is not None
    return Hashes.from_json(raw)


def a_hasher(box: ObservedBox, damaged: list[str] | None = None) -> Hasher:
    return Hasher(
        Run(identity=IDENTITY),
        box=box,
        is_busy=lambda: False,
        on_damaged=lambda step, why: (damaged if damaged is not None else []).append(why),
    )


def test_a_changed_byte_is_found_by_its_hash_where_the_size_is_right(box: ObservedBox, tmp_path: Path) -> None:
    manifest = sealed(folder(tmp_path / "save"))
    hashes = hashed(box, manifest)
    assert verify_hashes(manifest, hashes, tmp_path / "save").problems == ()
    (tmp_path / "save" / "optim.bin").write_bytes(b"momentz")
    check = verify_hashes(manifest, hashes, tmp_path / "save")
    assert check.problems == ("optim.bin has other content than was sealed",)
    assert verify_listing(manifest, {"model.bin": 7, "optim.bin": 7}) == (), "sizes cannot tell"


def test_what_was_not_reached_is_named_the_largest_last(box: ObservedBox, tmp_path: Path) -> None:
    root = folder(tmp_path / "save", b"w" * 3_000_000)
    manifest = sealed(root)
    hashes = hashed(box, manifest)
    chunks = iter(range(3))

    def give_up(_: int) -> None:
        if next(chunks, None) is None:
            raise Interrupted

    check = verify_hashes(manifest, hashes, root, before_chunk=give_up)
    assert (check.checked, check.unchecked, check.problems) == (("optim.bin",), ("model.bin",), ())
    assert "1 were not checked" in check.text


def test_hashes_of_another_manifest_say_nothing(box: ObservedBox, tmp_path: Path) -> None:
    root = folder(tmp_path / "save")
    hashes = hashed(box, sealed(root))
    (root / "model.bin").write_bytes(b"WEIGHTS")
    assert verify_hashes(sealed(root), hashes, root).unchecked == ("model.bin", "optim.bin")
    assert verify_hashes(sealed(root), None, root).text == "no hash was checked"


def test_a_file_that_was_written_again_since_its_seal_is_not_hashed(box: ObservedBox, tmp_path: Path) -> None:
    root = folder(tmp_path / "save")
    manifest = sealed(root)
    hasher = a_hasher(box)
    hasher.submit(manifest, str(root), {item.path: Stamp(1, 1, 1) for item in manifest.files})
    turned(hasher)
    assert box.get(hashes_key(1, "run-1")) is None


def test_the_checkpoint_that_a_run_went_on_from_is_compared_in_the_background(
    box: ObservedBox, tmp_path: Path, started: list[Monitor], caplog: pytest.LogCaptureFixture
) -> None:
    root = folder(tmp_path / "save")
    manifest = sealed(root, 7)
    box.put(manifest.key, manifest.to_json())
    hashed(box, manifest)
    seen = (root / "model.bin").stat()
    (root / "model.bin").write_bytes(b"weightz")
    os.utime(root / "model.bin", ns=(seen.st_atime_ns, seen.st_mtime_ns))  # by a bad disk: no one wrote it
    env = ENV | {
        "REKINDLE_RESUME_STEP": "7",
        "REKINDLE_RESUME_URI": str(root),
        "REKINDLE_RESUME_MANIFEST": f"{box.uri}/{manifest.key}",
    }
    monitor = start_monitor(mailbox=box, config=QUICK, env=env)
    started.append(monitor)
    pause, looks = threading.Event(), 0
    while "model.bin has other content than was sealed" not in caplog.text:  # after it was counted
        assert not pause.wait(0.02)
        looks += 1
        assert looks < PATIENCE_S / 0.02
    assert "save_failed" in monitor.health()
    assert PROBLEM not in caplog.text


def test_hashing_waits_while_something_more_urgent_goes_on(box: ObservedBox, tmp_path: Path) -> None:
    root = folder(tmp_path / "save")
    manifest = sealed(root)
    asked = threading.Event()
    is_busy = threading.Event()
    is_busy.set()

    def busy() -> bool:
        asked.set()
        return is_busy.is_set()

    hasher = Hasher(Run(identity=IDENTITY), box=box, is_busy=busy, on_damaged=lambda step, why: None)
    hasher.submit(manifest, str(root), {item.path: Stamp.of(root / item.path) for item in manifest.files})
    thread = threading.Thread(target=hasher.turn, daemon=True)
    thread.start()
    assert asked.wait(PATIENCE_S)
    assert box.get(hashes_key(1, "run-1")) is None
    is_busy.clear()
    thread.join(PATIENCE_S)
    assert box.get(hashes_key(1, "run-1")) is not None
