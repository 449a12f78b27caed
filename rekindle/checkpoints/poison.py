"""Whether a checkpoint's numbers are NaN, in every format alike: a few tensors of a few of its files, weights first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from rekindle.checkpoints.arrays import nan_in_npz, nan_in_pickle
from rekindle.checkpoints.containers import pickle_in
from rekindle.checkpoints.found import Folder
from rekindle.checkpoints.names import is_temporary
from rekindle.checkpoints.old_torch import nan_in_old, old_archive
from rekindle.checkpoints.pickles import MAX_WALK_BYTES
from rekindle.checkpoints.sharded import items_of, metadata_names
from rekindle.checkpoints.tensors import nan_in_archive, nan_in_items, nan_in_safetensors
from rekindle.checkpoints.zips import table_of

TENSOR_ENDS: Final = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".pth.tar", ".npz", ".pkl", ".pickle")
MAX_PICKLE_BYTES: Final = 1024 * 1024  # of one that is no archive
MAX_FILES: Final = 8
MAX_SAMPLES: Final = 16  # tensors of one checkpoint, over its files
MOST_SAMPLES: Final = 8  # of one file
_NOT_WEIGHTS: Final = re.compile(
    r"(?<![a-z])(?:optim\w*|sched\w*|scaler|rng|random|sampler|training_args)", re.IGNORECASE
)
_METADATA_NAME: Final = re.compile(r"(?:^|/)(?:__\d+)?\.metadata$")


def nan_in(folder: Folder) -> str | None:
    """The file, and the tensor where that is known, that holds NaN; None where none was seen."""
    files = sorted(
        (path for path, size in folder.files.items() if size and path.endswith(TENSOR_ENDS) and not is_temporary(path)),
        key=lambda path: (_NOT_WEIGHTS.search(path) is not None, -folder.files[path], path),
    )[:MAX_FILES]
    for path in files:
        name = _nan_in_file(folder, path, min(MOST_SAMPLES, MAX_SAMPLES // len(files)))
        if name is not None:
            return f"{path} holds NaN ({name[:100]})"
    return _nan_in_shards(folder)


def _nan_in_file(folder: Folder, path: str, samples: int) -> str | None:
    if path.endswith(".safetensors"):
        return nan_in_safetensors(folder, path, samples)
    if path.endswith(".npz"):
        table = table_of(folder, path, folder.files[path])
        return None if table is None else nan_in_npz(folder, path, table, samples)
    raw = pickle_in(folder, path)
    if raw is None and path.endswith((".pkl", ".pickle")):
        head = folder.read(path, 0, MAX_PICKLE_BYTES) or b""
        return nan_in_pickle(head) if head.startswith(b"\x80") else None
    table = None if raw is None else table_of(folder, path, folder.files[path])
    if raw is None or table is None:
        return None
    if table.problem is None:
        return nan_in_archive(folder, path, table, raw, samples)
    old = old_archive(folder, path)
    return None if old is None else nan_in_old(folder, path, old, samples)


def _nan_in_shards(folder: Folder) -> str | None:
    """The same of the folders in it that torch DCP wrote, the largest first: an optimizer may have one of its own."""
    folders = {path.rpartition("/")[0] for path in folder.files if _METADATA_NAME.search(path)}
    chosen: Sequence[str] = sorted(folders, key=lambda name: (_NOT_WEIGHTS.search(name) is not None, name))[:MAX_FILES]
    for prefix in chosen:
        inside = folder.below(prefix) if prefix else folder
        raw = inside.whole(min(metadata_names(inside)), MAX_WALK_BYTES)
        shard = nan_in_items(inside, list(items_of(raw)), MAX_SAMPLES // len(chosen)) if raw else None
        if shard is not None:
            return f"{prefix}/{shard} holds NaN" if prefix else f"{shard} holds NaN"
    return None
