"""The table of checks, its page, and the tests that make each of them report."""

from __future__ import annotations

import re
from pathlib import Path

from rekindle.doctor.base.ids import Id
from rekindle.doctor.table import CHECKS, Area

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "doctor.md"
PACKAGE = HERE.parents[1] / "rekindle" / "doctor"


def test_every_check_has_one_row_with_a_source() -> None:
    assert [check.id for check in CHECKS] == list(Id)
    assert all(check.what and check.why and check.source for check in CHECKS)
    assert {check.area for check in CHECKS} == set(Area)


def test_every_check_is_made_somewhere_and_tested() -> None:
    code = "".join(
        path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py") if path.name not in ("ids.py", "table.py")
    )
    tests = "".join(path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py"))
    for check in Id:
        assert re.search(rf"\bId\.{check.name}\b", code), check
        assert f'"{check.value}"' in tests, check


def test_each_check_of_awss_validator_has_a_twin() -> None:
    """What AWS's validate-config.py looks at; a later fork simulates the role's access to S3 as well."""
    twins = " ".join(check.twin for check in CHECKS)
    for there in (
        "JSON parse",
        "schema",
        "group names",
        "subnet",
        "security group",
        "FSx DNS name",
        "FSx mount name",
        "S3 access",
    ):
        assert there in twins


def test_the_page_names_every_option() -> None:
    text = PAGE.read_text(encoding="utf-8")
    source = (PACKAGE.parent / "cli" / "tools" / "doctor.py").read_text(encoding="utf-8")
    options = re.findall(r'add_argument\("(--[a-z]+)"', source)
    assert len(options) > 8
    for option in options:
        assert option in text
