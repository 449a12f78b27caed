"""What the doctor says of a batch script is what Slurm makes of it: COMPLETED after a failure, or ended by a signal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from rekindle.doctor.batch.exit_code import exit_code
from rekindle.doctor.batch.run import signal_handled, trap_runs
from rekindle.doctor.batch.script import read_batch
from tests.doctor.test_exit_codes import SCRIPTS
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab

pytestmark = pytest.mark.versions

ENDED: Final = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"})
FAILS: Final = "exit 3"
WAITS: Final = "touch started\nuntil [ -e go ]; do sleep 0.2; done\ntouch finished"
BACKGROUND: Final = "srun train &\nPID=$!\n"
HEARD: Final = "trap 'touch heard' USR1\n"
LOOP: Final = "while kill -0 $PID 2>/dev/null; do wait $PID || true; done\nwait $PID"
SIGNALLED: Final[tuple[str, ...]] = (
    f"{HEARD}{BACKGROUND}{LOOP}",
    f"{HEARD}{BACKGROUND}wait $PID",
    f"{HEARD}{BACKGROUND}wait",
    f"{HEARD}srun train",
    f"trap '' USR1\n{BACKGROUND}wait $PID",
    f"trap - USR1\n{BACKGROUND}wait $PID",
    f"trap 'touch heard' TERM\n{BACKGROUND}{LOOP}",
    f"trap 'touch heard' EXIT\n{BACKGROUND}{LOOP}",
    f"trap 'touch heard' SIGUSR1\n{BACKGROUND}{LOOP}",
    f"heard() {{ touch heard; }}\nfor s in TERM USR1; do trap heard $s; done\n{BACKGROUND}{LOOP}",
    f"{BACKGROUND}wait $PID",
)


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(nodes=("n1",), cpus=256, timers=Timers(kill_wait_s=1)) as raised:
        yield raised


def submitted(lab: SlurmLab, folder: Path, body: str, train: str, *options: str) -> tuple[int, str]:
    """The job, which runs in a folder of its own, and its script."""
    text = "\n".join(("#!/bin/bash", *(f"#SBATCH {option}" for option in ("--comment=rekindle", *options)), body, ""))
    folder.mkdir()
    script, program = folder / "job.sh", folder / "train"
    script.write_text(text)
    program.write_text(f"#!/bin/bash\n{train}\n")
    program.chmod(0o755)
    path = f"{folder}:{lab.environ()['PATH']}"
    return lab.submit(script, "-n2", f"--chdir={folder}", environ={"PATH": path}), text


def test_a_failure_is_lost_where_the_doctor_says_so_and_nowhere_else(lab: SlurmLab, tmp_path: Path) -> None:
    others = ("torchrun", "mpirun", "<<")  # not here; and a step that is not `train`
    bodies = [body for body in SCRIPTS if not any(word in body for word in others)]
    jobs = [submitted(lab, tmp_path / str(n), body, FAILS) for n, body in enumerate(bodies)]
    wrong = []
    for body, (job, text) in zip(bodies, jobs, strict=True):
        lab.wait(lambda job=job: lab.job_state(job) in ENDED, f"the end of:\n{body}")
        is_told = any("looks complete" in finding.message for finding in exit_code(read_batch(text.encode(), "job.sh")))
        if (lab.job_state(job) == "COMPLETED") is not is_told:
            wrong.append((body, lab.job_state(job), is_told))
    assert len(jobs) > 20
    assert wrong == []


@pytest.mark.parametrize("body", SIGNALLED)
def test_the_signal_ends_the_job_where_the_doctor_says_so_and_nowhere_else(
    body: str, lab: SlurmLab, tmp_path: Path
) -> None:
    """`--signal` sends it to the batch shell alone, as `scancel --batch` does here."""
    folder = tmp_path / "job"
    job, text = submitted(lab, folder, body, WAITS, "--signal=B:USR1@60")
    batch = read_batch(text.encode(), "job.sh")
    said = " ".join(finding.message for check in (signal_handled, trap_runs) for finding in check(batch))
    lab.wait((folder / "started").exists, "the step's start")
    lab.run("scancel", "--batch", "--signal=USR1", str(job))
    if "the job ends" in said or "with the script the step" in said:
        lab.wait(lambda: lab.job_state(job) in ENDED, f"the end, of which the doctor says: {said}")
        assert not (folder / "finished").exists()
        return
    if not said:
        lab.wait((folder / "heard").exists, "the handler, of which the doctor says nothing bad")
    assert (folder / "heard").exists() is not bool(said), said
    (folder / "go").touch()
    lab.wait(lambda: lab.job_state(job) in ENDED, "the end")
    assert lab.job_state(job) == "COMPLETED"
    assert (folder / "finished").exists()
