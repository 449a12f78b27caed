"""What docs/hyperpod-slurm.md promises that can be checked: its commands, its variables, its statements."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from infra.lifecycle import HERE, POLICY
from rekindle.cli.main import build_parser
from rekindle.slurm_agent.reading import comment
from rekindle.slurm_agent.reading.sizes import MIN_NODES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "hyperpod-slurm.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [line for block in BLOCKS for line in block.splitlines() if line.startswith("rekindle ")]


def test_the_commands_are_read() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_can_be_typed(line: str) -> None:
    assert callable(build_parser().parse_args(shlex.split(line, comments=True)[1:]).run)


def test_the_comment_is_one_that_the_agent_reads() -> None:
    [text] = re.findall(r"^#SBATCH --comment=(\S+)$", TEXT, re.MULTILINE)
    said = comment.parse(text)
    assert said is not None
    assert said.problems == ()
    assert f"export REKINDLE_MAILBOX={said.mailbox}\n" in TEXT
    documented = re.findall(r"^\| `(\w+)=", TEXT, re.MULTILINE)
    assert set(documented) == {*comment.KEYS, MIN_NODES} - {"job", "attempt"}, "the keys that people write"


def test_the_policys_statements_are_told() -> None:
    statements = json.loads((HERE / POLICY).read_text())["Statement"]
    for statement in statements:
        assert f"`{statement['Sid']}`" in TEXT
        for action in statement["Action"]:
            assert action.partition(":")[2] in TEXT


def test_what_it_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / "docs" / target).exists(), target


PAGES = sorted({*ROOT.glob("docs/*slurm*.md"), ROOT / "docs/agent.md"} - {ROOT / "docs/facts-slurm.md"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_about_running_slurm_says_how_to_stop_with_one_command(page: Path) -> None:
    [line] = re.findall(r"^> \*\*Stop at once.*?`(rekindle slurm-agent stop [^`]*)`", page.read_text(), re.MULTILINE)
    assert build_parser().parse_args(shlex.split(line)[1:]).verb == "stop"
