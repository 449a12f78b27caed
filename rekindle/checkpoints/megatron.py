"""Checkpoints with one folder a rank of the grid: Megatron-LM's own, and NeMo 1's.

Megatron-LM: `iter_0000300/mp_rank_00_001/model_optim_rng.pt`, with the run's arguments in each file; the folders are
mp_rank_<tensor>[_<pipeline>[_<expert>]]. Source: megatron.training.checkpointing (get_checkpoint_name,
save_checkpoint), core 0.16. NeMo 1: `mp_rank_01/megatron_gpt--step=99.ckpt`, or `tp_rank_01_pp_rank_000/...`: the
folder lies above all checkpoints, and NeMo is given the path without it. Source: nemo.utils.model_utils
(inject_model_parallel_rank), NeMo 1.23.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from rekindle.checkpoints.containers import numbers_in, step_of
from rekindle.checkpoints.found import MAX_NAMED, Folder, Format, Found, limited
from rekindle.checkpoints.names import is_temporary, read_name

_RANK: Final = re.compile(r"mp_rank_(\d{2,5})(?:_(\d{3,5}))?(?:_(\d{3,5}))?")
_NEMO_RANK: Final = re.compile(r"mp_rank_(\d{2})|tp_rank_(\d{2})_pp_rank_(\d{3})")
_SIZES: Final = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
MAX_GRID: Final = 1_000_000


def is_megatron(folder: Folder) -> bool:
    return any(_RANK.fullmatch(inner) for inner in folder.folders)


def megatron(name: str, folder: Folder) -> tuple[int | None, list[str]]:
    """(step, problems): every rank of the grid has a folder, with the same files in it."""
    ranks = {inner: part for inner, part in folder.each_below().items() if _RANK.fullmatch(inner)}
    places = {_place(inner) for inner in ranks}
    sizes = _grid_of(places)
    files = sorted({path for part in ranks.values() for path in part.files if not is_temporary(path)})
    first = min(ranks)
    numbers = numbers_in(ranks[first], files[0], (*_SIZES, "iteration")) if files else {}
    for axis, key in enumerate(_SIZES[: len(sizes)]):
        sizes[axis] = max(sizes[axis], *numbers.get(key, {0}))
    problems = [f"{_folder_of(place)} is missing" for place in islice(_absent(places, sizes), MAX_NAMED)]
    each = ((inner, path) for inner in sorted(ranks) for path in files if path not in ranks[inner].files)
    problems += [f"{inner}/{path} is missing" for inner, path in islice(each, MAX_NAMED)]
    stated = read_name(name)
    return (step_of(numbers) if stated.stated is None else stated.stated), problems


def without_rank_folder(root: str) -> str:
    """The path by which NeMo 1 knows a checkpoint that has a file in the folder of each rank; another path as it is."""
    folder, _, name = root.rpartition("/")
    above, slash, last = folder.rpartition("/")
    return f"{above}{slash}{name}" if _NEMO_RANK.fullmatch(last) else root


def joined_ranks(found: Sequence[Found]) -> tuple[Found, ...]:
    """The same, NeMo 1's files of all ranks joined to one checkpoint, in the place of the first; a rank that has saved
    something else, but not this, is missing in it.
    """
    parts: dict[str, list[Found]] = {}
    ranks: dict[str, set[str]] = {}
    for item in found:
        whole = without_rank_folder(item.root)
        parts.setdefault(whole, []).append(item)
        if whole != item.root:
            ranks.setdefault(whole.rpartition("/")[0], set()).add(_rank_folder(item))
    return tuple(
        items[0] if items[0].root == root else _joined(root, items, ranks[root.rpartition("/")[0]])
        for root, items in parts.items()
    )


def _joined(root: str, items: Sequence[Found], ranks: Iterable[str]) -> Found:
    there = {_rank_folder(item) for item in items}
    places = {_place(rank) for rank in ranks}
    missing = sorted(rank for rank in ranks if rank not in there)
    missing += [f"the rank at {place}" for place in islice(_absent(places, _grid_of(places)), MAX_NAMED)]
    problems = [f"{_rank_folder(item)}: {problem}" for item in items for problem in item.problems]
    first = items[0]
    return replace(
        first,
        format=Format.NEMO,
        root=root,
        files={path: size for item in items for path, size in item.files.items()},
        problems=limited([*(f"{rank} is missing" for rank in missing), *problems]),
        unsure=(),
        nan=next((item.nan for item in items if item.nan is not None), None),
        inner_steps={item.root: steps for item in items for steps in item.inner_steps.values()},
    )


def _rank_folder(item: Found) -> str:
    return item.root.split("/")[-2]


def _grid_of(places: Iterable[tuple[int, ...]]) -> list[int]:
    """How many ranks there are at least along each axis."""
    dimensions = max(len(place) for place in places)
    return [max(place[axis] for place in places if len(place) == dimensions) + 1 for axis in range(dimensions)]


def _absent(places: Iterable[tuple[int, ...]], sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    grid = islice(itertools.product(*(range(size) for size in sizes)), MAX_GRID)
    return (place for place in grid if place not in places)


def _place(inner: str) -> tuple[int, ...]:
    found = _RANK.fullmatch(inner) or _NEMO_RANK.fullmatch(inner)
    return () if found is None else tuple(int(index) for index in found.groups() if index is not None)


def _folder_of(place: tuple[int, ...]) -> str:
    return "_".join([f"mp_rank_{place[0]:02d}", *(f"{index:03d}" for index in place[1:])])
