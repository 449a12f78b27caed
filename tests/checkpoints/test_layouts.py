"""Folders as frameworks leave them, in one table: what `rekindle checkpoints` and the seal say of each."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from rekindle.checkpoints.discover import inner_steps_of, judge_declared
from rekindle.checkpoints.folders import discover_in
from tests.checkpoints.made import Shelf, dcp_metadata, npz, safetensors, torch_archive, trainer_state

WEIGHTS = {"model": {}, "optimizer": {"param_groups": []}}


def hugging_face(step: int, *without: str) -> dict[str, bytes]:
    names = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
    made = {"model.safetensors": safetensors(), "trainer_state.json": trainer_state(step)}
    return {
        f"checkpoint-{step}/{name}": made.get(name, torch_archive({"param_groups": []}))
        for name in names
        if name not in without
    }


def zero(ranks: tuple[int, ...]) -> dict[str, bytes]:
    state = {"global_steps": 40, "dp_world_size": 4, "mp_world_size": 1}
    parts = {f"global_step40/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": torch_archive({}) for rank in ranks}
    return {"global_step40/mp_rank_00_model_states.pt": torch_archive(state), "latest": b"global_step40"} | parts


def nemo(step: int, size: int, said: int) -> dict[str, bytes]:
    top = f"checkpoints/m--val_loss=2.10-step={step}-consumed_samples={step * 8}.0"
    shard = "__0_0.distcp"
    files = {shard: b"z" * size, ".metadata": dcp_metadata({shard: said})}
    return {f"{top}/weights/{name}": body for name, body in files.items()} | {f"{top}/context/model.yaml": b"a: 1\n"}


def megatron(*ranks: int) -> dict[str, bytes]:
    state = {"iteration": 300, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1}
    return {f"iter_0000300/mp_rank_{rank:02}/model_optim_rng.pt": torch_archive(state) for rank in ranks}


# name -> (files, by step: what is wrong; "" for nothing)
FOLDERS: Mapping[str, tuple[dict[str, bytes], Mapping[int, str]]] = {
    "fairseq": (
        {f"checkpoint_1_{n}.pt": torch_archive({"num_updates": n, **WEIGHTS}) for n in (1000, 2000)}
        | {"checkpoint_last.pt": torch_archive({"num_updates": 2000, **WEIGHTS})},
        {1000: "", 2000: ""},
    ),
    "Composer": (
        {f"ep0-ba{n}-rank0.pt": torch_archive({"state": WEIGHTS}) for n in (100, 200)},
        {100: "", 200: ""},
    ),
    "nanoGPT": ({"ckpt.pt": torch_archive({"iter_num": 4000, **WEIGHTS})}, {4000: ""}),
    "NeMo 2": (nemo(99, 64, 64) | nemo(199, 64, 64), {99: "", 199: ""}),
    "NeMo 2, stale": (nemo(99, 64, 64) | nemo(199, 9000, 64), {99: "", 199: "of another save"}),
    "Megatron": (megatron(0, 1), {300: ""}),
    "Megatron, a rank lost": (megatron(0), {300: "mp_rank_01 is missing"}),
    "DeepSpeed": (zero((0, 1, 2, 3)), {40: ""}),
    "DeepSpeed, a rank lost": (zero((0, 1, 3)), {40: "zero_pp_rank_2_mp_rank_00_optim_states.pt is missing"}),
    "Hugging Face, no scheduler": (
        hugging_face(10) | hugging_face(20, "scheduler.pt"),
        {10: "", 20: "scheduler.pt is missing"},
    ),
    "Hugging Face, no optimizer": (
        hugging_face(10) | hugging_face(20, "optimizer.pt"),
        {10: "", 20: "optimizer.pt is missing"},
    ),
    "Hugging Face, weights only": (
        hugging_face(10, "optimizer.pt", "scheduler.pt", "rng_state.pth")
        | hugging_face(20, "optimizer.pt", "scheduler.pt", "rng_state.pth"),
        {10: "", 20: ""},
    ),
    "shards, a stale index": (
        hugging_face(30, "model.safetensors")
        | {
            "checkpoint-30/model-00001-of-00002.safetensors": safetensors(),
            "checkpoint-30/model.safetensors.index.json": json.dumps(
                {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00003-of-00003.safetensors"}}
            ).encode(),
        },
        {30: "model-00003-of-00003.safetensors is missing"},
    ),
    "a run called best": (
        {f"best-7b-eval-every-1k/{path}": body for path, body in (hugging_face(10) | hugging_face(20)).items()},
        {10: "", 20: ""},
    ),
}


@pytest.mark.parametrize("is_copied", [False, True], ids=["as written", "copied, times shuffled"])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_judged_by_what_lies_in_it(name: str, is_copied: bool, tmp_path: Path) -> None:
    files, right = FOLDERS[name]
    for number, (path, body) in enumerate(sorted(files.items())):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(body)
        if is_copied:
            os.utime(tmp_path / path, (10**9 - number, 10**9 + number * 7919 % 977))
    problems = {item.step: "; ".join(item.problems) for item in discover_in(tmp_path)}
    assert set(problems) == set(right)
    for step, words in right.items():
        assert words in problems[step] if words else not problems[step]


def old_torch(state: dict[str, object], numbers: bytes = b"") -> bytes:
    """As torch before 1.6 wrote it, without tensors."""
    pickled = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, state, [])
    return b"".join(pickle.dumps(value, protocol=2) for value in pickled) + numbers


@pytest.mark.parametrize(
    ("name", "body", "steps"),
    [
        ("a.safetensors", b'{"__metadata__":{"step":"7"},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', (7,)),
        ("a.safetensors", b'{"__metadata__":{"step":"seven"},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', ()),
        ("a.safetensors", b'{"__metadata__":[7],"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', ()),
        ("a.pth", old_torch({"step": 7}), (7,)),
        ("a.pth", old_torch({"epoch": 1}), ()),
        ("a.npz", npz(), ()),
    ],
)
def test_which_step_a_file_names(name: str, body: bytes, steps: tuple[int, ...]) -> None:
    shelf = Shelf({name: struct.pack("<Q", len(body)) + body + b"\1" if name.endswith(".safetensors") else body})
    assert inner_steps_of(name, shelf.listing, shelf.read) == ({name: steps} if steps else {})


@pytest.mark.parametrize(
    ("body", "is_whole"),
    [(b'{"a": [1]}\n', True), (b'{"a": [1]', False), (b"[1, 2", False), (b'"text"', True), (b"17", True)],
)
def test_a_json_document_of_a_checkpoint_ends_as_it_begins(body: bytes, is_whole: bool) -> None:
    shelf = Shelf({"step-3/run.json": body, "step-3/state.pt": torch_archive({})})
    found = judge_declared("step-3", shelf.listing, shelf.read)
    assert found.certain == (() if is_whole else ("run.json is cut short",))
