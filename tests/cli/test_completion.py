"""`rekindle completion`: what it prints is tried in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Run

_TRY = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_shtab_rekindle rekindle "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def _bash(script: Path, *words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "--norc", "-c", _TRY, "bash", str(script), "rekindle", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.process
def test_bash_completes_commands_their_words_their_options_and_files(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "rekindle.bash"
    script.write_text(run("completion", "bash").out)
    (tmp_path / "mine.json").write_text("{}")
    words = set(_bash(script, ""))
    assert {"status", "drill", "approvals", "policy"} <= words
    assert not {"approve", "quarantine", "deploy"} & words, "a second name is completed"
    assert _bash(script, "swi") == ["switches"]
    assert _bash(script, "drill", "ha") == ["hang"]
    assert _bash(script, "policy", "va") == ["validate"]
    assert _bash(script, "switches", "sha") == ["shadow"]
    assert _bash(script, "switches", "shadow", "o") == ["on", "off"]
    assert "--watch" in _bash(script, "incidents", "--")
    assert "mine.json" in _bash(script, "policy", "put", "default", "m")


@pytest.mark.process
@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish here")
def test_fish_completes_them_too(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "rekindle.fish"
    script.write_text(run("completion", "fish").out)
    asked = 'source $argv[1]; complete -C "rekindle swi"; complete -C "rekindle drill ha"'
    done = subprocess.run(
        ["fish", "--no-config", "-c", asked, str(script)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["switches", "hang"]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh here")
def test_zsh_can_read_it(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "_rekindle"
    script.write_text(run("completion", "zsh").out)
    assert script.read_text().startswith("#compdef rekindle")
    assert subprocess.run(["zsh", "-n", str(script)], capture_output=True, check=False).returncode == 0


def test_every_shell_has_every_command(run: Run) -> None:
    for shell in ("bash", "zsh", "fish"):
        ended = run("completion", shell)
        assert ended.code == 0
        assert all(word in ended.out for word in ("postmortem", "dead-letters", "drill", "--exclude", "no_progress"))
    assert run("completion", "tcsh").code == 2
