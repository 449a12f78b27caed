"""torchrun's own SIGTERM: a restart must not wait for its SIGKILL, and a stop must still save.

Source of the messages: torch.distributed.elastic.multiprocessing.api.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rekindle.protocol.keys import manifest_prefix
from rekindle.protocol.manifests import Manifest

pytestmark = [pytest.mark.process, pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc here")]
ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0


def torchrun(here: Path, what: str, *options: str) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "REKINDLE"))}
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", *options),
            *(str(Path(__file__).with_name("torchrun_train.py")), str(here), what),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


def test_ranks_that_a_dead_peer_leaves_in_a_collective_end_of_torchruns_first_signal(tmp_path: Path) -> None:
    run = torchrun(tmp_path, "stuck", "--max-restarts=1")
    told, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, told
    assert told.count("closing signal SIGTERM") == 2, told
    # The first rank that ends may end the other one's collective, and with it that rank, before its own signal does.
    assert told.count("another worker of this machine has ended") in (1, 2), told
    assert "forcefully exiting" not in told, "torchrun would have waited for 30 s, and killed"
    assert sorted(line for line in told.splitlines() if line.startswith("restarted")) == [
        f"restarted {rank}" for rank in range(3)
    ]


def test_a_stop_of_torchrun_is_saved_although_the_other_ranks_end_before_the_first_one(tmp_path: Path) -> None:
    run = torchrun(tmp_path, "stop")
    assert run.stdout is not None
    before = []
    for line in run.stdout:
        before.append(line)
        if line.startswith("ready"):
            break
    run.send_signal(signal.SIGTERM)
    told, _ = run.communicate(timeout=PATIENCE_S)
    assert sorted(line for line in told.splitlines() if line.startswith("done")) == ["done 0", "done 1", "done 2"], (
        "".join(before) + told
    )
    assert "forcefully exiting" not in told
    [path] = (tmp_path / "box" / manifest_prefix()).iterdir()
    manifest = Manifest.from_json(path.read_bytes())
    assert (tmp_path / f"step-{manifest.step}.bin").exists()
