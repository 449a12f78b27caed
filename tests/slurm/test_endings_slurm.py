"""Endings on a real Slurm: a crashed step whose script ends with 0 is kept as what it is, and what finished is not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from rekindle.protocol.cluster.documents import SlurmState
from tests.slurm.head import Head, bucket, until
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab

pytestmark = pytest.mark.versions

CRASH = "srun bash -c 'exit 7'"
# The script, the job's state, and the code of its steps: 0 for one that has finished.
ENDINGS: Mapping[str, tuple[str, SlurmState, int]] = {
    "last": (CRASH, SlurmState.FAILED, 7),
    "bare wait": (f"{CRASH} & wait", SlurmState.COMPLETED, 7),
    "waited for": (f"{CRASH} & wait $!", SlurmState.FAILED, 7),
    "a command after it": (f"{CRASH}\necho done", SlurmState.COMPLETED, 7),
    "tee": (f"{CRASH} 2>&1 | tee log", SlurmState.COMPLETED, 7),
    "or true": (f"{CRASH} || true", SlurmState.COMPLETED, 7),
    "if not": (f"if ! {CRASH}; then echo failed; fi", SlurmState.COMPLETED, 7),
    "another step after it": (f"{CRASH}\nsrun true", SlurmState.COMPLETED, 7),
    "exit 0 in a trap": (f"trap 'exit 0' EXIT\n{CRASH}", SlurmState.COMPLETED, 7),
    "its output in a variable": (f"FOUND=$({CRASH})\necho $FOUND", SlurmState.COMPLETED, 7),
    "killed": ("srun bash -c 'kill -9 $$'\ntrue", SlurmState.COMPLETED, 9),
    "finished": ("srun true", SlurmState.COMPLETED, 0),
    "finished, without a step": ("true", SlurmState.COMPLETED, 0),
}


def test_a_crashed_step_is_kept_whatever_its_script_made_of_it(tmp_path: Path) -> None:
    with SlurmLab(nodes=("n1",), cpus=64, timers=Timers(kill_wait_s=1)) as lab, bucket() as s3:
        head, jobs = Head(lab, s3, tmp_path / "state"), dict[str, int]()
        for n, (name, (body, _, _)) in enumerate(ENDINGS.items()):
            path = lab.folder / "work" / f"e{n}.sh"
            path.write_text(f"#!/bin/bash\n{body}\n")
            jobs[name] = lab.submit(path, "-n1", "--comment=rekindle")

        def ended(job: int) -> bool:
            doc = head.doc(f"slurm.lab.{job}")
            return doc is not None and doc.ended_at is not None

        for job in jobs.values():
            until(partial(ended, job), "their ends", head.look)
        head.look()
        found = {}
        for name, job in jobs.items():
            doc = head.doc(f"slurm.lab.{job}")
            assert doc is not None
            code = doc.step_exit_code or doc.step_exit_signal or 0
            found[name] = (doc.state, doc.exit_code if doc.state is SlurmState.FAILED else code)
    assert found == {name: (state, code) for name, (_, state, code) in ENDINGS.items()}
