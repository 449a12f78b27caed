"""`make bench ARGS=fleet`: every row of every table, and where Rekindle does not win."""

from __future__ import annotations

import pytest

from benchmarks import fleet
from benchmarks.__main__ import PARTS
from fleets.histories import llama3


def test_it_is_a_part_of_the_bench() -> None:
    assert PARTS["fleet"] == "benchmarks.fleet"


def test_it_prints_each_policy_over_each_history_and_says_what_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    fleet.main(seeds=(0,))
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith("ByteRobust (as published) ")]
    assert len(rows) == 4  # three published histories, and the table with one start for all
    for rules in fleet.rows_of(llama3(0)):
        assert out.count(f"\n{rules.name} ") >= 1, rules.name
        for text in rules.assumptions:
            assert text in out
    assert "Where Rekindle does not win:" in out
    for figure in fleet.FIGURES:
        assert str(figure) in out


def test_every_row_saves_at_the_same_interval_and_has_a_name_of_its_own() -> None:
    rows = fleet.rows_of(llama3(0))
    assert len({rules.name for rules in rows}) == len(rows) == 10
    assert max(rules.spares for rules in rows if "ByteRobust" in rules.name) == 8  # 4 per 1,024 of 2,048
