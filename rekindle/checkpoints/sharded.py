"""The two sharded writers that others build upon: torch's distributed checkpoint (DCP) and DeepSpeed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from rekindle.checkpoints.containers import numbers_in
from rekindle.checkpoints.found import MAX_NAMED, Folder
from rekindle.checkpoints.pickles import MAX_WALK_BYTES, is_cut_short, tokens

MAX_METADATA_BYTES: Final = 64 * 1024 * 1024
MAX_SHARDS: Final = 100_000
MAX_CONFIG_BYTES: Final = 64 * 1024
MAX_RANK: Final = 100_000
_SHARD: Final = re.compile(rb"[\w./-]{1,200}\.distcp")
MAX_LOOKS: Final = 16  # shards whose ends are looked at, the largest first
_END_BYTES: Final = 22  # of the last record of an archive. Source: PKWARE APPNOTE 4.3.16
_METADATA: Final = re.compile(r"(?:__\d+)?\.metadata")

# ---- torch DCP -----------------------------------------------------------------------------------------------------


def is_dcp(folder: Folder) -> bool:
    """Its metadata or its shards lie directly in it."""
    return any(path.endswith(".distcp") or _METADATA.fullmatch(path) or ".metadata.tmp" in path for path in folder.here)


def dcp_problems(folder: Folder) -> list[str]:
    """`.metadata` is renamed into place last, and names every shard and how many bytes of it are used.

    Source: torch.distributed.checkpoint.filesystem (FileSystemWriter.finish; _StorageInfo), torch 2.13. With rank-local
    metadata each rank writes `__<rank>.metadata` instead.
    """
    names = metadata_names(folder)
    if not names:
        unfinished = any(".metadata.tmp" in path for path in folder.here)
        return [
            f".metadata is missing: the save did not finish{' (its temporary file is there)' if unfinished else ''}"
        ]
    problems = _megatron_core_problems(folder)
    needed: dict[str, int] = {}
    for name in sorted(names):
        raw = folder.whole(name, MAX_METADATA_BYTES)
        if not raw:
            problems.append(
                f"{name} is {'empty' if folder.files[name] == 0 else 'not readable, or too large to check'}"
            )
            continue
        shards = shards_of(raw)
        if is_cut_short(raw):
            problems.append(f"{name} is cut short, or no DCP metadata")
        elif not shards:
            problems.append(f"{name} names no shard: it is no DCP metadata")
        needed |= shards
    for shard, least in needed.items():
        size = folder.files.get(shard)
        if size is None:
            problems.append(f"{shard} is missing")
        elif size == 0:
            problems.append(f"{shard} is empty")
        elif size < least:
            problems.append(f"{shard} has {size} bytes, .metadata needs {least}")
        elif size > least > 0:
            problems.append(f"{shard} has {size} bytes, .metadata ends at {least}: it is of another save")
    return problems or [
        f"{shard} ends with zeros: its content was not written to the end"
        for shard in sorted(needed, key=lambda shard: (-needed[shard], shard))[:MAX_LOOKS]
        if _ends_with_zeros(folder, shard)
    ]


def _megatron_core_problems(folder: Folder) -> list[str]:
    """What is no tensor lies in `common.pt`, and a loader knows the whole by `metadata.json`, which is written last.

    Source: megatron.core.dist_checkpointing (core.py, strategies/common.py), core 0.16.
    """
    stated = folder.whole("metadata.json", MAX_CONFIG_BYTES) or b""
    if "common.pt" not in folder.here and b'"common_backend"' in stated:
        return ["common.pt is missing"]
    return []


def _ends_with_zeros(folder: Folder, shard: str) -> bool:
    """As a crash leaves a file of the right length. Items in a shard are archives of torch's, which end otherwise."""
    end = folder.read(shard, folder.files[shard] - _END_BYTES, _END_BYTES) or b"-"
    if any(end) or folder.files[shard] < _END_BYTES:
        return False
    return folder.read(shard, 0, 4) in (b"PK\x03\x04", bytes(4))


def metadata_names(folder: Folder) -> list[str]:
    return [path for path in folder.here if _METADATA.fullmatch(path)]


def dcp_contents(folder: Folder) -> tuple[bool | None, bool | None]:
    """(has weights, has an optimizer's state), by the names in `.metadata`; None where that is unknown."""
    names = metadata_names(folder)
    raw = folder.whole(min(names), MAX_METADATA_BYTES) if names else None
    if not raw:
        return None, None
    return None, re.search(rb"optim|exp_avg|momentum_buffer", raw) is not None


def items_of(raw: bytes) -> Iterator[tuple[str, int, int]]:
    """(shard, offset, bytes) of each item that a `.metadata` lists."""
    return ((shard, offset, size) for shard, offset, size in _walked(raw) if size is not None)


def _walked(raw: bytes) -> Iterator[tuple[str, int, int | None]]:
    """The same by a walk of its pickle, and each shard at its first mention, before its bytes are known."""
    shard: str | None = None
    key: str | None = None
    offset = 0
    for token in tokens(raw):
        if isinstance(token, str):
            if key == "relative_path":
                shard, offset = token, 0
                yield shard, 0, None
            key = token
        elif isinstance(token, int) and shard is not None:
            if key == "offset":
                offset = token
            elif key == "length":
                yield shard, offset, token
                shard = None
            key = None


