"""docs/proving.md says what the proving ground plays and counts."""

from __future__ import annotations

import re
from pathlib import Path

from simulation.judge import COUNTS
from simulation.lies import KINDS

TEXT = (Path(__file__).parents[2] / "docs" / "proving.md").read_text()


def _rows(heading: str) -> dict[str, str]:
    part = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", part, re.MULTILINE))


def test_the_lies_are_those_of_the_code() -> None:
    assert _rows("The lies") == dict(KINDS)


def test_the_counts_are_those_of_the_judge() -> None:
    assert _rows("What is counted") == dict(COUNTS)
