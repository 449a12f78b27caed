"""The programs of infra/ that take no option say so, and do nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", ["site", "wrap"])
def test_an_option_that_is_not_there_is_refused(module: str) -> None:
    command = [sys.executable, "-m", f"infra.{module}", "--nope"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines()[-1] == f"python -m infra.{module}: error: unrecognized arguments: --nope"
