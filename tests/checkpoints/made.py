"""Checkpoints made without their frameworks: the real file lists (layouts.json), each file with a real container in it.

The lists were recorded from the frameworks themselves; `source` says which. Contents are as small as the recorded size.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

LAYOUTS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("layouts.json").read_text(encoding="utf-8"))


@dataclass
class StorageInfo:
    """As torch.distributed.checkpoint.filesystem._StorageInfo."""

    relative_path: str
    offset: int
    length: int


@dataclass
class Metadata:
    """As torch.distributed.checkpoint.metadata.Metadata, as far as it matters."""

    state_dict_metadata: dict[str, Any]
    storage_data: dict[str, StorageInfo]


def torch_archive(state: dict[str, Any], size: int = 0) -> bytes:
    """As torch.save writes it: data.pkl first, uncompressed, protocol 2, a data descriptor after it."""
    body = io.BytesIO()

    class Unseekable(io.RawIOBase):
        """zipfile writes data descriptors, as torch does, where it cannot go back."""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            return body.write(data)

    with zipfile.ZipFile(Unseekable(), "w", zipfile.ZIP_STORED) as archive:  # type: ignore[arg-type]
        archive.writestr("archive/data.pkl", pickle.dumps(state, protocol=2))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/data/0", b"\x01" * 8)
    return _grown(body.getvalue(), size, lambda extra: torch_archive({**state, "~": "x" * extra}))


def npz(size: int = 0, extra: int = 0) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("w.npy", b"\x93NUMPY\x01\x00" + b"\0" * (64 + extra))
    return _grown(body.getvalue(), size, lambda more: npz(extra=more))


def safetensors(size: int = 200) -> bytes:
    def of(data: int) -> bytes:
        header = {
            "__metadata__": {"format": "pt"},
            "w": {"dtype": "U8", "shape": [data], "data_offsets": [0, data]},
        }
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)
        return struct.pack("<Q", len(raw)) + raw + b"\1" * data

    return next(made for data in range(max(size - 300, 0), size + 1) if len(made := of(data)) >= size)


def dcp_metadata(shards: dict[str, int]) -> bytes:
    """Two entries a shard, the second with its end at the shard's own."""
    storage: dict[str, StorageInfo] = {}
    for name, size in shards.items():
        half = size // 2
        storage[f"model.{len(storage)}.weight"] = StorageInfo(relative_path=name, offset=0, length=half)
        storage[f"optim.{len(storage)}.exp_avg"] = StorageInfo(relative_path=name, offset=half, length=size - half)
    sizes = {name: {"chunks": [{"offsets": [0, 0], "sizes": [64, 64]}]} for name in storage}
    return pickle.dumps(Metadata(state_dict_metadata=sizes, storage_data=storage))


def trainer_state(step: int, size: int = 0) -> bytes:
    state = {
        "best_metric": None,
        "epoch": 0.5,
        "eval_steps": 500,
        "global_step": step,
        "log_history": [],
        "max_steps": 9,
    }
    raw = json.dumps(state, indent=2, sort_keys=True).encode() + b"\n"
    return _grown(raw, size, lambda extra: json.dumps({**state, "train": "x" * extra}, sort_keys=True).encode() + b"\n")


def _grown(raw: bytes, size: int, again: Any) -> bytes:
    """As many bytes as recorded, where the least that can be made is not more already."""
    missing = size - len(raw)
    while missing > 0 and len(raw) < size:
        raw = again(missing)
        missing += size - len(raw)
    return raw


def layout(name: str) -> dict[str, bytes]:
    """The recorded layout of that name, with a content in each file."""
    return dict(_layout(name))


@cache
def _layout(name: str) -> dict[str, bytes]:
    listed: dict[str, int] = LAYOUTS[name]["files"]
    files = {path: _content(path, size) for path, size in listed.items()}
    for path in [path for path in files if path.endswith(".metadata")]:
        folder = path.rpartition("/")[0]
        beside = {other: len(body) for other, body in files.items() if other.startswith(f"{folder}/__")}
        files[path] = dcp_metadata({other.rpartition("/")[2]: size for other, size in beside.items()})
    return files


def _content(path: str, size: int) -> bytes:
    folder, _, file = path.rpartition("/")
    number = [int(found) for found in re.findall(r"\d+", path)]
    if file == "trainer_state.json":
        return trainer_state(int(re.findall(r"\d+", folder)[-1]), size)
    if file == "latest":
        return b"global_step4"
    if file.endswith(".safetensors"):
        return safetensors(size)
    if file.endswith(".npz"):
        return npz(size)
    if file.endswith(("_states.pt",)):
        return torch_archive({"global_steps": number[0], "dp_world_size": 2, "mp_world_size": 1}, size)
    if file.endswith(".ckpt"):
        step = 30 if file == "last.ckpt" else number[-1]
        return torch_archive({"epoch": 1, "global_step": step, "state_dict": {}}, size)
    if file == "meta.pt":
        return torch_archive({"epoch": 1, "global_step": 10 if "last" in folder else number[-1]}, size)
    if file == "model_3.pth":
        return torch_archive({"epoch": 3, "model": {}}, size)
    if file.endswith((".pt", ".pth", ".bin", ".pkl")):
        return torch_archive({"state": {}}, size)
    return b"z" * size


class Shelf:
    """Files in memory, listed and read as a bucket would be; counts the reads."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = dict(files)
        self.reads = 0

    @property
    def listing(self) -> dict[str, int]:
        return {path: len(body) for path, body in self.files.items()}

    def read(self, path: str, start: int, length: int) -> bytes | None:
        self.reads += 1
        body = self.files.get(path)
        return None if body is None else body[start : start + length]
