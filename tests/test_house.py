"""The sources that other tests read."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
HOUSES: Final = ("benchmarks", "chalicelib", "fleets", "infra", "localcloud", "rekindle", "simulation")


@cache
def trees() -> dict[str, ast.Module]:
    """Path -> its syntax tree, of all product code."""
    files = [ROOT / "app.py", *(file for house in HOUSES for file in sorted((ROOT / house).rglob("*.py")))]
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}
