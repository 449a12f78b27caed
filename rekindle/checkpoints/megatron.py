"""Megatron-LM's own checkpoints: `iter_0000300/mp_rank_00_001/model_optim_rng.pt`, one folder a rank of the grid.

Sources: megatron.training.checkpointing (get_checkpoint_name, save_checkpoint), Megatron-LM core 0.16: the folders are
mp_rank_<tensor>[_<pipeline>[_<expert>]], and the arguments of the run are in each file.
"""

from __future__ import annotations

import itertools
import re
from itertools import islice
from typing import Final

from rekindle.checkpoints.containers import numbers_in, step_of
from rekindle.checkpoints.found import MAX_NAMED, Folder
from rekindle.checkpoints.names import is_temporary, read_name

_RANK: Final = re.compile(r"mp_rank_(\d{2,5})(?:_(\d{3,5}))?(?:_(\d{3,5}))?")
_SIZES: Final = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
MAX_GRID: Final = 1_000_000


def is_megatron(folder: Folder) -> bool:
    return any(_RANK.fullmatch(inner) for inner in folder.folders)


def megatron(name: str, folder: Folder) -> tuple[int | None, list[str]]:
    """(step, problems): every rank of the grid has a folder, with the same files in it."""
    ranks = {inner: part for inner, part in folder.each_below().items() if _RANK.fullmatch(inner)}
    places = {_place(inner) for inner in ranks}
    dimensions = max(len(place) for place in places)
    sizes = [max(place[axis] for place in places if len(place) == dimensions) + 1 for axis in range(dimensions)]
    files = sorted({path for part in ranks.values() for path in part.files if not is_temporary(path)})
    first = min(ranks)
    numbers = numbers_in(ranks[first], files[0], (*_SIZES, "iteration")) if files else {}
    for axis, key in enumerate(_SIZES[:dimensions]):
        sizes[axis] = max(sizes[axis], *numbers.get(key, {0}))
    grid = islice(itertools.product(*(range(size) for size in sizes)), MAX_GRID)
    absent = (place for place in grid if place not in places)
    problems = [f"{_folder_of(place)} is missing" for place in islice(absent, MAX_NAMED)]
    each = ((inner, path) for inner in sorted(ranks) for path in files if path not in ranks[inner].files)
    problems += [f"{inner}/{path} is missing" for inner, path in islice(each, MAX_NAMED)]
    stated = read_name(name)
    return (step_of(numbers) if stated.number is None else stated.number), problems


def _place(inner: str) -> tuple[int, ...]:
    found = _RANK.fullmatch(inner)
    return () if found is None else tuple(int(index) for index in found.groups() if index is not None)


def _folder_of(place: tuple[int, ...]) -> str:
    return "_".join([f"mp_rank_{place[0]:02d}", *(f"{index:03d}" for index in place[1:])])
