"""What lies in a folder is called whole only where it can be resumed from: each file of the newest checkpoint harmed.

In every layout of test_lying_saves.py, without a manifest, as `rekindle checkpoints`, a start and the service see it.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from rekindle.checkpoints.folders import discover_in
from tests.monitor.saving.lying_saves import Layout, Part
from tests.train.test_lying_saves import LAYOUTS

STEPS = (10, 20, 30)
PATIENCE_S = 60.0
# What no byte of the file tells: its numbers are those of another step, and it names none.
NAMES_NO_STEP = ("Hugging Face", "Accelerate", "DeepSpeed", "DCP", "a script's own folder")
# Zeros are numbers like others, and neither of them closes with a record; a rank's random state is of no one's grid.
UNTOLD = {
    ("model.safetensors", "zeros"), ("step-30.pth", "zeros"), ("random_states_1.pkl", "lost"),
}  # fmt: skip


def write(layout: Layout, home: Path, world: int, step: int) -> None:
    meeting = threading.Barrier(world)

    def part(rank: int) -> None:
        root = home / layout.name(step)
        layout.write(Part(root, rank, world, step, float(step), lambda: meeting.wait(PATIENCE_S)))

    ranks = [threading.Thread(target=part, args=(rank,)) for rank in range(world)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(PATIENCE_S)


def harms(path: Path, older: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    size = path.stat().st_size
    yield "lost", path.unlink
    yield "empty", lambda: os.truncate(path, 0)
    yield "half", lambda: os.truncate(path, size // 2)
    yield "a byte less", lambda: os.truncate(path, size - 1)
    yield "zeros", lambda: (os.truncate(path, size // 2), os.truncate(path, size))
    yield "an older one's", lambda: shutil.copyfile(older, path)


def whole_steps(home: Path) -> set[int | None]:
    return {found.step for found in discover_in(home) if found.is_complete}


def is_resumable(layout: Layout, root: Path, world: int) -> bool:
    try:
        loaded = layout.load(root, world)
    except Exception:
        return False
    return all({int(number) for number in numbers} == {STEPS[-1]} for numbers in loaded)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "a file a rank"])  # of no layout that is known
def test_what_cannot_be_resumed_from_is_not_whole(name: str, world: int, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    for step in STEPS:
        write(layout, tmp_path, world, step)
    newest = tmp_path / layout.name(STEPS[-1])
    older = tmp_path / layout.name(STEPS[-2])
    assert is_resumable(layout, newest, world)
    assert whole_steps(tmp_path) == set(STEPS)
    wrong = []
    for path in [newest] if newest.is_file() else sorted(path for path in newest.rglob("*") if path.is_file()):
        body = path.read_bytes()
        for harm, do in harms(path, older if path == newest else older / path.relative_to(newest)):
            do()
            is_told = STEPS[-1] not in whole_steps(tmp_path)
            is_tellable = (path.name, harm) not in UNTOLD and not (harm == "an older one's" and name in NAMES_NO_STEP)
            if not is_told and is_tellable and not is_resumable(layout, newest, world):
                wrong.append((path.relative_to(tmp_path).as_posix(), harm))
            path.write_bytes(body)
    assert wrong == []
