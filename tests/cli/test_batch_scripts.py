"""The examples' batch scripts, as far as they can be judged without a Slurm: tests/slurm runs them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from rekindle.cli.main import main as rekindle
from rekindle.cli.tools.sbatch import read_command
from rekindle.slurm_agent.reading import comment

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("slurm_*/job.sbatch"))


def test_all_of_them_are_looked_at() -> None:
    assert [script.parent.name for script in SCRIPTS] == ["slurm_accelerate", "slurm_deepspeed", "slurm_torchrun"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_a_batch_script_is_protected_and_survives_a_requeue(script: Path) -> None:
    job = read_command(["sbatch", str(script)], {})
    said = comment.parse(job.value("comment") or "")
    assert said is not None
    assert said.problems == ()
    assert said.mailbox
    assert said.signal == "USR1"
    text = script.read_text()
    assert f"export REKINDLE_MAILBOX=${{REKINDLE_MAILBOX:-{said.mailbox}}}" in text, "agent and monitor must meet"
    assert job.value("open-mode") == "append"
    assert job.says("requeue")
    assert job.says("exclusive")
    assert (
        job.value(
            "signal",
        )
        is not None
    )
    assert "/opt/sagemaker_cluster" in text
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_the_doctor_finds_nothing_to_say(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rekindle(["doctor", "cluster", "--script", str(script), "--json"]) == 0
    assert capsys.readouterr().out == ""


FAKES = {
    # The step is run as srun would, by the shell, in the background; it saves on USR1 and then ends.
    "srun": '#!/bin/bash\necho "srun $*" >> "$LOG"; exec "${@: -3}"\n',
    "scontrol": """#!/bin/bash
case "$1 $2" in
"show job") printf 'JobId=17\\n   ReqNodeList=(null) ExcNodeList=(null)\\n   NodeList=ip-10-1-0-[7-8]\\n';;
"show hostnames") echo "asked $3" >> "$LOG"; printf 'ip-10-1-0-7\\nip-10-1-0-8\\n';;
esac
""",
    "scancel": '#!/bin/bash\necho "scancel $*" >> "$LOG"; kill -TERM "$(cat "$LOG.rank")"\n',
    "rank": """#!/bin/bash
trap 'exit 7' TERM
echo "$$" > "$LOG.rank"
ignored=0x$(awk '/^SigIgn/ {print $2}' /proc/$$/status)
echo "$MASTER_ADDR $MASTER_PORT usr1-ignored=$((ignored >> 9 & 1))"
while :; do sleep 0.05; done
""",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name)
def test_a_signal_to_the_batch_shell_goes_on_to_the_step_and_the_steps_end_is_the_jobs(
    script: Path, tmp_path: Path
) -> None:
    for name, text in FAKES.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MASTER", "REKINDLE"))}
    env |= {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "LOG": str(tmp_path / "log"),
        "PYTHON": str(tmp_path / "rank"),
        "SLURM_JOB_ID": "17",
        "SLURM_STEP_ID": "0",
        "SLURM_RESTART_COUNT": "2",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "2",
    }
    with subprocess.Popen(["bash", str(script)], env=env, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as shell:
        assert shell.stdout is not None
        port = 20000 + (17 * 31 + 2 * 7) % 10000
        assert shell.stdout.readline() == f"ip-10-1-0-7 {port} usr1-ignored=1\n"
        shell.send_signal(signal.SIGUSR1)
        assert shell.wait(120) == 7, "the step's own exit code, not the signal's"
    log = (tmp_path / "log").read_text().splitlines()
    assert log[0].startswith("srun --kill-on-bad-exit=1 bash -c launch")
    assert log[1:] == ["asked ip-10-1-0-[7-8]", "scancel --signal=USR1 17"]
