"""Nothing is vouched for that is not the checkpoint of that step: layouts that need no framework.

Those of torch and of the frameworks are in tests/train.
"""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest

from rekindle.monitor.saving import measure
from rekindle.protocol.manifests import SaveKind
from tests.monitor.saving.lying_saves import Layout, Part, played, wrongly_stopped

NUMBERS = 1024


def _written(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)


def write_pickle(part: Part) -> None:
    if part.rank == 0:
        state = {"step": part.step, "w": [part.value] * NUMBERS, "optimizer": {"m": [part.value] * NUMBERS}}
        _written(part.root, pickle.dumps(state))


def load_pickle(root: Path, world: int) -> list[Any]:
    state = pickle.loads(root.read_bytes())  # noqa: S301 - written here
    assert state["w"] == state["optimizer"]["m"]
    return [state["w"]]


def write_npz(part: Part) -> None:
    numpy = pytest.importorskip("numpy")
    if part.rank == 0:
        part.root.parent.mkdir(parents=True, exist_ok=True)
        numpy.savez(part.root, w=numpy.full(NUMBERS, part.value, numpy.float32), step=numpy.int64(part.step))


def load_npz(root: Path, world: int) -> list[Any]:
    numpy = pytest.importorskip("numpy")
    with numpy.load(root) as archive:
        return [archive["w"]]


def write_shard(part: Part) -> None:
    state = {"iteration": part.step, "rank": part.rank, "w": [part.own_value] * NUMBERS}
    _written(part.root / f"rank{part.rank}.pkl", pickle.dumps(state))
    if part.rank == 0:
        _written(part.root / "run.json", json.dumps({"ranks": part.world}).encode())


def load_shards(root: Path, world: int) -> list[Any]:
    assert json.loads((root / "run.json").read_text()) == {"ranks": world}
    return [pickle.loads((root / f"rank{rank}.pkl").read_bytes())["w"] for rank in range(world)]  # noqa: S301


def write_safetensors(part: Part) -> None:
    if part.rank:
        return
    header = {
        "__metadata__": {"step": str(part.step)},
        "w": {"dtype": "F32", "shape": [NUMBERS], "data_offsets": [0, 4 * NUMBERS]},
    }
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    _written(part.root, struct.pack("<Q", len(raw)) + raw + struct.pack(f"<{NUMBERS}f", *[part.value] * NUMBERS))


def load_safetensors(root: Path, world: int) -> list[Any]:
    """As the library checks it: the header's length, its JSON, and that the numbers end where the file does."""
    body = root.read_bytes()
    (length,) = struct.unpack("<Q", body[:8])
    begin, end = json.loads(body[8 : 8 + length])["w"]["data_offsets"]
    numbers = body[8 + length :]
    assert len(numbers) == end
    return [struct.unpack(f"<{NUMBERS}f", numbers[begin:end])]


LAYOUTS = {
    "pickle": Layout(lambda step: f"step-{step}.pkl", write_pickle, load_pickle, "ckpt.pkl"),
    "npz": Layout(lambda step: f"step-{step}.npz", write_npz, load_npz, "ckpt.npz"),
    "safetensors": Layout(
        lambda step: f"model-{step}.safetensors", write_safetensors, load_safetensors, "model.safetensors"
    ),
    "a file a rank": Layout(
        lambda step: f"step-{step}", write_shard, load_shards, "last", by_rank=True,
        own=lambda path, rank: path == f"rank{rank}.pkl" or (rank == 0 and path == "run.json"),
    ),
}  # fmt: skip
KINDS = [SaveKind.PERIODIC, SaveKind.EMERGENCY]
SAMPLE = [("pickle", 1, SaveKind.EMERGENCY), ("a file a rank", 2, SaveKind.PERIODIC)]


@pytest.mark.parametrize(
    ("name", "world", "kind"),
    [
        pytest.param(name, world, kind, marks=[] if (name, world, kind) in SAMPLE else [pytest.mark.long])
        for name in LAYOUTS
        for world in (1, 2, 4)
        for kind in KINDS
    ],
)
def test_what_is_vouched_for_can_be_resumed_from(
    name: str, world: int, kind: SaveKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert played(tmp_path, LAYOUTS[name], world, kind, monkeypatch) == []


@pytest.mark.long
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_so_can_what_a_run_saves_that_ends_by_sigterm(
    name: str, world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wrongly_stopped(tmp_path, LAYOUTS[name], world, monkeypatch) == {}


def test_the_lies_are_found_by_loading_where_the_seal_looks_at_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "verdict", lambda _: ())
    wrong = played(tmp_path, LAYOUTS["a file a rank"], 2, SaveKind.EMERGENCY, monkeypatch)
    vouched_for = {text.partition(":")[0] for text in wrong}
    assert vouched_for >= {"an old file", "a wrong step", "a swallowed error", "half old", "another rank's missing"}
