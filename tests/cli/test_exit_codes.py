"""One table of exit codes, held by every command that there is."""

from __future__ import annotations

import argparse
import json
import re
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from rekindle.cli.main import build_parser
from rekindle.client.errors import MEANINGS, Exit
from tests.cli.conftest import Run
from tests.cli.service import FakeService

ROOT = Path(__file__).parents[2]

# How each command is called. `FILE` is a policy document that exists.
SPOKEN: dict[str, tuple[str, ...]] = {
    "status": (),
    "jobs": ("lm",),
    "incidents": (),
    "clusters": ("ml",),
    "show": ("inc-1",),
    "checkpoint": ("lm", "--yes"),
    "stop": ("lm", "--yes"),
    "resubmit": ("lm", "--yes"),
    "register": ("lm", "--yes"),
    "cancel": ("inc-1", "--yes"),
    "approvals": (),
    "approvals approve": ("inc-1", "a-1", "--yes"),
    "approvals deny": ("inc-1", "a-1", "--yes"),
    "nodes reboot": ("ml/n1", "--yes"),
    "nodes replace": ("ml/n1", "--yes"),
    "nodes hardware": (),
    "switches": (),
    "switches pause": (),
    "switches unpause": ("--yes",),
    "switches shadow": ("on", "--job", "lm"),
    "switches lift": ("--yes",),
    "policy list": (),
    "policy get": ("mine",),
    "policy put": ("mine", "FILE", "--yes"),
    "policy validate": ("FILE",),
    "policy diff": ("mine", "FILE"),
    "ledger": ("--job", "lm"),
    "ledger postmortem": ("inc-1",),
    "drill": ("hang", "--job", "lm"),
    "dead-letters events list": (),
    "dead-letters events redrive": ("--yes",),
    "dead-letters notices list": (),
    "dead-letters notices redrive": ("--yes",),
}
# Commands that read files or speak to others than the service, with a call whose file does not exist.
ALONE: dict[str, tuple[str, ...] | None] = {
    "checkpoints": None,  # what it is given is a place that is looked for: 3
    "classify": ("no-such.log",),
    "detect": ("no-such.csv",),
    "replay": ("no-such.json",),
    "plan": None,
    "hang": None,
    "run": None,
    "console": ("--token-file", "no-such"),
    "doctor": None,  # 1 where it finds an error, whatever it is
    "doctor cluster": None,
    "demo": None,
    "stack deploy": None,
    "stack undeploy": None,
    "slurm-agent bundle": None,
    "slurm-agent install": None,
    "slurm-agent upgrade": None,
    "slurm-agent rollback": None,
    "slurm-agent uninstall": None,
    "slurm-agent status": None,
    "slurm-agent stop": None,
    "stack slack-app": None,
    "init": None,
    "stack package": None,
    "stack estimate": None,
}
# Names that a command has besides, and that nothing lists.
SECOND_NAMES = {
    "approve": "approvals approve",
    "deny": "approvals deny",
    "reboot": "nodes reboot",
    "replace": "nodes replace",
    "hardware": "nodes hardware",
    "pause": "switches pause",
    "unpause": "switches unpause",
    "shadow": "switches shadow",
    "lift": "switches lift",
    "postmortem": "ledger postmortem",
    "quarantine": "dead-letters events",
    "undelivered": "dead-letters notices",
    "deploy": "stack deploy",
    "undeploy": "stack undeploy",
    "package": "stack package",
    "estimate": "stack estimate",
    "slack-app": "stack slack-app",
}


def _leaves(parser: argparse.ArgumentParser, name: str = "") -> Iterator[str]:
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if name and (not inner or not inner[0].required):
        yield name
    for action in inner:
        for listed in action._get_subactions():
            yield from _leaves(action.choices[listed.dest], f"{name} {listed.dest}".strip())


@cache
def _whole_parser() -> argparse.ArgumentParser:
    return build_parser()


