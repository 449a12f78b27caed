"""What an agent asks of Slurm: at its first look, and at rest. Commands, and seconds of this machine and its CPUs.

Of an agent that has all rights, and of one beside root's helper, as it is installed.
"""

from __future__ import annotations

import contextlib
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.privileged.helper import Helper
from rekindle.slurm_agent.privileged.remote import Channels
from tests.agent_slurm.conftest import Head, served
from tests.agent_slurm.fake_slurm import node_line

NODES, JOBS, PROTECTED, USERS = 512, 2000, 400, 40
LOOKS_A_MINUTE = 6
MOST_S, MOST_COMMANDS = 5.0, 20  # the goals: of the first look, and in a minute at rest
SCRIPT = "#!/bin/bash\n#SBATCH --requeue\nsrun python train.py\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """first, rest: commands, of the first look and of a minute at rest, whichever process runs them."""

    took_s: float
    cpu_s: float  # of the first look, of all processes
    first: int
    followed: int
    rest: int


def play(
    folder: Path, *, nodes: int = NODES, jobs: int = JOBS, protected: int = PROTECTED, has_helper: bool = False
) -> Looks:
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
    with contextlib.ExitStack() as stack:
        if has_helper:
            own = folder / "root"
            own.mkdir(mode=0o700)
            settings = Settings.read({"PATH": head.fake.path, "REKINDLE_BUCKET": "b-1"}, {"cluster": "ml"})
            head.start(Channels(stack.enter_context(served(Helper(settings, own), 3))))
        cpu_s, began = _cpu_s(), time.perf_counter()
        head.look()
        took_s, cpu_s = time.perf_counter() - began, _cpu_s() - cpu_s
        followed, first = len(head.watch.followed()), head.fake.run()
        for _ in range(LOOKS_A_MINUTE):
            head.look()
        return Looks(took_s=took_s, cpu_s=cpu_s, first=first, followed=followed, rest=head.fake.run() - first)


def _cpu_s() -> float:
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def main() -> None:
    print(f"{NODES} nodes, {JOBS} jobs, {PROTECTED} of them protected")
    for name, has_helper in (("one process", False), ("beside root's helper", True)):
        with tempfile.TemporaryDirectory() as folder:
            looks = play(Path(folder), has_helper=has_helper)
        first = f"{looks.took_s:.1f} s, of {MOST_S:.0f}; {looks.cpu_s:.1f} s of CPU; {looks.first} commands"
        print(f"{name:<24}first look {first}, {looks.followed} jobs followed")
        print(f"{'':<24}a minute at rest {looks.rest} commands, of {MOST_COMMANDS}")
