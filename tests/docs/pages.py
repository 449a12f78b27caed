"""Commands of a page, read from the page itself and run one by one.

`sh` fences hold commands, one per line: an `export`, or a program with arguments. A comment `# exit code N` says
how a command ends here, else with 0. A fence with `title="NAME"` is the file NAME. `console` fences need an account;
their commands are only parsed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infra.site.markdown import Fence, fences

ROOT = Path(__file__).parents[2]
PATIENCE_S = 180.0  # a command, and what may not be there at once
NOT_THERE_YET = 3  # rekindle's exit code for a name that does not exist
_EXIT = re.compile(r"# exit code (\d+)")
_TITLE = re.compile(r'title="([\w./-]+)"')


@dataclass
class Page:
    """One page, and what it was run with. `exports` of the test win over those of the page: they are the reader's."""

    path: Path
    folder: Path
    environ: dict[str, str]
    exports: Mapping[str, str] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)

    def fences(self) -> list[Fence]:
        return fences(self.path.read_text(encoding="utf-8"))

    def files(self) -> dict[str, str]:
        """Name -> text of every file that the page has its reader write."""
        return {title[1]: "\n".join(one.lines) + "\n" for one in self.fences() if (title := _TITLE.search(one.info))}

    def lines(self, language: str) -> list[str]:
        """Every command in fences of this language."""
        return [
            line
            for one in self.fences()
            if one.info == language
            for line in one.lines
            if line.strip() and not line.startswith("#")
        ]

    def run(self) -> None:
        """All of it, in order. A command that fails ends the test with what it printed."""
        for name, text in self.files().items():
            (self.folder / name).write_text(text, encoding="utf-8")
        for line in self.lines("sh"):
            self.do(line)

    def do(self, line: str) -> None:
        words = [_filled(word, self.environ) for word in shlex.split(line, comments=True)]
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self.environ[name] = self.exports.get(name, value)
            return
        ends = time.monotonic() + PATIENCE_S
        while True:
            done = subprocess.run(
                _program(words),
                cwd=self.folder,
                env=self.environ,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            # What the page has its reader wait for in words: a job that has just been submitted is not known yet.
            if done.returncode != NOT_THERE_YET or time.monotonic() > ends:
                break
            time.sleep(0.5)
        expected = _EXIT.search(line)
        assert done.returncode == (int(expected[1]) if expected else 0), (
            f"{self.path.name}: {line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        self.printed[line.partition(" #")[0].strip()] = done.stdout


def _filled(word: str, environ: Mapping[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda name: environ[name[1]], word)


def _program(words: list[str]) -> list[str]:
    """`rekindle` and `python` are those of this checkout, not what is installed on PATH."""
    match words[0]:
        case "rekindle":
            return [sys.executable, "-m", "rekindle.cli.main", *words[1:]]
        case "python":
            return [sys.executable, *words[1:]]
        case _:
            return words


def clean_environ() -> dict[str, str]:
    """The developer's environment without anything that names a service or an account."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REKINDLE_", "AWS_"))}
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path)}
