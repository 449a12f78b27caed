"""The table of checks, its page, and the tests that make each of them report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infra.site.reference_doctor import tables
from rekindle.doctor.base.checks import CHECKS, OURS, Area, check

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "doctor.md"
PACKAGE = HERE.parents[1] / "rekindle" / "doctor"


def test_every_check_has_one_row_with_a_source() -> None:
    assert all(row.what and row.why and row.source for row in CHECKS.values())
    assert {row.area for row in CHECKS.values()} == set(Area)
    table = "\n".join(tables())
    assert all(f"| `{name}` | {row.what} |" in table for name, row in CHECKS.items())


def test_no_two_checks_have_one_id() -> None:
    with pytest.raises(ValueError, match="two checks have the id stack"):
        check("stack", Area.STACK, OURS)(test_every_check_is_tested)  # type: ignore[arg-type]


def test_every_check_is_tested() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in HERE.glob("test_*.py"))
    for name in CHECKS:
        assert f'"{name}"' in tests, name


def test_each_check_of_awss_validator_has_a_twin() -> None:
    """What validate-config.py looks at; a later fork simulates the role's access to S3 as well."""
    twins = " ".join(row.twin for row in CHECKS.values())
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
