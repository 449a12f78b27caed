"""Files that a save leaves cut, and such as only look old; test_lying_saves.py has what every layout is played with."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rekindle.monitor import Monitor
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.saving.measure import Claim, SaveUnsettled, measure
from rekindle.monitor.saving.saved import SaveResult
from rekindle.protocol.keys import manifest_key
from rekindle.protocol.mailbox import ReplyOutcome
from rekindle.protocol.signals import EventType
from tests.checkpoints.made import torch_archive
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor

ENV = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}
STEP = 40
SHARDS = 3
PAUSE_S = 0.3  # between the script's own save and the one that is asked for: more than a file system's tick


def state(step: int, shard: int = 0) -> bytes:
    return pickle.dumps({"step": step, "shard": shard, "w": [float(step)] * 100})


def write(path: Path, body: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".tmp")
    beside.write_bytes(body)
    return beside.replace(path)


def write_shards(folder: Path, step: int, shards: range = range(SHARDS)) -> Path:
    for shard in shards:
        write(folder / f"shard-{shard}.pkl", state(step, shard))
    return folder


class Lie:
    """save: what the script does when it is asked. may_save: it is the checkpoint of that step."""

    def __init__(self, name: str, save: Callable[[Path, int], Any], *, may_save: bool = False) -> None:
        self.name = name
        self.save = save
        self.may_save = may_save

    def __repr__(self) -> str:
        return self.name


def pooled(place: Path, step: int) -> Path:
    """The threads of a pool live on, idle, when their work is done."""
    pool = ThreadPoolExecutor(2)
    done = [pool.submit(write_shards, place / f"step-{step}", step, range(n, n + 1)) for n in range(SHARDS)]
    assert all(one.result() for one in done)
    return place / f"step-{step}"


def copied(place: Path, step: int) -> Path:
    """Saved elsewhere a moment ago, and moved here with its own times."""
    scratch = write_shards(place.parent / f"scratch-{step}", step)
    shutil.copytree(scratch, place / f"step-{step}", copy_function=shutil.copy2)
    return place / f"step-{step}"


LIES = [
    Lie("an empty file", lambda place, _: write(place / "new.pkl", b"")),
    Lie("an archive cut short", lambda place, step: write(place / "new.pt", torch_archive({"step": step})[:-40])),
    Lie("a pickle cut short", lambda place, step: write(place / "new.pkl", state(step)[:-40])),
    Lie("a cut pickle that ends as one", lambda place, step: write(place / "new.pkl", state(step)[:-40] + b".")),
]
TRUTHS = [
    Lie("a pool's threads", pooled, may_save=True),
    Lie("moved here", copied, may_save=True),
    Lie("counted from 0", lambda place, step: write(place / "new.pkl", state(step - 1)), may_save=True),
]


@pytest.fixture
def box(tmp_path: Path) -> ObservedBox:
    return ObservedBox(tmp_path / "mailbox")


@pytest.fixture
def started() -> Iterator[list[Monitor]]:
    monitors: list[Monitor] = []
    yield monitors
    for monitor in monitors:
        monitor.finish(timeout_s=PATIENCE_S)


def run_to(monitor: Monitor, step: int, place: Path) -> None:
    """The script's own loop: it has saved at step 3, not under this monitor's eyes, and steps on."""
    write(place / "ckpt.pkl", state(3))
    write_shards(place / "shards", 3)
    time.sleep(PAUSE_S)
    for n in range(step - 5, step):
        monitor.step(n, loss=1.0)


def loaded(path: Path) -> Any:
    return pickle.loads(path.read_bytes())  # noqa: S301 - written here


def is_right(root: Path, paths: list[str], step: int) -> bool:
    """What a resume would load is of that step, all of it, and finite."""
    if paths == ["."]:
        return root.suffix != ".pkl" or abs(loaded(root)["step"] - step) <= 1
    return sorted(paths) == [f"shard-{n}.pkl" for n in range(SHARDS)] and all(
        loaded(root / path)["step"] == step for path in paths
    )


@pytest.mark.parametrize("lie", [*LIES, *TRUTHS], ids=repr)
@pytest.mark.parametrize("is_asked", [True, False], ids=["emergency", "periodic"])
def test_what_is_vouched_for_is_the_checkpoint_of_that_step(
    lie: Lie, is_asked: bool, started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    place = tmp_path / "ckpt"
    place.mkdir()
    monitor = start_monitor(save=lambda step, _: lie.save(place, step), mailbox=box, config=QUICK, env=ENV)
    started.append(monitor)
    run_to(monitor, STEP, place)
    if is_asked:
        box.ask("r1", "run-1")
        box.wait_polls()
        monitor.step(STEP, loss=1.0)
        is_saved = box.reply("r1").outcome is ReplyOutcome.SAVED
    else:
        monitor.step(STEP, loss=1.0)
        monitor.saved(lie.save(place, STEP), STEP)
        assert monitor.flush(PATIENCE_S)
        is_saved = box.get(manifest_key(STEP, "run-1")) is not None
    assert is_saved is lie.may_save, "a save that is whole is sealed"
    if is_saved:
        manifest = box.manifest(manifest_key(STEP, "run-1"))
        assert is_right(Path(manifest.root), [item.path for item in manifest.files], STEP)
    else:
        assert box.manifests == []


def test_an_emergency_at_the_step_of_a_periodic_save_may_return_that_very_file(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    path = tmp_path / f"step-{STEP}.pkl"
    monitor = start_monitor(save=lambda *_: path, mailbox=box, config=QUICK, env=ENV)
    started.append(monitor)
    run_to(monitor, STEP, tmp_path)
    write(path, state(STEP))
    time.sleep(PAUSE_S)
    box.ask("r1", "run-1")
    box.wait_polls()
    monitor.step(STEP, loss=1.0)
    assert box.reply("r1").outcome is ReplyOutcome.SAVED


def test_a_file_that_is_open_for_writing_is_waited_for(tmp_path: Path) -> None:
    with (tmp_path / "model.bin").open("wb") as file:
        file.write(b"half")
        file.flush()
        with pytest.raises(SaveUnsettled, match="open for writing"):
            measure(SaveResult(path=tmp_path), Clients())
    with (tmp_path / "train.log").open("a") as log:
        print("step 1", file=log, flush=True)
        assert measure(SaveResult(path=tmp_path), Clients(), claim=Claim(step=1)).files[0].path == "model.bin"


def test_a_save_that_a_newer_one_removed_before_it_was_sealed_has_not_failed(
    started: list[Monitor], box: ObservedBox, tmp_path: Path
) -> None:
    told: list[str] = []
    place = tmp_path / "ckpt"
    monitor = start_monitor(mailbox=box, config=QUICK, env=ENV, on_event=lambda what, _: told.append(what))
    started.append(monitor)
    run_to(monitor, STEP, place)
    monitor.step(STEP, loss=1.0)
    monitor.saved(place / "removed.pkl", STEP)  # by a trainer that keeps only its newest
    monitor.step(STEP + 1, loss=1.0)
    monitor.saved(write(place / "newest.pkl", state(STEP + 1)), STEP + 1)
    assert monitor.flush(PATIENCE_S)
    assert box.manifests == [manifest_key(STEP + 1, "run-1")]
    monitor.saved(place / "never.pkl", STEP + 1)
    assert monitor.flush(PATIENCE_S)
    monitor.finish(timeout_s=PATIENCE_S)
    assert told.count(EventType.SAVE_FAILED) == 1, "the one that nothing has replaced"


def test_a_seal_keeps_which_files_it_saw(tmp_path: Path) -> None:
    path = write(tmp_path / "ckpt.pkl", state(3))
    (file,) = measure(SaveResult(path=path), Clients()).files
    seen = os.stat(path)
    assert (file.mtime_ns, file.inode) == (seen.st_mtime_ns, seen.st_ino)
