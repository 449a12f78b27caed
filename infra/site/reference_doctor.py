"""docs/reference/doctor.md: every check of `rekindle doctor`. The rows stand beside the checks' functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from infra.tables import page, table
from rekindle.doctor import setup  # noqa: F401  imports every module that has a check
from rekindle.doctor.base.checks import CHECKS, Area

PAGE: Final = "docs/reference/doctor.md"


def page_text() -> str:
    return page("Checks of `rekindle doctor`", ["How to run them: [doctor.md](../doctor.md).", ""], tables())


def tables() -> Iterator[str]:
    """A table for each area, and the one of what AWS's own validator checks."""
    for area in Area:
        rows = [(f"`{row.id}`", row.what, row.why, row.source) for row in CHECKS.values() if row.area is area]
        yield from (f"### {area.value}", "", *table(("check", "looks at", "why", "source"), rows))
    twins = [(row.twin, f"`{row.id}`") for row in CHECKS.values() if row.twin]
    yield from (
        "### Equivalents of AWS's validate-config.py",
        "",
        *table(("validate-config.py", "Rekindle"), twins),
    )
