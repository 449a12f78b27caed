"""docs/transitions.md is written from the tables. After a change: `python -m tests.domain.test_docs`."""

from __future__ import annotations

from pathlib import Path

from chalicelib.domain.incidents import TRANSITIONS, Phase
from chalicelib.domain.playbooks import PLAYBOOKS

PAGE = Path(__file__).parents[2] / "docs" / "transitions.md"


def page() -> str:
    """The page as the tables have it."""
    edges = [f"    {source} --> {target}" for source in Phase for target in Phase if target in TRANSITIONS[source]]
    ends = [f"    {phase} --> [*]" for phase in Phase if phase.is_terminal]
    rows = [
        f"| `{row.fault}` | {row.response.replace('_', ' ')} | {row.deadline} | "
        f"{'policy' if row.tries is None else row.tries} | {row.source} |"
        for row in PLAYBOOKS
    ]
    return "\n".join(
        [
            "# Phases and playbooks",
            "",
            "Written from `TRANSITIONS` and `PLAYBOOKS` by `python -m tests.domain.test_docs`; a test keeps it equal.",
            "",
            "```mermaid",
            "stateDiagram-v2",
            f"    [*] --> {Phase.OPEN}",
            *edges,
            *ends,
            "```",
            "",
            '`tries` bounds the attempts that gain no step; "policy" means the policy\'s `max_no_progress`.',
            "",
            "| fault | first response | checkpoint deadline | tries | source |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def test_the_page_is_what_the_tables_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
