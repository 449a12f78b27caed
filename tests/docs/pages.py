"""Commands of a page, read from the page itself and given to a shell as a person pastes them: all at once.

`sh` fences hold commands, one per line. A comment `# exit code N` says how a command ends here, else with 0. A fence
with `title="NAME"` is the file NAME. `console` fences need an account; their commands are only parsed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.site.markdown import Fence, fences

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600.0
_EXIT = re.compile(r"# exit code (\d+)")
_TITLE = re.compile(r'title="([\w./-]+)"')
_ENDED = re.compile(r"@@ended (\d+)@@\n")


@dataclass
class Page:
    """One page, and what was printed when it was run: command -> its output."""

    path: Path
    folder: Path
    environ: dict[str, str]
    printed: dict[str, str] = field(default_factory=dict)

    def fences(self) -> list[Fence]:
        return fences(self.path.read_text(encoding="utf-8"))

    def files(self) -> dict[str, str]:
        """Name -> text of every file that the page has its reader write."""
        return {
            title[1]: "\n".join(fence.lines) + "\n" for fence in self.fences() if (title := _TITLE.search(fence.info))
        }

    def lines(self, language: str) -> list[str]:
        """Every command in fences of this language."""
        return [
            line
            for fence in self.fences()
            if fence.info == language
            for line in fence.lines
            if line.strip() and not line.startswith("#")
        ]

    def run(self, *, within: Sequence[str] = ()) -> None:
        """All of it, in order, on the standard input of one shell; nothing is repeated, and nothing waited for here.

        within: `console` lines of the page that come before.
        """
        assert set(within) <= set(self.lines("console"))
        for name, text in self.files().items():
            (self.folder / name).write_text(text, encoding="utf-8")
        lines = self.lines("sh")
        pasted = [*within, *(part for line in lines for part in (line, 'echo "@@ended $?@@"'))]
        with (self.folder / "errors.txt").open("w+") as errors:
            done = subprocess.run(
                ["/bin/bash"],
                input="\n".join([*pasted, ""]),
                cwd=self.folder,
                env=self.environ | {"SHELL": "/bin/bash", "PATH": f"{self._programs()}:{self.environ['PATH']}"},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            errors.seek(0)
            told = errors.read()
        parts = _ENDED.split(done.stdout)
        outputs, codes = parts[:-1:2], parts[1::2]
        assert len(codes) == len(lines), f"{self.path.name}: {done.stdout}\n{told}"
        for line, output, code in zip(lines, outputs, codes, strict=True):
            expected = _EXIT.search(line)
            assert code == (expected[1] if expected else "0"), f"{self.path.name}: {line}: {code}\n{output}\n{told}"
            self.printed[line.partition(" #")[0].strip()] = output

    def _programs(self) -> Path:
        """`rekindle` and `python` are those of this checkout, not what is installed on PATH."""
        folder = self.folder / "programs"
        folder.mkdir()
        for name, arguments in {"python": "", "rekindle": "-m rekindle.cli.main "}.items():
            program = folder / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
            program.chmod(0o755)
        return folder


def clean_environ() -> dict[str, str]:
    """The developer's environment without anything that names a service or an account."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REKINDLE_", "AWS_"))}
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path)}
