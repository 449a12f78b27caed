"""docs/reference/playbooks.md: an Incident's phases, and the first response to each fault, from the tables."""

from __future__ import annotations

from typing import Final

from chalicelib.domain.model.incident import TRANSITIONS, Phase
from chalicelib.domain.model.repair import FAILURE_WORDS, FIRST_RUNGS
from chalicelib.domain.policy.playbooks import PLAYBOOKS
from infra.tables import cell, page, table

PAGE: Final = "docs/reference/playbooks.md"


def page_text() -> str:
    edges = [f"    {source} --> {target}" for source in Phase for target in Phase if target in TRANSITIONS[source]]
    ends = [f"    {phase} --> [*]" for phase in Phase if phase.is_terminal]
    rows = (
        (
            f"`{row.fault}`",
            str(row.response).replace("_", " "),
            str(row.deadline),
            "policy" if row.tries is None else str(row.tries),
            cell(row.source),
        )
        for row in PLAYBOOKS
    )
    return page(
        "Phases and playbooks",
        ["How the responses work: [playbooks](../playbooks.md).", "", "## Phases", ""],
        ["```mermaid", "stateDiagram-v2", f"    [*] --> {Phase.OPEN}", *edges, *ends, "```", ""],
        ["## First responses", ""],
        ['`tries` bounds the attempts that gain no step; "policy" means the policy\'s `budgets.max_no_progress`.', ""],
        table(("fault", "first response", "checkpoint deadline", "tries", "source"), rows),
        [
            "## First steps of a node's repair",
            "",
            "By the finding about the node: [node repair](../node-repair.md).",
            "",
        ],
        table(
            ("finding", "first step", "source"),
            ((f"`{row.kind}`", str(row.rung or "nothing"), cell(row.source)) for row in FIRST_RUNGS),
        ),
        ["If a new instance ends in Failure, its message decides:", ""],
        table(
            ("message has", "one more replacement", "source"),
            ((cell(row.text), "yes" if row.once_more else "no", cell(row.source)) for row in FAILURE_WORDS),
        ),
    )
