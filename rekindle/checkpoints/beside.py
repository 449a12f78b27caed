"""Parts of a state beside a checkpoint of one file: other ranks' or shards', an optimizer's.

    ep0-ba100-rank0.pt  ep0-ba100-rank1.pt        model_001000.pt  optim_001000_rank0.pt  optim_001000_rank1.pt

The first one is the checkpoint, by its name; a resume needs them all.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from rekindle.checkpoints.names import ONE_FILE_ENDS, is_one_file, is_temporary, read_name
from rekindle.checkpoints.shapes import is_part

_SHARE: Final = re.compile(r"(?:[_-]|(?<![a-z]))(?:rank|shard)[=_-]?\d+", re.IGNORECASE)
_OF_HOW_MANY: Final = re.compile(r"-\d+-of-\d+")  # an export's shards, of any step
_EPOCH: Final = re.compile(r"(?<![a-z])(ep(?:och)?[=_-]?)\d+", re.IGNORECASE)


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
