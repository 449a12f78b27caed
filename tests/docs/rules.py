"""The rules that docs/rules.md explains."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
_ROW = re.compile(r"^\| (`[^|]+) \|", re.MULTILINE)
_RULE = re.compile(r"`([a-z_]+\.[a-z_]+)`")


def explained(section: str) -> list[str]:
    """The rules in the first cells of a section's table, in their order."""
    text = _PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [rule for cell in _ROW.findall(text) for rule in _RULE.findall(cell)]
