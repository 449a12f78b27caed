"""Whole by shape: a checkpoint has every part of the state that its siblings have, in every format by the same rule.

A save that loses its scheduler to a full disk still has what its format demands, and a trainer that loads it may drop
the optimizer without a word. Numbers of ranks, shards and steps make no difference between names.

A checkpoint of one file may have parts beside it, of other ranks or shards, or an optimizer's; the first one by its
name is the checkpoint, and a resume needs them all:

    ep0-ba100-rank0.pt  ep0-ba100-rank1.pt        model_001000.pt  optim_001000_rank0.pt  optim_001000_rank1.pt
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from rekindle.checkpoints.names import ONE_FILE_ENDS, is_one_file, is_temporary, read_name

# Parts of a training state by the words in their names. What else lies in a checkpoint may be there once (an export, a
# conversion, an evaluation's results). Sources: transformers, Accelerate, torchtitan, Lightning, DeepSpeed, our own
_PART: Final = re.compile(
    r"(?<![a-z])(?:optim\w*|(?:lr_?)?sched\w*|scaler|grad_?scaler|sampler|rng|random_states?|custom_checkpoint"
    r"|data_?loader|dl_state\w*|loader_state|train(?:er)?_state|dataset_state)(?![a-z])",
    re.IGNORECASE,
)
# Weights directly in it, whatever their format and however many shards they have.
_WEIGHTS: Final = re.compile(
    r"(?:pytorch_)?(model|net|network|weights|params|actor|critic|policy|value|encoder|decoder|unet|generator"
    r"|discriminator)(?:[-_.](?:rank)?\d[\w-]*)?\.(?:pt|pth|bin|ckpt|safetensors|npz|pkl|pickle|msgpack|h5)"
)
_NUMBER: Final = re.compile(r"(?<!mp_rank_)(?<!mp_rank_\d)\d+")  # ranks of a model's grid are not another's copies
_OF_RANK: Final = re.compile(r"(?<![a-z])(?:rank|rng_state|random_states)[=_-]?0*(\d+)", re.IGNORECASE)
_OF_EACH: Final = re.compile(r"(?<![a-z])(rng_state|random_states)[=_-]?\d+", re.IGNORECASE)

# What every process writes, by the file that says whose checkpoint it is. Sources: Accelerate, save_accelerator_state;
# transformers, Trainer._save_rng_state; our own for DeepSpeed
_BY_EACH: Final = (
    (re.compile(r"random_states_\d+\.pkl"), re.compile(r"(random_states_)\d+(\.pkl)")),
    (re.compile(r"trainer_state\.json"), re.compile(r"(rng_state_)\d+(\.pth)")),
    (re.compile(r".*mp_rank_\d+_model_states\.pt"), re.compile(r"(rng_state_)\d+(\.pt)")),
)

# In the names of files beside a checkpoint of one file.
_SHARE: Final = re.compile(r"(?:[_-]|(?<![a-z]))(?:rank|shard)[=_-]?\d+", re.IGNORECASE)
_OF_HOW_MANY: Final = re.compile(r"-\d+-of-\d+")  # an export's shards, of any step
_EPOCH: Final = re.compile(r"(?<![a-z])(ep(?:och)?[=_-]?)\d+", re.IGNORECASE)

Shape = Mapping[str, str]
"""Name of a part without numbers -> one of its files."""


def shape_of(paths: Iterable[str]) -> Shape:
    """The parts of a checkpoint, given its files below its root."""
    found: dict[str, str] = {}
    for path in paths:
        weights = _WEIGHTS.fullmatch(path)
        if (weights is not None or _PART.search(path)) and not is_temporary(path):
            name = _NUMBER.sub("#", _of_one(path)) if weights is None else weights[1]
            found[name] = min(path, found.get(name, path))
    return found


def is_part(path: str) -> bool:
    """A part of a training state, by its name."""
    return _PART.search(path) is not None


def _of_one(path: str) -> str:
    """What a rank's file is called in a run of one process: the Trainer's `rng_state_0.pth` is `rng_state.pth`."""
    return _OF_EACH.sub(r"\1", path)


def ranks_missing(others: Mapping[str, Collection[str]], own: Collection[str], world_size: int) -> list[str]:
    """Of a run of so many ranks, which of their files at least half of the others have and this one does not."""
    count = Counter(path for files in others.values() for path in files)
    first = {path: name for name, files in others.items() for path in files}
    alone = {_of_one(path) for path in own} if world_size == 1 else set()
    absent = [path for path in sorted(count) if path not in own and 2 * count[path] >= len(others)]
    return [
        f"{path} is missing ({first[path]} has it)"
        for path in absent
        if _of_one(path) not in alone
        if (found := _OF_RANK.search(path)) is not None and int(found[1]) < world_size and not is_temporary(path)
    ]


def not_by_each(own: Collection[str], world_size: int) -> list[str]:
    """The files that every one of so many processes writes, and are not there: in the first save of a run, too."""
    problems = []
    for mark, pattern in _BY_EACH:
        found = next(filter(None, map(pattern.fullmatch, own)), None)
        if found is not None and any(map(mark.fullmatch, own)):
            names = (f"{found[1]}{rank}{found[2]}" for rank in range(world_size))
            problems += [f"{name} is missing" for name in names if name not in own]
    return problems


class Siblings:
    """The shapes of the whole checkpoints of one family, by their names."""

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self._shapes = shapes
        self._count = Counter(name for shape in shapes.values() for name in shape)
        self._first = {name: (root, path) for root, shape in shapes.items() for name, path in shape.items()}

    def missing(self, root: str, shape: Shape) -> list[str]:
        """What at least half of the others have and this one does not; half, because a run may have been changed."""
        others = len(self._shapes) - (root in self._shapes)
        absent = (name for name, count in self._count.items() if name not in shape and 2 * count >= max(others, 1))
        return [f"{self._first[name][1]} is missing ({self._first[name][0]} has it)" for name in absent]


# ---- parts beside a checkpoint of one file ----


def parts_beside(names: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For the checkpoints among the files of one folder, those of the same number that are parts of it."""
    parts: dict[int, list[str]] = {}
    for name in names:
        is_state = name.endswith(ONE_FILE_ENDS) and not is_temporary(name) and not _OF_HOW_MANY.search(name)
        if is_state and (_SHARE.search(name) or is_part(name)) and not is_one_file(name):
            number = _number_of(name)
            if number is not None:
                parts.setdefault(number, []).append(name)
    if not parts:
        return {}
    numbers = {name: _number_of(name) for name in names if is_one_file(name) and not is_temporary(name)}
    return {name: tuple(parts[number]) for name, number in numbers.items() if number in parts}


def shape_beside(root: str, files: Iterable[str]) -> Mapping[str, str] | None:
    """The parts of the checkpoint at `root`: their names without its number -> their paths. None where it has none."""
    number = _number_of(root.rpartition("/")[2])
    if number is None:
        return None

    def named(path: str) -> str:
        name = re.sub(r"\d+", lambda found: "#" if int(found[0]) == number else found[0], path.rpartition("/")[2])
        return _EPOCH.sub(r"\1#", name)

    return {named(path): path for path in files if path != root}


def _number_of(name: str) -> int | None:
    alone = _SHARE.sub("", name)
    stated = read_name(alone).number
    if stated is not None:
        return stated
    runs = re.findall(r"\d{1,12}", alone)
    return int(runs[-1]) if runs else None
