"""docs/rules.md: the rules of decisions, in the order in which they are asked, from their tuples."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.rules.tuples import SECTIONS, Section
from infra.tables import cell, code, page, table

PAGE: Final = "docs/rules.md"


def page_text() -> str:
    return page(
        "Rules",
        [
            "Each Decision names its rule; `rekindle show` prints it. The rules of a table are asked from top to "
            "bottom, and the first that decides wins ([how a decision is made](architecture.md#decisions)). "
            "A row without a name asks the rules of another table, or notes something for the rows below it. "
            '"A person" means that the Incident is handed over.',
            "",
        ],
        *(_section(section) for section in SECTIONS),
    )


def _section(section: Section) -> list[str]:
    rows = ((", ".join(map(code, row.names)), cell(row.text)) for row in section.rules)
    return [f"## {section.title}", "", section.about, "", *table(("rule", "when, and what then"), rows)]
