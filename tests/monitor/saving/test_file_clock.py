"""The time of a file system, asked while its disk is busy."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rekindle.monitor.saving.file_clock import file_time_of

SLOW_S = 0.4


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_disk_that_is_busy_for_a_moment_does_not_date_a_save_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    keep, left = os.fsync, [SLOW_S] * slow

    def busy(descriptor: int) -> None:
        keep(descriptor)
        if left:
            time.sleep(left.pop())

    monkeypatch.setattr(os, "fsync", busy)
    place = tmp_path / "step-1"
    place.touch()
    began = time.monotonic()
    written_at = place.stat().st_mtime
    found = file_time_of(began, place)
    assert found is not None
    assert written_at - SLOW_S / 2 < found < written_at + SLOW_S / 2


def test_where_no_file_can_be_made_there_is_none(tmp_path: Path) -> None:
    assert file_time_of(time.monotonic(), tmp_path / "not" / "there") is None
