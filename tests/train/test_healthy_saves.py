"""No healthy save is refused, whatever a script's own layout looks like: each of these is loaded as it was written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from rekindle.monitor.base.aws import Clients
from rekindle.monitor.saving.measure import Claim, measure
from rekindle.monitor.saving.own_saves import OwnSaves
from rekindle.monitor.saving.saved import SaveResult

STEPS: Final = (10, 20, 30)
NAMES: Final = ("step-{}", "ckpt_{:06d}.ckpt", "checkpoint-{}", "epoch1/it{}")
Layout = Callable[[Path, int], None]
LAYOUTS: Final[dict[str, Layout]] = {}


def layout(write: Layout) -> Layout:
    LAYOUTS[write.__name__] = write
    return write


def weights() -> dict[str, torch.Tensor]:
    return {"w": torch.ones(8, 8), "b": torch.zeros(8)}


def saved(path: Path, state: Any = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(weights() if state is None else state, path)


def written(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@layout
def meta_of_its_own(root: Path, step: int) -> None:
    saved(root / "model.pt")
    saved(root / "optim.pt")
    saved(root / "meta.pt", {"step": step})


@layout
def trainer_state_of_its_own(root: Path, step: int) -> None:
    saved(root / "net.pt")
    written(root / "trainer_state.json", json.dumps({"step": step, "epoch": 1}))


@layout
def trainer_state_beside_weights_of_another_name(root: Path, step: int) -> None:
    """As a Trainer does whose `_save` is the script's."""
    saved(root / "projector.bin")
    saved(root / "optimizer.pt")
    saved(root / "scheduler.pt")
    saved(root / "rng_state.pth")
    written(root / "trainer_state.json", json.dumps({"global_step": step}))


@layout
def names_like_deepspeeds(root: Path, step: int) -> None:
    saved(root / "best_model_states.pt", {"step": step, **weights()})
    saved(root / "best_optim_states.pt")


@layout
def a_file_called_metadata(root: Path, step: int) -> None:
    saved(root / "model.pt")
    written(root / "run.metadata", json.dumps({"step": step}))


@layout
def in_a_folder_that_came_from_a_hub(root: Path, step: int) -> None:
    root.mkdir(parents=True)
    save_file(weights(), root / "model.safetensors")
    saved(root / "state.pt", {"step": step})
    written(root / ".cache/huggingface/download/model.safetensors.metadata", "abc\n")
    written(root / ".cache/huggingface/.gitignore")


@layout
def accelerates_with_weights_of_another_name(root: Path, step: int) -> None:
    """As its save hooks may write them."""
    saved(root / "controlnet.pt")
    saved(root / "optimizer.bin")
    (root / "random_states_0.pkl").write_bytes(pickle.dumps({"step": step}))


@layout
def logs_and_marks_without_content(root: Path, step: int) -> None:
    saved(root / "model.pt", {"step": step, **weights()})
    for name in ("train.log", "stderr.txt", "DONE", ".done", "commit_success.txt", "code/__init__.py"):
        written(root / name)
    written(root / "events.out.tfevents.1700000000.host.1.0")


@layout
def with_files_that_were_there_before(root: Path, step: int) -> None:
    """A configuration copied with its time, frozen weights by a link of either kind."""
    there = root.parent / "before"
    if not there.exists():
        saved(there / "frozen.pt")
        saved(there / "base.pt")
        written(there / "config.json", "{}")
        for path in there.iterdir():
            os.utime(path, (1.7e9, 1.7e9))
    saved(root / "adapter.pt", {"step": step, **weights()})
    shutil.copy2(there / "config.json", root)
    (root / "frozen.pt").hardlink_to(there / "frozen.pt")
    (root / "base.pt").symlink_to(there / "base.pt")


@layout
def shards_in_a_folder_of_theirs(root: Path, step: int) -> None:
    root.mkdir(parents=True)
    dcp.save({"model": weights()}, checkpoint_id=root / "dist", no_dist=True)
    saved(root / "meta.pt", {"step": step})


@layout
def shards_beside_a_state_of_its_own(root: Path, step: int) -> None:
    root.mkdir(parents=True)
    dcp.save({"model": weights()}, checkpoint_id=root, no_dist=True)
    saved(root / "trainer.pt", {"it": step})


@layout
def counters_of_all_kinds(root: Path, step: int) -> None:
    counters = {"tokens": step * 4096, "micro": step * 4, "epoch": step // 7, "best": {"step": max(step - 10, 0)}}
    saved(root / "state.pt", {"model": weights(), "step": step, **counters})


@layout
def a_value_that_is_not_finite_and_no_weight(root: Path, step: int) -> None:
    saved(root / "model.pt", {**weights(), "mask": torch.full((4, 4), float("-inf"))})
    saved(root / "metrics.pt", {"best": float("nan"), "step": step})


@layout
def archives_of_other_kinds(root: Path, step: int) -> None:
    saved(root / "model.pt", {"step": step, **weights()})
    with zipfile.ZipFile(root / "code.zip", "w") as archive:
        archive.writestr("train.py", "pass\n")
    (root / "replay.pkl").write_bytes(pickle.dumps([1, 2, 3]))
    (root / "model.onnx").write_bytes(b"\x08\x07\x12\x07pytorch" + bytes(50))
    written(root / "log.jsonl", '{"a": 1}\n{"a": 2}\n')


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", LAYOUTS)
def test_a_healthy_save_is_measured(which: str, name: str, tmp_path: Path) -> None:
    own = OwnSaves()
    for step in STEPS:
        began, root = time.monotonic(), tmp_path / name.format(step)
        LAYOUTS[which](root, step)
        found = measure(SaveResult(path=root), Clients(), claim=Claim(step=step, own=own, began=began))
        assert found.files
        assert found.nan is None
