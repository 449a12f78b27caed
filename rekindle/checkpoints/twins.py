"""Folders of no layout that is known here: whole where another step's folder has the same files, as large.

What a script makes of files of its own (verl, OLMo, fairseq2, most people's) can be judged without knowing it: two
saves that are alike, and than which none beside them has more, were written to their end. Every file is also looked at
by the rules of its own format. The first save of a run has no twin, and stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from rekindle.checkpoints.families import pattern_of
from rekindle.checkpoints.found import Format, Found
from rekindle.checkpoints.names import is_marker, is_temporary, plain, read_name
from rekindle.checkpoints.verdict import DESCRIPTIONS

APART: Final = 0.02  # of a file's size; tensors of the same model are as large, what counts beside them is not quite
APART_BYTES: Final = 64 * 1024


def with_twins(found: Iterable[Found]) -> tuple[Found, ...]:
    """The same, those that have a twin and lack nothing as checkpoints (`folder`). They hold an optimizer's state, and
    their step is certain: by the name, or by what the files in them say.
    """
    found = tuple(found)
    families: dict[tuple[str, str], list[Found]] = {}
    for item in found:
        if item.format is Format.UNKNOWN:
            families.setdefault(pattern_of(item.root), []).append(item)
    after = {root: item for items in families.values() for root, item in _twins(items).items()}
    return tuple(after.get(item.root, item) for item in found)


def _twins(items: Sequence[Found]) -> Mapping[str, Found]:
    states = {item.root: _state_of(item) for item in items}
    most = {path for state in states.values() for path in state}
    after = {}
    for item in items:
        own = states[item.root]
        step = _certain_step(item)
        others = (state for root, state in states.items() if root != item.root)
        if step is None or not item.has_optimizer or item.problems != item.unsure:
            continue
        if own.keys() == most and any(_is_alike(own, other) for other in others):
            after[item.root] = replace(item, format=Format.FOLDER, step=step, problems=(), unsure=())
    return after


def _state_of(item: Found) -> dict[str, int]:
    """Its files, without what only describes it, by their names without its step."""
    start = len(item.root) + 1 if item.root else 0

    def named(path: str) -> str:
        return re.sub(r"\d+", lambda number: "#" if int(number[0]) == item.step else number[0], path[start:])

    return {
        named(path): size
        for path, size in item.files.items()
        if not path.endswith(DESCRIPTIONS) and not is_marker(path) and not is_temporary(path)
    }


def _is_alike(own: Mapping[str, int], other: Mapping[str, int]) -> bool:
    return own.keys() == other.keys() and all(
        abs(size - other[path]) <= max(APART_BYTES, APART * other[path]) for path, size in own.items()
    )


def _certain_step(item: Found) -> int | None:
    name = read_name(plain(item.root.rpartition("/")[2]))
    inside = {number for numbers in item.inner_steps.values() for number in numbers}
    if name.step is not None:
        return item.step
    return next(iter(inside)) if len(inside) == 1 else None
