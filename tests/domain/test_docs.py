"""docs/playbooks.md against the rules.

The diagram in docs/playbooks.md is written from the decision table: after a change, `python -m tests.domain.test_docs`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chalicelib.domain.model.evidence import Onset
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.resume.rollback import rewind_steps, skip_window
from rekindle.protocol.signals import FaultClass
from tests.domain.looks import incident
from tests.domain.tables.test_loss_tables import LOSS_TABLE

ROOT = Path(__file__).parents[2]
PLAYBOOK_PAGE = ROOT / "docs" / "playbooks.md"
BEGIN = "<!-- written by python -m tests.domain.test_docs: begin -->"
END = "<!-- end -->"


def diagram() -> str:
    """The spike's way through the phases: each edge is a row of the decision table under the built-in policy."""
    edges = {
        (list(Phase).index(case.phase), list(Phase).index(phase), rule)
        for name, case, _, policy, rule, phase, _ in LOSS_TABLE
        if not name.startswith("NaN")
        and policy == DEFAULT_POLICY
        and phase is not case.phase
        and _is_of_the_spike(case, rule)
    }
    phases = list(Phase)
    lines = [f"    {phases[source]} --> {phases[target]}: {rule}" for source, target, rule in sorted(edges)]
    return "\n".join([BEGIN, "```mermaid", "stateDiagram-v2", f"    [*] --> {Phase.OPEN}", *lines, "```", END])


def _is_of_the_spike(case: Incident, rule: str) -> bool:
    group = rule.split(".")[0]
    ours = {"spike", "rollback", "budget"} | (
        {"checkpoint", "resubmit", "verify"} if case.fault is FaultClass.LOSS_SPIKE else set()
    )
    return group in ours and rule != "checkpoint.poisoned"


def with_diagram(text: str) -> str:
    """The playbooks page with its diagram brought up to date."""
    before, _, rest = text.partition(BEGIN)
    return before + diagram() + rest.partition(END)[2]


def test_the_spikes_diagram_is_what_the_decision_table_says() -> None:
    text = PLAYBOOK_PAGE.read_text(encoding="utf-8")
    assert text == with_diagram(text)
    assert diagram().count("-->") > 10


def test_the_worked_numbers_are_those_of_the_built_in_policy() -> None:
    text = PLAYBOOK_PAGE.read_text(encoding="utf-8")
    rows = [row for row in re.findall(r"^\| (?:resume|skip) .*$", text, flags=re.MULTILINE)]
    told = [tuple(int(cell) for cell in row.strip("| ").split("|")[2:]) for row in rows]
    cases = []
    for number in (1, 2, 3):
        onsets = tuple(Onset(attempt=f"a{n}", fault=FaultClass.LOSS_SPIKE, step=Known(1000)) for n in range(number))
        case = incident().changed(
            onset_attempt="lm",
            onset_step=Known(1000),
            onset_fault=FaultClass.LOSS_SPIKE,
            onsets=onsets,
            rollbacks=number,
        )
        window = skip_window(case, DEFAULT_POLICY)
        cases.append((1000 - rewind_steps(case, DEFAULT_POLICY), window.from_step, window.to_step))
    assert list(zip(*told, strict=True)) == cases


@pytest.mark.parametrize("width", [1, 2, 10, 11, 200])
def test_the_window_holds_the_bad_step_however_narrow_the_policy(width: int) -> None:
    policy = Policy.from_wire({"loss": {"skip_steps": width}})
    assert policy.loss.skip_margin_steps == 10
    onsets = (Onset(attempt="a", fault=FaultClass.NON_FINITE, step=Known(84)),) * 2
    case = incident().changed(
        onset_attempt="lm",
        onset_step=Known(84),
        onset_fault=FaultClass.NON_FINITE,
        onsets=onsets,
        rollbacks=2,
    )
    window = skip_window(case, policy)
    assert window.from_step == 74
    assert window.to_step == max(85, 74 + width)


if __name__ == "__main__":
    PLAYBOOK_PAGE.write_text(with_diagram(PLAYBOOK_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
