"""NaN where there is no tensor of torch's."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from rekindle.checkpoints.folders import declared_at

np: Any = pytest.importorskip("numpy")
NAN = math.nan


def nan_at(path: Path) -> str | None:
    return declared_at(path, {".": path.stat().st_size}).nan


@pytest.mark.parametrize("type_", ["f2", "f4", "f8"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_an_archive_of_numpys_is_sampled(type_: str, is_packed: bool, tmp_path: Path) -> None:
    save, path = np.savez_compressed if is_packed else np.savez, tmp_path / "ckpt.npz"
    good, row = np.ones((64, 64), dtype=type_), np.full(64, NAN, dtype=type_)
    save(path, w=good, metrics=row, seen=np.arange(9))
    assert nan_at(path) is None, "a row of metrics may be NaN by intent"
    save(path, b=good, w=np.full((64, 64), NAN, dtype=type_), step=np.int64(3))
    assert nan_at(path) == "ckpt.npz holds NaN (w)"


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_a_pickle_that_holds_nothing_but_nan_is_told(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "ckpt.pkl"
    good, bad = np.ones((64, 64), dtype="f4"), np.full((64, 64), NAN, dtype="f4")
    for state, is_bad in [
        ({"w": bad, "v": bad, "step": 3}, True),
        ({"w": good, "v": bad, "step": 3}, False),
        ({"w": bad.tolist(), "step": 3}, True),
        ({"w": good.tolist(), "never_evaluated": [NAN] * 99}, False),
        ({"model": {"w": [NAN] * 99, "b": [1.0]}}, True),
        ({"w": [NAN] * 3, "step": 3}, False),
        ([NAN] * 99, False),
    ]:
        path.write_bytes(pickle.dumps(state, protocol))
        assert (nan_at(path) is not None) is is_bad, state


@pytest.mark.long
def test_what_is_damaged_is_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "ckpt.npz"
    np.savez(path, w=np.full((64, 64), NAN))
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        nan_at(path)
