"""What looks cost is a matter of what has changed, not of how many jobs there are."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import pytest

from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.privileged.helper import Helper
from rekindle.slurm_agent.privileged.remote import Channels
from tests.agent_slurm.conftest import Head, served
from tests.agent_slurm.fake_slurm import node_line

USERS = 40
LOOKS_A_MINUTE = 6
MOST_COMMANDS = 20  # in a minute at rest
SCRIPT = "#!/bin/bash\n#SBATCH --requeue\nsrun python train.py\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """first, rest: commands, of the first look and of a minute at rest, whichever process runs them."""

    first: int
    followed: int
    rest: int


def play(folder: Path, *, nodes: int, jobs: int, protected: int, has_helper: bool) -> Looks:
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
        head.look()
        followed, first = len(head.watch.followed()), head.fake.run()
        for _ in range(LOOKS_A_MINUTE):
            head.look()
        return Looks(first=first, followed=followed, rest=head.fake.run() - first)


@pytest.mark.parametrize("has_helper", [False, True])
def test_a_first_look_asks_of_all_jobs_at_once_and_rest_costs_little(tmp_path: Path, has_helper: bool) -> None:
    few, many = (play(tmp_path / str(n), nodes=8, jobs=2 * n, protected=n, has_helper=has_helper) for n in (10, 40))
    assert (few.followed, many.followed) == (10, 40)
    assert few.first == many.first <= 10
    assert few.rest == many.rest <= MOST_COMMANDS
