"""docs/reference/proving.md: what goes wrong in the proving ground, what people do, what is counted; from the code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from infra.tables import cell, code, page, table
from simulation.judging.counts import COUNTS
from simulation.stories.kinds import ACTIONS, SOURCE_FAULTS, TROUBLES

PAGE: Final = "docs/reference/proving.md"


def page_text() -> str:
    return page(
        "Proving ground: faults, wrong sources and counts",
        ["How to run it: [the proving ground](../proving.md).", ""],
        ["## What goes wrong with a run", "", *table(("kind", "what it is"), _rows(TROUBLES))],
        ["## What people do", "", *table(("action", "what it is"), _rows(ACTIONS))],
        ["## How sources go wrong", "", *table(("kind", "what it does"), _rows(SOURCE_FAULTS))],
        ["## What is counted", "", *table(("count", "what it means"), _rows(COUNTS))],
    )


def _rows(meanings: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(code(name), cell(meaning)) for name, meaning in meanings.items()]