def _parser(name: str) -> argparse.ArgumentParser:
    parser = _whole_parser()
    for word in name.split():
        (inner,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        parser = inner.choices[word]
    return parser


def test_every_command_stands_in_the_tables_above() -> None:
    assert set(_leaves(_whole_parser())) == SPOKEN.keys() | ALONE.keys()
    (known,) = (action for action in _whole_parser()._actions if isinstance(action, argparse._SubParsersAction))
    assert known.choices.keys() - {listed.dest for listed in known._get_subactions()} == {*SECOND_NAMES, "completion"}


@pytest.mark.parametrize(("second", "first"), SECOND_NAMES.items())
def test_a_second_name_is_the_same_command(second: str, first: str) -> None:
    by_second, by_first = _parser(second), _parser(first)
    assert by_second.get_default("run") is by_first.get_default("run")
    assert " ".join(by_second.format_help().replace(f"rekindle {second}", "rekindle").split()) == " ".join(
        by_first.format_help().replace(f"rekindle {first}", "rekindle").split()
    )


@pytest.fixture
def call(run: Run, tmp_path: Path) -> Run:
    (tmp_path / "policy.json").write_text('{"budgets": {"max_attempts": 12}}')

    def run_one(name: str, *argv: str) -> object:
        words = [str(tmp_path / "policy.json") if word == "FILE" else word for word in SPOKEN.get(name, ())]
        return run(*argv, *name.split(), *words)

    return run_one  # type: ignore[return-value]


@pytest.mark.parametrize("name", sorted(SPOKEN.keys() | ALONE.keys()))
def test_an_option_that_does_not_exist_is_2_and_named(run: Run, name: str) -> None:
    ended = run(*name.split(), "--no-such-option")
    assert ended.code == Exit.USAGE, ended.err
    assert ended.err.count("error:") <= 1


ANSWERS = [(403, Exit.FAILED), (404, Exit.NOT_FOUND), (429, Exit.TRY_AGAIN), (500, Exit.FAILED), (503, Exit.TRY_AGAIN)]


def _is_quick(name: str, status: int) -> bool:
    """Every command with one answer, and every answer with one look and one order."""
    return status == 404 or name in ("status", "stop")


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        pytest.param(name, *answer, marks=() if _is_quick(name, answer[0]) else pytest.mark.long)
        for name in sorted(SPOKEN)
        for answer in ANSWERS
    ],
)
def test_each_answer_of_the_service_has_its_exit_code_in_every_command(
    call: Run, service: FakeService, name: str, status: int, code: Exit
) -> None:
    service.answers += [(status, {}, json.dumps({"detail": "because"}).encode())] * 5
    ended = call(name, "--api", service.url)
    assert ended.code == code, ended.err
    assert "because" in ended.err.splitlines()[-1]
    assert ended.out == ""


@pytest.mark.parametrize("name", sorted(SPOKEN))
def test_a_service_that_is_not_there_is_4_in_every_command(call: Run, name: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ended = call(name, "--api", f"http://127.0.0.1:{port}")
    assert ended.code == Exit.UNREACHABLE
    assert "127.0.0.1" in ended.err.splitlines()[-1]


@pytest.mark.parametrize("name", sorted(name for name, argv in ALONE.items() if argv))
def test_a_file_that_is_not_there_is_2_and_named(run: Run, name: str) -> None:
    argv = ALONE[name] or ()
    ended = run("--api", "http://127.0.0.1:1", *name.split(), *argv)
    assert ended.code == Exit.USAGE
    assert argv[-1] in ended.err


@pytest.mark.parametrize("name", ["policy put", "policy validate", "policy diff"])
@pytest.mark.parametrize("text", [None, "{", "[]", '{"a": 1, "a": 2}'])
def test_a_policy_file_that_cannot_be_used_is_2_and_named(
    rekindle: Run, service: FakeService, tmp_path: Path, name: str, text: str | None
) -> None:
    file = tmp_path / "bad.json"
    if text is not None:
        file.write_text(text)
    argv = ("mine", str(file)) if name != "policy validate" else (str(file),)
    ended = rekindle(*name.split(), *argv)
    assert ended.code == Exit.USAGE
    assert "bad.json" in ended.err
    assert service.requests == []


def test_the_documentation_and_the_help_hold_the_table(run: Run) -> None:
    section = (ROOT / "docs" / "cli.md").read_text().split("## Exit codes")[1].split("\n## ")[0]
    rows = {int(row[0]): row[1] for row in re.findall(r"^\| (\d+) \| (.+) \|$", section, re.MULTILINE)}
    assert rows.keys() == {int(code) for code in MEANINGS} == {int(code) for code in Exit}
    told = run("--help").out
    for code, meaning in MEANINGS.items():
        assert rows[int(code)].startswith(meaning), code
        assert f"  {int(code):<3}  {meaning}" in told
