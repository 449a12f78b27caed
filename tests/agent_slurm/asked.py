"""Ways to ask Slurm for a job, and how their records were made.

`SLURM_ROOT=.venv/slurm-26.05 python -m tests.agent_slurm.asked` submits one job of each on a real Slurm of that version
and writes what it shows of them to `recorded/26.05-asked.json`.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rekindle.slurm_agent.copies.capture import environment_of, submission_of
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.reading.jobs import COLUMNS, Job, format_of, parse_detail, parse_jobs
from rekindle.slurm_agent.reading.run import Runner
from tests.slurm.lab.lab import SlurmLab

RECORDED = Path(__file__).with_name("recorded")
MARK = "0123456789ab"
LAB: Mapping[str, Any] = {
    "nodes": ("n1", "n2"),
    "spares": ("n3",),
    "cpus": 4,
    "gpus": 2,
    "extra_conf": ["Licenses=foo:4"],
}

# How jobs are asked for: options on the command line, and lines of the script. A job of each is captured, submitted
# again as the agent does it, and compared; what a version of Slurm does not know is passed over.
ASKED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "nothing": ((), ""),
    "two nodes": (("-N2", "--ntasks-per-node=2"), ""),
    "one or two nodes": (("-N1-2",), ""),
    "tasks alone": (("-n4",), ""),
    "tasks in the script": ((), "#SBATCH -n3 -c1 --job-name=own"),
    "GPUs per task": (("-n2", "--gpus-per-task=2"), ""),
    "GPUs per task in the script": ((), "#SBATCH -n2\n#SBATCH --gpus-per-task=1\n#SBATCH --cpus-per-task=2"),
    "TRES per task": (("-n2", "--tres-per-task=cpu=1,gres/gpu=2"), ""),
    "TRES per task in the script": ((), "#SBATCH -n2 --tres-per-task=cpu=2,gres/gpu=1"),
    "GPUs": (("--gpus=2", "--cpus-per-gpu=1", "--gpu-bind=closest"), ""),
    "GPUs per node": (("-N2", "--gpus-per-node=2"), ""),
    "GPUs as gres": (("--gres=gpu:1", "--gres-flags=enforce-binding"), ""),
    "tasks per GPU": (("--gpus=2", "--ntasks-per-gpu=1"), ""),
    "alone": (("--exclusive",), ""),
    "alone with its user": (("--exclusive=user",), ""),
    "beside others": (("--oversubscribe",), ""),
    "CPUs": (("--mincpus=3", "-n1"), ""),
    "sockets": (("-n2", "-B", "1:1:1"), ""),
    "memory": (("--mem=100", "--tmp=1"), ""),
    "memory per CPU": (("--mem-per-cpu=10", "-n2", "-c2"), ""),
    "nodes by name": (("--nodelist=n1,n2", "-N2", "--exclude=n3"), ""),
    "features": (("--constraint=spare", "--prefer=spare", "--nice=5", "--licenses=foo:1"), ""),
    "time": (("--time=10:00", "--time-min=5:00", "--signal=B:USR1@60", "--no-requeue"), ""),
    "placement": (("--spread-job", "--kill-on-invalid-dep=yes", "--delay-boot=5", "--contiguous", "-N2"), ""),
    "newer": (("--oom-kill-step=1", "--extra=abc", "--segment=1"), ""),
    "paths": (("--output=o-%x-%j.txt", "--error=e-%j.txt", "--input=/dev/zero"), ""),
    "a plug-in's": (("--auto-resume=1",), ""),
    "a plug-in's in the script": ((), "#SBATCH --auto-resume=0"),
    "mail": (("--mail-type=END", "--mail-user=a@b", "--comment=rekindle:default,mailbox=/m"), ""),
}


def recorded(version: str) -> list[dict[str, Any]]:
    """What that version of Slurm shows of each."""
    found: list[dict[str, Any]] = json.loads((RECORDED / f"{version}-asked.json").read_text())
    return found


def job_in(record: Mapping[str, Any], now: datetime) -> tuple[Job, dict[str, str]]:
    between, end = format_of(COLUMNS, MARK)[1:]
    (job,) = parse_jobs(record["squeue"], between, end, now)
    return job, parse_detail(record["scontrol"], job)


def main() -> None:
    with SlurmLab(**LAB, with_auto_resume=True) as lab:
        reads = CopyReads(Runner(environ=lab.environ()), lambda: datetime.now(UTC))
        numbers = {}
        for name, (options, lines) in ASKED.items():
            script = lab.folder / "work" / f"{name.replace(' ', '-')}.sh"
            script.write_text(f"#!/bin/sh\n{lines}\nsleep 600\n")
            done = lab.run("sbatch", "--hold", "--parsable", *options, str(script), "a", "b", fails=True)
            if done.returncode == 0:
                numbers[name] = int(done.stdout)
        lab.wait(lambda: b"mail.sh" in lab.saved_jobs(), "slurmctld to write the jobs down")
        wanted, _, _ = format_of(COLUMNS, MARK)
        found = []
        for name, number in numbers.items():
            job, settings = reads.job(number), reads.settings()
            assert job is not None
            detail = reads.detail(job)
            environment = environment_of(settings.state_location, number).all or {}
            squeue = subprocess.run(
                ["squeue", "-h", "-j", str(number), "-O", wanted],
                env=lab.environ() | {"SLURM_TIME_FORMAT": "%s"},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            found.append(
                {
                    "name": name,
                    "squeue": squeue,
                    "scontrol": lab.run(
                        "scontrol", "-o", "show", "job", str(number), environ={"SLURM_TIME_FORMAT": "%s"}
                    ).stdout,
                    "line": submission_of(settings.state_location, job, detail, version=settings.version).line,
                    "environment": {key: given for key, given in environment.items() if "SLURM" in key},
                }
            )
        version = ".".join(settings.version.split(".")[:2])
        written = json.dumps(found, indent=1).replace(str(lab.folder), "/fsx/lab")
        host = re.escape(subprocess.run(["hostname", "-s"], capture_output=True, text=True, check=True).stdout.strip())
        written = re.sub(rf"(SUBMIT_HOST\": \")({host})\"", r'\1login1"', written)
        (RECORDED / f"{version}-asked.json").write_text(written + "\n")


if __name__ == "__main__":
    main()
