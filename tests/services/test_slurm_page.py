"""docs/slurm-service.md against the code: `python -m tests.services.test_slurm_page` writes its tables anew."""

from __future__ import annotations

import re
from pathlib import Path

from chalicelib.domain.faults.slurm_states import STATUSES, failure_reason, fault_of_end
from chalicelib.ingest import agent
from rekindle.protocol.cluster.documents import SlurmState

PAGE = Path(__file__).resolve().parents[2] / "docs" / "slurm-service.md"

# What each event carries beside `v`, and what it is for. A new event has no row, and the test says so.
EVENTS = {
    agent.STARTED: ("cluster, at", "the queue is made"),
    agent.JOB: ("cluster, attempt, slurm_job, state, at", "a run joins, ends, or continues as another start"),
    agent.NODE: ("cluster, node, state, at", "a lost or failing node opens its Incident; other news joins it"),
    agent.ANSWERED: ("an Answer's members", "wakes the Incident that ordered"),
}


def states_table() -> str:
    rows = ["| Slurm | counts as | suggests |", "|---|---|---|"]
    for state in SlurmState:
        if state not in STATUSES:
            continue
        fault = fault_of_end(state, failure_reason(state))
        said = "what its output says" if state is SlurmState.FAILED else str(fault) if fault else "-"
        rows.append(f"| {state} | {STATUSES[state]} | {said} |")
    return "\n".join(rows)


def events_table() -> str:
    rows = ["| detail-type | needs | leads to |", "|---|---|---|"]
    rows += [f"| {name} | {EVENTS[name][0]} | {EVENTS[name][1]} |" for name in agent.PARSERS]
    return "\n".join(rows)


def with_tables(text: str) -> str:
    for name, table in (("states", states_table()), ("events", events_table())):
        pattern = re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(\n<!-- end -->)", re.DOTALL)
        text, count = pattern.subn(lambda found, table=table: f"{found[1]}{table}{found[2]}", text)
        assert count == 1
    return text


def test_the_page_s_tables_are_the_code_s() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_tables(text) == text


def test_each_state_has_its_row_but_the_one_that_is_none() -> None:
    table = states_table()
    assert [state for state in SlurmState if f"| {state} |" not in table] == [SlurmState.UNKNOWN]


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
