"""docs/reference/proving.md: how the proving ground's sources go wrong, and what its judge counts, from the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from infra.tables import cell, code, page, table
from simulation.judging.counts import COUNTS
from simulation.stories.kinds import SOURCE_FAULTS

PAGE: Final = "docs/reference/proving.md"


def page_text() -> str:
    """The page."""
    return page(
        "Proving ground: wrong sources and counts",
        ["How to run it: [the proving ground](../proving.md).", ""],
        ["## How sources go wrong", "", *table(("kind", "what it does"), _rows(SOURCE_FAULTS))],
        ["## What is counted", "", *table(("count", "what it means"), _rows(COUNTS))],
    )


def _rows(meanings: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(code(name), cell(meaning)) for name, meaning in meanings.items()]
