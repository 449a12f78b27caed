"""Each rule that a decision can name is named by a test, so that none is taken out or turned unseen.

A rule is a text such as "order.stop_again" in the code that decides: `context.stay("order.stop_again", ...)`, or the
`rule` of a row of a table. A text that ends in "_" is a beginning, to which the code adds what it is about.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from tests.test_house import ROOT, trees

DECIDING: Final = (
    "chalicelib/domain/claims/",
    "chalicelib/domain/decision/",
    "chalicelib/domain/faults/",
    "chalicelib/domain/guards/",
    "chalicelib/domain/node/",
    "chalicelib/domain/rules/",
    "chalicelib/domain/run/",
)
RULE: Final = re.compile(r"[a-z]+\.[a-z]+(_[a-z]+)*_?\Z")


def rules() -> set[str]:
    return {
        node.value
        for path, tree in trees().items()
        if path.startswith(DECIDING)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and RULE.match(node.value)
    }


def test_each_rule_is_named_by_a_test() -> None:
    named = set()
    for file in {*(ROOT / "tests").rglob("*.py")} - {Path(__file__)}:  # its own docstring names one
        named |= set(re.findall(r"""["']([a-z]+\.[a-z_]+)["']""", file.read_text(encoding="utf-8")))
    found = rules()
    assert len(found) > 250
    missing = {one for one in found - named if not (one.endswith("_") and any(two.startswith(one) for two in named))}
    assert sorted(missing) == []
