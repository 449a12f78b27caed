"""The embedded cloud's store as a service, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.mark.long
@pytest.mark.process
def test_an_order_given_to_a_store_is_there_when_it_is_looked_at_again(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "build" / "demo"
    store.mkdir(parents=True)
    assert run("--store", str(store), "pause").code == 0
    ended = run("status")  # without a name, the store that the demo leaves behind is found, and that is said
    assert ended.out.startswith("protection  paused")
    assert "build/demo" in ended.err


@pytest.mark.long
@pytest.mark.process
def test_an_embedded_cloud_that_cannot_come_up_is_exit_code_4(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cloud.sqlite").write_text("this is no database")
    ended = run("--store", str(tmp_path), "status")
    assert ended.code == 4
    assert "did not come up" in ended.err
    assert ended.err.count("\n") == 1
