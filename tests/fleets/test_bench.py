"""`make bench ARGS=fleet`: every row of every table, what is left out, and where Rekindle does not win."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import fleet
from benchmarks.__main__ import PARTS
from fleets.histories import llama3
from fleets.traces import LANL_FILE, SKYPILOT_FILE
from tests.fleets.test_histories import LANL_HEAD, _gz


def test_it_is_a_part_of_the_bench() -> None:
    assert PARTS["fleet"] == "benchmarks.fleet"


def test_it_prints_each_policy_over_each_history_and_says_what_it_assumes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("REKINDLE_DATA", str(tmp_path))
    traces = tmp_path / "traces"
    traces.mkdir()
    _gz(
        traces / LANL_FILE,
        LANL_HEAD,
        "20,cluster,512.0,2048.0,4.0,7.0,2002-01-02 00:00:00,2002-01-02 01:00:00,60,Hardware,CPU,No",
        "20,cluster,512.0,2048.0,4.0,7.0,2002-01-04 00:00:00,2002-01-04 01:00:00,60,Hardware,CPU,No",
        "18,cluster,1024.0,4096.0,4.0,1.0,2002-05-06 08:45:00,2002-05-06 09:00:00,15,,,No",
    )
    fleet.main(seeds=(0,))
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith("ByteRobust (as published) ")]
    assert len(rows) == 6  # three published histories, two systems of LANL, and the table with one start for all
    for rules in fleet.rows_of(llama3(0)):
        assert out.count(f"\n{rules.name} ") >= 1, rules.name
        for text in rules.assumptions:
            assert text in out
    assert f"left out: {SKYPILOT_FILE} is not there" in out
    assert "LANL system 20, 512 nodes" in out
    assert "Where Rekindle does not win:" in out
    for figure in fleet.FIGURES:
        assert str(figure) in out


def test_every_row_saves_at_the_same_interval_and_has_spares_only_where_they_can_stand_by() -> None:
    rows = fleet.rows_of(llama3(0))
    assert len({rules.name for rules in rows}) == len(rows) == 10
    assert max(rules.spares for rules in rows if "ByteRobust" in rules.name) == 8  # 4 per 1,024 of 2,048
