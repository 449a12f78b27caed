"""What an agent asks of Slurm: at its first look, and at rest. Commands, and seconds of this machine."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.agent_slurm.conftest import Head
from tests.agent_slurm.fake_slurm import node_line

NODES, JOBS, PROTECTED, USERS = 512, 2000, 400, 40
LOOKS_A_MINUTE = 6
MOST_S, MOST_COMMANDS = 5.0, 20  # the goals: of the first look, and in a minute at rest
SCRIPT = "#!/bin/bash\n#SBATCH --requeue\nsrun python train.py\n"


def play(
    folder: Path, *, nodes: int = NODES, jobs: int = JOBS, protected: int = PROTECTED
) -> tuple[float, int, int, int]:
    """Seconds, commands and followed jobs of the first look, and commands of a minute at rest."""
    head = Head(folder)
    head.fake.nodes([node_line(f"node{n}", "MIXED") for n in range(1, nodes + 1)])
    head.fake.jobs(
        [
            {
                "JobID": str(number),
                "State": "RUNNING" if number % 2 else "PENDING",
                "NodeList": f"node{1 + number % nodes}" if number % 2 else "",
                "Comment": f"rekindle,mailbox={folder}/box{number}" if number <= protected else "grant=7",
                "UserName": f"user{number % USERS}",
            }
            for number in range(1, jobs + 1)
        ]
    )
    for number in range(1, jobs + 1):  # as slurmctld keeps them
        kept = head.fake.folder / "state" / f"hash.{number % 10}" / f"job.{number}"
        kept.mkdir(parents=True)
        (kept / "script").write_text(SCRIPT)
        (kept / "environment").write_bytes(b"\2\0\0\0A=b\0HOME=/home/user\0")
    began = time.perf_counter()
    head.look()
    took, first = time.perf_counter() - began, head.watch.commands
    followed = len(head.watch.followed())
    for _ in range(LOOKS_A_MINUTE):
        head.look()
    return took, first, followed, head.watch.commands - first


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        took, first, followed, rest = play(Path(folder))
    print(f"{NODES} nodes, {JOBS} jobs, {PROTECTED} of them protected")
    print(f"{'first look':<24}{took:>8.1f} s, of {MOST_S:.0f}; {first} commands, {followed} jobs followed")
    print(f"{'a minute at rest':<24}{rest:>8} commands, of {MOST_COMMANDS}")
