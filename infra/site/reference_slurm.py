"""docs/reference/slurm.md: Slurm's states and reasons, the agent's events, and the ways of a resubmission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chalicelib.domain.faults.slurm_states import STATUSES, failure_of_end, fault_of_end
from chalicelib.domain.run.submission import ROWS
from chalicelib.ingest import agent
from chalicelib.platforms.slurm.pending_reasons import REASONS
from infra.tables import cell, page, table
from rekindle.protocol.cluster.documents import SlurmState

PAGE: Final = "docs/reference/slurm.md"

# What each event carries beside `v`, and what it is for.
EVENTS: Final[Mapping[str, tuple[str, str]]] = {
    agent.STARTED: ("cluster, at", "the queue is made"),
    agent.JOB: ("cluster, attempt, slurm_job, state, at", "a run joins, ends, or continues as another start"),
    agent.NODE: ("cluster, node, state, at", "a lost or failing node opens its Incident; other news joins it"),
    agent.ANSWERED: ("an Answer's members", "wakes the Incident that ordered"),
}


def page_text() -> str:
    return page(
        "Slurm: states, reasons, events",
        ["What they mean for a recovery: [recovery on Slurm](../slurm-playbooks.md).", ""],
        ["## Job states", "", "Any other word counts as `unknown`: no state at all.", "", *states()],
        ["## How a job is started again", "", "The first row that fits.", "", *submissions()],
        ["## Reasons of a pending job", "", *reasons()],
        ["## Events of the agent", "", *events()],
    )


def states() -> list[str]:
    """What each state of a job counts as, and the fault that it suggests."""
    rows = []
    for state in SlurmState:
        if state not in STATUSES:
            continue
        fault = fault_of_end(state, failure_of_end(state))
        suggests = "what its output states" if state is SlurmState.FAILED else str(fault) if fault else "-"
        rows.append((str(state), str(STATUSES[state]), suggests))
    return table(("Slurm", "counts as", "suggests"), rows)


def submissions() -> list[str]:
    """The ways to start a job again, in the order in which they are tried."""
    rows = [
        (f"`{row.rule}`", row.how or "a person", cell(row.why.replace("{", "*").replace("}", "*")), cell(row.source))
        for row in ROWS
    ]
    return table(("rule", "how", "why", "source"), rows)


def reasons() -> list[str]:
    """What is done about each reason for which a job is pending."""
    rows = [(str(row.waits), cell(row.text), f"`{row.example or '(none)'}`", cell(row.source)) for row in REASONS]
    return table(("waits", "what it means", "for example", "source"), rows)


def events() -> list[str]:
    """The events of the agent that the service reads. Raises: KeyError for one that `EVENTS` does not describe."""
    return table(("detail-type", "needs", "leads to"), ((str(name), *EVENTS[name]) for name in agent.PARSERS))
