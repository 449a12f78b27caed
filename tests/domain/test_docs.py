"""docs/transitions.md and the diagram in docs/playbooks.md are written from the tables.

After a change: `python -m tests.domain.test_docs`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chalicelib.domain.model.evidence import Onset
from chalicelib.domain.model.incident import TRANSITIONS, Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.policy.playbooks import PLAYBOOKS
from chalicelib.domain.run.rollback import rewind_steps, skip_window
from chalicelib.domain.run.submission import ROWS
from chalicelib.platforms.slurm.pending_reasons import REASONS
from rekindle.signatures.faults import FaultClass
from tests.domain.looks import incident
from tests.domain.test_loss_tables import LOSS_TABLE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "transitions.md"
PLAYBOOK_PAGE = ROOT / "docs" / "playbooks.md"
BEGIN = "<!-- written by python -m tests.domain.test_docs: begin -->"
END = "<!-- end -->"
SLURM_PAGE = ROOT / "docs" / "slurm-playbooks.md"
SLURM_BEGIN = "<!-- written by python -m tests.domain.test_docs: {} -->"
SLURM_RULES = re.compile(
    r'"((?:adopt|start)\.[a-z_]+|nodes\.first|defer\.auto_resume|defer\.(?:platform_says_both|many_down)[a-z_]*'
    r"|verify\.exclusion_lifted|verify\.smaller[a-z_]*|stop\.(?:pending|expiring|refused_once|blind"
    r'|blind_limit|owner_stopped)|resubmit\.(?:pending|again|unanswered|requeue_refused|old_unseen|old_unseen_limit))"'
)
QUEUE_RULES = ("queued", "held", "pending_for_ever", "queue_limit")
OWN_RULES = re.compile(r'"((?:spike|rollback|stacks)\.[a-z_]+)"')


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
            '`tries` bounds the attempts that gain no step; "policy" means the policy\'s `budgets.max_no_progress`.',
            "",
            "| fault | first response | checkpoint deadline | tries | source |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


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


def with_slurm_tables(text: str) -> str:
    """Slurm's page with its two tables brought up to date."""
    ways = [f"| `{row.rule}` | {row.how or 'a person'} | {_plain(row.why)} | {row.source} |" for row in ROWS]
    text = _between(text, "submission", ["| the first that fits | how | why | source |", "|---|---|---|---|", *ways])
    waits = [f"| {row.waits} | {row.said} | `{row.example or '(none)'}` | {row.source} |" for row in REASONS]
    return _between(text, "reasons", ["| waits | what it means | for example | source |", "|---|---|---|---|", *waits])


def _plain(why: str) -> str:
    return why.replace("{", "*").replace("}", "*")


def _between(text: str, name: str, lines: list[str]) -> str:
    begin = SLURM_BEGIN.format(name)
    before, _, rest = text.partition(begin)
    return "\n".join([before + begin, *lines, END]) + rest.partition(END)[2]


def test_slurms_tables_are_what_the_code_says() -> None:
    text = SLURM_PAGE.read_text(encoding="utf-8")
    assert text == with_slurm_tables(text)
    assert text.count("| `submission.") == len(ROWS)


def test_every_rule_of_slurm_is_explained_and_no_other() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "chalicelib" / "domain").rglob("*.py"))
    table = SLURM_PAGE.read_text(encoding="utf-8").partition("## The rules")[2]
    explained = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", table, flags=re.MULTILINE)
    assert len(explained) == len(set(explained))
    of_queue = {f"{group}.{rule}" for group in ("open", "verify") for rule in QUEUE_RULES}
    assert set(explained) == set(SLURM_RULES.findall(sources)) | of_queue


def test_the_page_is_what_the_tables_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


def test_the_spikes_diagram_is_what_the_decision_table_says() -> None:
    text = PLAYBOOK_PAGE.read_text(encoding="utf-8")
    assert text == with_diagram(text)
    assert diagram().count("-->") > 10


def test_every_rule_of_a_bad_loss_is_explained_and_no_other() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "chalicelib" / "domain").rglob("*.py"))
    table = PLAYBOOK_PAGE.read_text(encoding="utf-8").partition("## The rules")[2]
    explained = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", table, flags=re.MULTILINE)
    assert len(explained) == len(set(explained))
    assert {rule for rule in explained if OWN_RULES.fullmatch(f'"{rule}"')} == set(OWN_RULES.findall(sources))
    assert all(f'"{rule}"' in sources for rule in explained)


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
    PAGE.write_text(page(), encoding="utf-8")
    SLURM_PAGE.write_text(with_slurm_tables(SLURM_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PLAYBOOK_PAGE.write_text(with_diagram(PLAYBOOK_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
