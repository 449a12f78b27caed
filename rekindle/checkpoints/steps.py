"""The step that the files of a checkpoint name for certain, to be held against the one that it is said to be of.

A number deep inside may count something else (Adam counts its updates, a loader its batches): only the outermost dict
of a file counts, an array of NumPy's of its own, and what stands in the metadata of a safetensors header.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rekindle.checkpoints.arrays import numbers_in_npz
from rekindle.checkpoints.containers import STEP_KEYS, pickle_in
from rekindle.checkpoints.formats import step_of_trainer_state
from rekindle.checkpoints.found import Folder
from rekindle.checkpoints.names import is_temporary
from rekindle.checkpoints.pickles import top_level
from rekindle.checkpoints.tensors import METADATA, header_of
from rekindle.protocol.wire import MAX_STEP

MAX_FILES: Final = 8
MAX_HEAD_BYTES: Final = 1024 * 1024  # a quarter of a second of pure Python
_NAMES_ITS_STEP: Final = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle", ".pth.tar", ".npz", ".safetensors")
# Accelerate's random states have a `step` of its own: how often gradients were accumulated.
_NO_STEP: Final = re.compile(r"(?:^|/)(?:random_states|rng_state|scaler|sampler|optimizer|training_args)[^/]*$")
# Beside an epoch it may be the step within that epoch.
_WITHIN_EPOCH: Final = frozenset({"step", "iteration"})


def inner_steps(folder: Folder) -> dict[str, tuple[int, ...]]:
    """File -> the numbers that it names as its step, one of which is; only of files that name any."""
    found: dict[str, tuple[int, ...]] = {}
    if "trainer_state.json" in folder.here:
        step = step_of_trainer_state(folder)
        if step is not None:
            found["trainer_state.json"] = (step,)
    files = [path for path in folder.files if path.endswith(_NAMES_ITS_STEP) and not _NO_STEP.search(path)]
    files = [path for path in files if not is_temporary(path)]
    for path in sorted(files, key=lambda path: (path.count("/"), folder.files[path], path))[:MAX_FILES]:
        steps = _steps_in(folder, path)
        if steps:
            found[path] = steps
    return found


def _steps_in(folder: Folder, path: str) -> tuple[int, ...]:
    numbers = _numbers_in(folder, path)
    keys = [key for key in STEP_KEYS if not (key in _WITHIN_EPOCH and numbers.get("epoch", 0))]
    return tuple(dict.fromkeys(numbers[key] for key in keys if 0 <= numbers.get(key, -1) <= MAX_STEP))


def _numbers_in(folder: Folder, path: str) -> Mapping[str, int]:
    if path.endswith(".npz"):
        return numbers_in_npz(folder, path, (*STEP_KEYS, "epoch"))
    if path.endswith(".safetensors"):
        found = header_of(folder, path)
        texts = None if found is None else found[1].get(METADATA)
        pairs = texts.items() if isinstance(texts, dict) else ()
        return {name: int(text) for name, text in pairs if re.fullmatch(r"[0-9]{1,18}", str(text), re.ASCII)}
    raw = pickle_in(folder, path)
    if raw is None:
        head = folder.read(path, 0, MAX_HEAD_BYTES) or b""
        raw = head if head.startswith(b"\x80") else None
    return {} if raw is None else top_level(raw[:MAX_HEAD_BYTES])
