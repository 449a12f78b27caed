"""Scripts that ask Slurm where they lie or how they were submitted: a copy lies elsewhere, so there is none."""

from __future__ import annotations

import pytest

from rekindle.slurm_agent.reading.script import reads_its_place

ASKS = (
    "scontrol show job $SLURM_JOB_ID | awk -F= '/Command=/{print $2}'",
    "HERE=$(dirname $(scontrol show job $SLURM_JOBID | grep -oP '(?<=Command=).*'))",
    "scontrol show jobid -dd $SLURM_JOB_ID | grep Command",
    "scontrol show jobs $SLURM_JOB_ID | sed -n 's/.*Command=//p'",
    "scontrol -d show job $SLURM_JOB_ID |\n  grep Command | cut -d= -f2",
    "scontrol show job \\\n  $SLURM_JOB_ID | grep -i command",
    'INFO=$(scontrol show job $SLURM_JOB_ID)\necho "$INFO" | grep Command=',
    "scontrol show job --json $SLURM_JOB_ID | jq -r '.jobs[0].command'",
    "scontrol show job $SLURM_JOB_ID | grep SubmitLine=",
    "SCRIPT=$(squeue -h -j $SLURM_JOB_ID -o %o)",
    'SCRIPT=$(squeue -h -j $SLURM_JOB_ID --format "%.200o")',
    "squeue -h -j $SLURM_JOB_ID -O Command:300",
    "squeue -h --Format=JobID,Command",
    "sacct -j $SLURM_JOB_ID -o SubmitLine -P",
    "squeue -j $SLURM_JOB_ID --json | jq -r '.jobs[0].command'",
    "sacct -j $SLURM_JOB_ID --json | jq -r '.jobs[0].submit_line'",
    """python3 - <<'END'
import os, re, subprocess
shown = subprocess.check_output(["scontrol", "-o", "show", "job", os.environ["SLURM_JOB_ID"]], text=True)
print(re.search(r"Command=(\\S+)", shown)[1])
END""",
    """python3 -c "import subprocess; subprocess.run(['squeue', '-h', '-O', 'Command:300'])" """,
)
DOES_NOT = (
    "cd $SLURM_SUBMIT_DIR; HERE=$(dirname $0)",
    "scontrol show job $SLURM_JOB_ID\necho 'the next command'",
    "scontrol show hostnames $SLURM_JOB_NODELIST | head -n1",
    "# scontrol show job $SLURM_JOB_ID | grep Command=",
    'COMMAND="python train.py"\nsrun $COMMAND',
    "squeue -h -j $SLURM_JOB_ID -o %T",
    "squeue -o '%i %j' -u $USER",
    "squeue -j $SLURM_JOB_ID --json | jq -r '.jobs[0].job_state'",
    "subprocess.run(['scontrol', 'show', 'hostnames']); print('Command=')",
    "scontrol update job $SLURM_JOB_ID timelimit=+10; Command=x",
)


@pytest.mark.parametrize("script", ASKS)
def test_a_script_that_asks_is_known(script: str) -> None:
    assert reads_its_place(f"#!/bin/bash\n#SBATCH -n1\n{script}\n")


@pytest.mark.parametrize("script", DOES_NOT)
def test_another_is_not(script: str) -> None:
    assert not reads_its_place(f"#!/bin/bash\n#SBATCH -n1\n{script}\n")
