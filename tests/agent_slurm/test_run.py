"""Commands: real processes, one meaning per failure."""

import os
import sys
from pathlib import Path

import pytest

from rekindle.slurm_agent.base.ports import SlurmRefused, SlurmUnavailable, UnknownJob, UnknownNode
from rekindle.slurm_agent.copies.capture import submission_of
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.reading.jobs import LEAN_COLUMNS
from rekindle.slurm_agent.reading.run import CommandResult, Denied, Runner, checked
from tests.agent_slurm.conftest import START
from tests.agent_slurm.fake_slurm import DEFAULTS


def test_what_a_command_says_of_itself_is_told_once() -> None:
    with pytest.raises(SlurmRefused, match=r"^scontrol: error: RebootProgram isn't defined$"):
        checked(["scontrol"], CommandResult(code=1, stdout="", stderr="scontrol: error: RebootProgram isn't defined\n"))


@pytest.mark.parametrize(
    ("stderr", "code", "error"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", 1, SlurmUnavailable),
        ("scancel: error: Kill job error on job id 1: Unable to contact slurm controller", 8, SlurmUnavailable),
        ("Unexpected message received for job 1", 1, SlurmUnavailable),
        ("slurm_load_jobs error: Transport endpoint is not connected", 1, SlurmUnavailable),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", 1, SlurmUnavailable),
        ("scancel: error: Kill job error on job id 999: Invalid job id specified", 0, UnknownJob),
        ("job script retrieval failed: Invalid job id specified", 0, UnknownJob),
        ("slurm_update error: Invalid node name specified", 1, UnknownNode),
        ("Access/permission denied for job 1", 1, Denied),
        ("slurm_update error: Invalid user id", 1, Denied),
        ("Job is no longer pending execution for job 1", 1, SlurmRefused),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", 1, SlurmRefused),
        ("", 3, SlurmRefused),
        ("", -9, SlurmUnavailable),
    ],
)
def test_what_slurm_says_has_one_meaning(stderr: str, code: int, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        checked(["scontrol"], CommandResult(code=code, stdout="", stderr=stderr))
    assert type(caught.value) is error


def test_a_warning_is_no_failure() -> None:
    assert (
        checked(["sbatch"], CommandResult(code=0, stdout="7\n", stderr="sbatch: warning: can't honor --x")).stdout
        == "7\n"
    )


def test_a_node_that_is_not_found_is_said_on_stdout() -> None:
    with pytest.raises(UnknownNode):
        checked(["scontrol"], CommandResult(code=1, stdout="Node nodeX not found\n", stderr=""))


def test_a_command_gets_slurms_surroundings_and_nobody_elses() -> None:
    runner = Runner(environ={"PATH": os.environ["PATH"], "SQUEUE_FORMAT": "%i", "SLURM_CONF": "/etc/s.conf", "X": "1"})
    printed = runner.read(["env"])
    assert "SLURM_TIME_FORMAT=%s" in printed
    assert "LC_ALL=C" in printed
    assert "SLURM_CONF=/etc/s.conf" in printed
    assert "SQUEUE_FORMAT" not in printed
    assert "X=1" not in printed


def test_a_command_that_does_not_end_is_ended() -> None:
    with pytest.raises(SlurmUnavailable, match="did not end"):
        Runner(environ=os.environ, patience_s=0.3).read(["sleep", "600"])


def test_a_command_that_is_missing_is_no_answer() -> None:
    with pytest.raises(SlurmUnavailable, match="cannot be started"):
        Runner(environ=os.environ).read(["no-such-command-of-slurm"])


def test_output_is_bounded() -> None:
    with pytest.raises(SlurmUnavailable, match="more than 1000 bytes"):
        Runner(environ=os.environ).read([sys.executable, "-c", "print('x' * 100000)"], limit=1000)


def test_a_flood_of_complaints_does_not_block_a_command() -> None:
    code = "import sys; sys.stderr.write('warning\\n' * 100000); print('done')"
    assert Runner(environ=os.environ).read([sys.executable, "-c", code]) == "done\n"


def test_a_command_that_changes_something_holds_the_guard(tmp_path: Path) -> None:
    with (tmp_path / "guard").open("w") as guard:
        runner = Runner(environ=os.environ, guard_fd=guard.fileno())
        look = ["sh", "-c", f"test -e /proc/self/fd/{guard.fileno()} && echo held || echo free"]
        assert runner.change(look) == "held\n"
        assert runner.read(look) == "free\n"


def test_arguments_without_end_hide_no_job(tmp_path: Path) -> None:
    """Anybody may submit jobs with as many arguments as he likes; together they are more than the agent reads."""
    squeue = tmp_path / "squeue"
    row = "@".join({**DEFAULTS, "JobID": "7", "ArrayJobID": "7"}[name] for name in LEAN_COLUMNS)
    squeue.write_text(
        "#!/bin/sh\nfor a; do format=$a; done\n"
        'case "$format" in *Command:*) exec head -c 70000000 /dev/zero;; esac\n'
        "mark=${format#*:|}; mark=${mark%%|*}\n"
        f"echo '{row}@' | sed \"s/@$/|$mark#/; s/@/|$mark|/g\"\n"
    )
    squeue.chmod(0o755)
    reads = CopyReads(Runner(environ={"PATH": f"{tmp_path}:/usr/bin:/bin"}), lambda: START)
    (job,) = reads.jobs()
    assert (job.job, job.name) == (7, "train")
    assert submission_of("/nonexistent", job).arguments is None, "nobody takes them for none"