def shards_of(raw: bytes) -> dict[str, int]:
    """Each shard that a `.metadata` names, and the bytes that it must have at least (0 where that is unknown).

    The pickle is walked, never loaded. In one too long for a walk only the names are looked for.
    """
    walked: dict[str, int] = {}
    for shard, offset, size in _walked(raw) if len(raw) <= MAX_WALK_BYTES else ():
        walked[shard] = max(walked.get(shard, 0), offset + (size or 0))
        if len(walked) > MAX_SHARDS:
            break
    return walked or {match.decode("ascii", "replace"): 0 for match in _SHARD.findall(raw)[:MAX_SHARDS]}


# ---- DeepSpeed -----------------------------------------------------------------------------------------------------

_OPTIMIZER: Final = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_ZERO3: Final = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_MODEL: Final = re.compile(r"mp_rank_(\d+)_model_states\.pt")
# With those of pipeline stages and of experts: layer_00-model_00-model_states.pt, expert_0_mp_rank_00_model_states.pt
_STATES: Final = re.compile(r"(?:.*_)?mp_rank_\d+_(?:model|optim)_states\.pt|layer_\d+-model_\d+-model_states\.pt")


@dataclass(slots=True)
class _Shards:
    """(data rank, model rank) of each kind that is there."""

    optimizer: dict[tuple[int, int], str] = field(default_factory=dict)
    zero3: dict[tuple[int, int], str] = field(default_factory=dict)
    model: dict[int, str] = field(default_factory=dict)


def is_deepspeed(folder: Folder) -> bool:
    return any(_STATES.fullmatch(path) for path in folder.here)


def deepspeed_tag(folder: Folder) -> str | None:
    """The folder in it that a DeepSpeed engine saved into."""
    inside = (path.split("/") for path in folder.files if path.count("/") == 1)
    return next((name for name, file in inside if _STATES.fullmatch(file)), None)


def deepspeed_problems(folder: Folder) -> list[str]:
    """Every data rank × model rank has its optimizer shard, every model rank (in stage 3: every rank) its model states.

    How many ranks there were is written in the model states (dp_world_size, mp_world_size); where that cannot be read,
    the highest rank seen counts. Source: deepspeed.runtime.engine (_get_ckpt_name, _get_rank_zero_ckpt_name,
    _save_checkpoint), DeepSpeed 0.19.
    """
    shards = _sorted_out(folder)
    if not shards.model and not shards.zero3:
        return ["mp_rank_00_model_states.pt is missing"]
    data_ranks, model_ranks = _world(folder, shards)
    problems: list[str] = []
    if shards.zero3:
        problems += _absent(shards.zero3, data_ranks, model_ranks, "zero_pp_rank_{0}_mp_rank_{1:02d}_model_states.pt")
    else:
        absent = (rank for rank in range(model_ranks) if rank not in shards.model)
        problems += [f"mp_rank_{rank:02d}_model_states.pt is missing" for rank in islice(absent, MAX_NAMED)]
    if shards.optimizer or shards.zero3:
        is_bf16 = any(name.startswith("bf16_") for name in shards.optimizer.values())
        pattern = f"{'bf16_' if is_bf16 else ''}zero_pp_rank_{{0}}_mp_rank_{{1:02d}}_optim_states.pt"
        problems += _absent(shards.optimizer, data_ranks, model_ranks, pattern)
    return problems


def _sorted_out(folder: Folder) -> _Shards:
    shards = _Shards()
    for path in folder.here:
        if found := _OPTIMIZER.fullmatch(path):
            shards.optimizer[_ranks(found)] = path
        elif found := _ZERO3.fullmatch(path):
            shards.zero3[_ranks(found)] = path
        elif found := _MODEL.fullmatch(path):
            shards.model[int(found[1][:9])] = path
    return shards


def _ranks(found: re.Match[str]) -> tuple[int, int]:
    return int(found[1][:9]), int(found[2][:9])


def _world(folder: Folder, shards: _Shards) -> tuple[int, int]:
    """(data ranks, model ranks) that there were, as far as is known; bounded."""
    both = (*shards.optimizer, *shards.zero3)
    data_ranks = max((rank for rank, _ in both), default=0) + 1
    model_ranks = max((*(rank for _, rank in both), *shards.model), default=0) + 1
    reported = next(iter(sorted((*shards.model.values(), *shards.zero3.values()))), None)
    numbers = numbers_in(folder, reported, ("dp_world_size", "mp_world_size")) if reported is not None else {}
    data_ranks = max(data_ranks, *numbers.get("dp_world_size", {0}))
    model_ranks = max(model_ranks, *numbers.get("mp_world_size", {0}))
    return min(data_ranks, MAX_RANK), min(model_ranks, MAX_RANK)


def _absent(there: dict[tuple[int, int], str], data_ranks: int, model_ranks: int, pattern: str) -> list[str]:
    """What of the grid is not there."""
    grid = ((data_rank, model_rank) for model_rank in range(model_ranks) for data_rank in range(data_ranks))
    absent = (ranks for ranks in grid if ranks not in there)
    return [f"{pattern.format(*ranks)} is missing" for ranks in islice(absent, MAX_NAMED)]
