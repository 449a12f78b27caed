"""What would be refused of a copy is told when a job is first seen, and nothing is submitted for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rekindle.slurm_agent.copies import rehearsal
from tests.slurm.head import Head, bucket, until
from tests.slurm.lab.lab import SlurmLab


def test_what_would_be_refused_of_a_copy_is_told_on_its_first_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "EVERY_S", 0.0)
    partitions = ["PartitionName=closed Nodes=n1,n2 MaxTime=INFINITE State=UP"]
    with SlurmLab(nodes=("n1", "n2"), cpus=8, extra_conf=partitions) as lab, bucket() as s3:
        head = Head(lab, s3, tmp_path / "state")
        script = lab.folder / "work" / "train.sh"
        script.write_text("#!/bin/bash\nsleep 600\n")
        named = ("--comment=rekindle", "--job-name=train")
        well, closed, renamed = (lab.submit(script, *named, *more) for more in ((), ("--partition=closed",), ()))
        lab.run("scontrol", "update", f"jobid={renamed}", "name=team-train")
        lab.wait(lambda: lab.job_state(closed) == "RUNNING", "it to run")
        lab.run("scontrol", "update", "partitionname=closed", "state=INACTIVE")

        def told() -> list[str]:
            head.run_once()
            return [line for line in head.problems().split("\n") if "copy" in line]

        until(lambda: len(told()) == 2, "both to be told")
        for _ in range(3):
            told()
        first, second = sorted(told())
        assert first.startswith(f"copies: job {closed}: sbatch --test-only refuses a copy of it at present: ")
        assert second == (
            f"copies: job {renamed}: it was submitted as 'train' and is 'team-train': "
            "if by a plug-in, a copy will be refused"
        )
        there = lab.run("squeue", "-h", "-t", "all", "-o", "%A").stdout.split()
        assert sorted(map(int, there)) == sorted((well, closed, renamed))
        lab.run("scancel", str(closed), str(renamed))
        until(lambda: told() == [], "what is over to be told no more")
