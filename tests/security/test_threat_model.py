"""docs/threat-model.md names a test for each threat, and each of them exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
ROW = re.compile(r"\| ([A-Z]\d+) \| (.+?) \| (.+?) \| (.*?) \|")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)(?:\[[^`]*\])?`")


def _rows() -> list[re.Match[str]]:
    table = PAGE.partition("<!-- threats: begin -->")[2].partition("<!-- threats: end -->")[0]
    lines = [line for line in table.strip().splitlines()[2:] if line]
    found = [ROW.fullmatch(line) for line in lines]
    assert all(found), [line for line, one in zip(lines, found, strict=True) if one is None]
    return [one for one in found if one is not None]


ROWS = _rows()


@cache
def _tests_of(file: str) -> frozenset[str]:
    """The tests at the top level of a file, as pytest would collect them."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


def test_there_are_threats_and_each_has_a_number_of_its_own() -> None:
    numbers = [row[1] for row in ROWS]
    assert len(numbers) >= 40
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("row", ROWS, ids=[row[1] for row in ROWS])
def test_each_threat_has_a_control_and_tests_that_exist(row: re.Match[str]) -> None:
    named = NAMED.findall(row[4])
    assert row[2].strip()
    assert row[3].strip()
    assert named, f"{row[1]} has no test"
    assert NAMED.sub("", row[4]).strip() == "", f"{row[1]} holds something else than tests"
    for file, name in named:
        assert (ROOT / file).is_file(), file
        assert name in _tests_of(file), f"{file} has no {name}"


def test_what_issue_asked_for_is_there() -> None:
    """The security tests that were ordered, by the threats that hold them."""
    ordered = ["S1", "S2", "S3", "W1", "W2", "M1", "M2", "M3", "I1", "I2", "I3", "I4", "I5", "I6", "A2", "A3", "K1"]
    assert set(ordered) <= {row[1] for row in ROWS}
