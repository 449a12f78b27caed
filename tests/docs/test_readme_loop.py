"""The training loop of the README, run as it is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOOP = re.search(r"```python\n(import rekindle\.monitor.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
# What the loop leaves to its reader.
BEFORE = """
steps = 6

def save(step, kind):
    return "unused"

def fresh():
    return {}

def load(path):
    return int(open(path).read()), {}

def train(model, step):
    print("trained", step)
    return 1.0

"""


def trained(folder: Path, **env: str) -> tuple[int, list[int], str]:
    """Exit code, the steps that the loop trained, and what it wrote to standard error."""
    assert LOOP is not None
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "REKINDLE", "AWS"))}
    ended = subprocess.run(
        [sys.executable, "-c", BEFORE + LOOP[1]],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT), "REKINDLE_JOB_ID": "lm", "REKINDLE_MAILBOX": str(folder)} | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.returncode, [int(line.split()[1]) for line in ended.stdout.splitlines()], ended.stderr


@pytest.mark.parametrize("watched", ["on", "off"])
def test_without_a_plan_it_begins_at_the_first_step(tmp_path: Path, watched: str) -> None:
    code, steps, errors = trained(tmp_path, REKINDLE_MONITOR=watched)
    assert (code, steps) == (0, [1, 2, 3, 4, 5, 6]), errors


@pytest.mark.parametrize("watched", ["on", "off"])
def test_a_checkpoint_in_a_local_folder_is_gone_on_from_and_bad_data_left_out(tmp_path: Path, watched: str) -> None:
    (tmp_path / "step-3").write_text("3")
    code, steps, errors = trained(
        tmp_path,
        REKINDLE_MONITOR=watched,
        REKINDLE_RESUME_STEP="3",
        REKINDLE_RESUME_URI=str(tmp_path / "step-3"),
        REKINDLE_SKIP="[[5,6]]",
    )
    assert (code, steps) == (0, [4, 6]), errors


def test_a_folder_that_mirrors_the_bucket_is_gone_on_from(tmp_path: Path) -> None:
    (tmp_path / "step-3").write_text("3")
    code, steps, errors = trained(
        tmp_path,
        REKINDLE_RESUME_STEP="3",
        REKINDLE_RESUME_URI="s3://bucket/run/step-3",
        REKINDLE_CHECKPOINT_DIR=str(tmp_path),
        REKINDLE_CHECKPOINT_URI="s3://bucket/run",
    )
    assert (code, steps) == (0, [4, 5, 6]), errors


@pytest.mark.parametrize("watched", ["on", "off"])
def test_a_checkpoint_in_s3_alone_is_an_error_and_never_a_fresh_start(tmp_path: Path, watched: str) -> None:
    code, steps, errors = trained(
        tmp_path, REKINDLE_MONITOR=watched, REKINDLE_RESUME_STEP="150", REKINDLE_RESUME_URI="s3://bucket/run/step-150"
    )
    assert (code, steps) == (1, [])
    assert "s3://bucket/run/step-150 is no local path: set REKINDLE_CHECKPOINT_DIR" in errors
