"""Every check, as docs/reference/doctor.md shows them. The rows stand beside the checks' functions (base/checks.py)."""

from __future__ import annotations

from rekindle.doctor import setup  # imports every module that has a check
from rekindle.doctor.base.checks import CHECKS, Area

__all__ = ["markdown", "setup"]


def markdown() -> str:
    """The tables of docs/reference/doctor.md."""
    parts = []
    for area in Area:
        lines = [f"### {area.value}", "", "| check | looks at | why | source |", "|---|---|---|---|"]
        rows = (row for row in CHECKS.values() if row.area is area)
        parts.append("\n".join([*lines, *(f"| `{row.id}` | {row.what} | {row.why} | {row.source} |" for row in rows)]))
    twins = [f"| {row.twin} | `{row.id}` |" for row in CHECKS.values() if row.twin]
    heading = ["### Equivalents of AWS's validate-config.py", "", "| validate-config.py | Rekindle |", "|---|---|"]
    return "\n\n".join([*parts, "\n".join([*heading, *twins])])
