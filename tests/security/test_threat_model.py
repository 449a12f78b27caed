"""Each threat in docs/threat-model.md has a control and, in tests/security/threats.py, tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.security.threats import TESTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
ROW = re.compile(r"\| ([A-Z]\d+) \| (.+?) \| (.+?) \|")
NAMED = re.compile(r"(tests/[\w/]+\.py)::(\w+)(?:\[.*\])?")


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
    assert set(numbers) == set(TESTS)


@pytest.mark.parametrize("row", ROWS, ids=[row[1] for row in ROWS])
def test_each_threat_has_a_control_and_tests_that_exist(row: re.Match[str]) -> None:
    assert row[2].strip()
    assert row[3].strip()
    assert TESTS[row[1]], f"{row[1]} has no test"
    for one in TESTS[row[1]]:
        named = NAMED.fullmatch(one)
        assert named, f"{row[1]} holds something else than tests: {one}"
        assert (ROOT / named[1]).is_file(), named[1]
        assert named[2] in _tests_of(named[1]), f"{named[1]} has no {named[2]}"


def test_what_issue_asked_for_is_there() -> None:
    """The security tests that were ordered, by the threats that hold them."""
    ordered = ["S1", "S2", "S3", "W1", "W2", "M1", "M2", "M3", "I1", "I2", "I3", "I4", "I5", "I6", "A2", "A3", "K1"]
    assert set(ordered) <= {row[1] for row in ROWS}
