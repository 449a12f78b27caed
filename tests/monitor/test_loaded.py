"""A process loads the parts of the monitor that it needs: not what serves several ranks, or rank 0, in others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, sys
import rekindle.monitor as rekindle
monitor = rekindle.start(lambda step, kind: None)
assert not monitor.is_silent
monitor.step(1, loss=1.0)
print(json.dumps([name.removeprefix("rekindle.monitor.") for name in sys.modules if name.startswith("rekindle.mon")]))
"""
OF_SEVERAL = {"saving.negotiation", "saving.joint_save", "liveness.run_phases", "liveness.ras"}
OF_RANK_0 = {"link", "mail.mailbox_thread", "saving.seal", "saving.measure", "saving.hasher"}
RARE = {"liveness.host_summaries", "sharing"}  # more than 1,024 ranks; torch's ranks


def loaded_by(given: dict[str, str]) -> set[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "REKINDLE"))}
    env |= {"REKINDLE_JOB_ID": "job", "PYTHONPATH": str(ROOT)} | given
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("rank", "world_size", "needed"),
    [(0, 1, OF_RANK_0), (0, 2, OF_RANK_0 | OF_SEVERAL | {"saving.leading"}), (1, 2, OF_SEVERAL)],
)
def test_a_process_loads_what_it_needs(rank: int, world_size: int, needed: set[str], tmp_path: Path) -> None:
    loaded = loaded_by({"REKINDLE_MAILBOX": str(tmp_path), "RANK": str(rank), "WORLD_SIZE": str(world_size)})
    assert loaded & (OF_SEVERAL | OF_RANK_0 | RARE | {"saving.leading"}) == needed


def test_a_package_whose_metadata_cannot_be_read_is_no_error_of_the_start(tmp_path: Path) -> None:
    package = tmp_path / "torch-2.8.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_bytes(b"Metadata-Version: 2.1\nName: torch\nVersion: 2.8.0\nAuthor: \xff\xfe\n")
    assert loaded_by({"REKINDLE_MAILBOX": str(tmp_path / "box"), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
