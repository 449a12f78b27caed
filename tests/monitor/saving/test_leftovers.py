"""What killed saves leave is removed by the next process, whatever is being saved beside it meanwhile."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rekindle.monitor.saving.leftovers import remove_leftovers

LONG_AGO = 10**9


def left(path: Path) -> Path:
    """A file that a process of long ago was killed at."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half")
    os.utime(path, (LONG_AGO, LONG_AGO))
    os.utime(path.parent, (LONG_AGO, LONG_AGO))
    return path


def test_names_that_only_rekindle_gives_are_removed_and_no_others(tmp_path: Path) -> None:
    theirs = [
        left(tmp_path / name) for name in (".step-1.pt.tmp", "step-2.tmp-theirs/0.bin", ".rekindle-clock", "a.pt")
    ]
    folder = left(tmp_path / "step-3.tmp-rekindle-run-a2-0" / "0.bin").parent
    ours = [
        left(tmp_path / name)
        for name in (
            ".step-1.pt.rekindle-4711",
            "file/.a.pt.rekindle-3",
            ".rekindle-clock-1f0c22ab.tmp",
            ".rekindle-trial-0-77",
        )
    ]
    os.utime(folder, (LONG_AGO, LONG_AGO))
    removed = remove_leftovers(tmp_path)
    assert sorted(removed) == sorted(str(path) for path in [folder, *ours])
    assert all(path.exists() for path in theirs)
    assert not any(path.exists() for path in [folder, *ours])


@pytest.mark.parametrize("gone", ["shard.tmp", "step-2.tmp-rekindle-run-1", ".step-2.pt.rekindle-5"])
def test_a_save_that_gets_its_name_meanwhile_keeps_nothing_else_from_being_removed(
    tmp_path: Path, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its names goes between being listed and being looked at."""
    for number in range(20):  # in whatever order the file system lists them
        left(tmp_path / f".step-{number}0.pt.rekindle-4711")
    left(tmp_path / "file" / ".step-1.pt.rekindle-4711")
    (tmp_path / "step-2.tmp-rekindle-run-1").mkdir()
    for path in (tmp_path / "step-2.tmp-rekindle-run-1" / "shard.tmp", tmp_path / ".step-2.pt.rekindle-5"):
        path.write_bytes(b"being written")
    seen = os.lstat

    def lstat(path: Any, **kwargs: Any) -> os.stat_result:
        if os.fspath(path).endswith(gone):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return seen(path, **kwargs)

    monkeypatch.setattr(os, "lstat", lstat)
    assert len(remove_leftovers(tmp_path)) == 21
    assert not list(tmp_path.rglob("*.rekindle-4711"))
    assert (tmp_path / "step-2.tmp-rekindle-run-1" / "shard.tmp").exists()


def test_a_folder_that_cannot_be_read_keeps_nothing_else_from_being_removed(tmp_path: Path) -> None:
    for number in range(10):
        left(tmp_path / f"run-{number}" / ".step-1.pt.rekindle-4711")
    listed = os.scandir

    def scandir(path: Any) -> Any:
        if os.fspath(path).endswith("run-5"):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return listed(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        assert len(remove_leftovers(tmp_path)) == 9
