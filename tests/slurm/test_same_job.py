"""What the agent captures of a job on a real Slurm is what was submitted, or is not known."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from localcloud.slurm_lab import SlurmLab
from rekindle.agent.slurm.capture import arguments_of
from rekindle.agent.slurm.reads import Reads
from rekindle.agent.slurm.run import Runner

SCRIPT = "#!/bin/sh\nsleep 600\n"


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(nodes=("n1",)) as raised:
        yield raised


def captured(lab: SlurmLab, number: int) -> tuple[str, ...] | None:
    """The job's arguments as the agent reads them, once slurmctld has written the job down."""
    reads = Reads(Runner(environ=lab.environ()), lambda: datetime.now(UTC))
    settings = reads.settings()
    state = lab.folder / "state" / "job_state"
    workdir = str(lab.folder / "work" / str(number)).encode()

    def is_written() -> bool:
        return state.exists() and workdir in state.read_bytes()

    lab.wait(is_written, "slurmctld to write the job down")
    job = reads.job(number)
    assert job is not None
    return arguments_of(settings.state_location, job, reads.detail(job), version=settings.version)


def submit(lab: SlurmLab, number: int, *words: str, script: str = "job.sh") -> None:
    """Under a work folder that is named after the job's number, by which it is found in slurmctld's state."""
    path = lab.folder / "work" / script
    path.write_text(SCRIPT)
    folder = lab.folder / "work" / str(number)
    folder.mkdir()
    lab.run("sbatch", "--hold", "--parsable", f"--chdir={folder}", str(path), *words)


def test_arguments_are_known_word_by_word_or_not_at_all(lab: SlurmLab) -> None:
    wanted = {
        1: ("one.sh", ("--config", "a b.yaml", "lr=3", "Comment=x")),
        2: ("two.sh", ()),
        3: ("three.sh", ("LR=3", "WorkDir=/x", "é")),
        4: ("same.sh", ("a", "b")),
        5: ("same.sh", ("a b",)),
        6: ("empty.sh", ("a", "")),
    }
    for number, (script, words) in wanted.items():
        submit(lab, number, *words, script=script)
    done = subprocess.run(
        ["sbatch", "--hold", "--parsable", f"--chdir={lab.folder}/work"],
        input=SCRIPT,
        env=lab.environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    found = {number: captured(lab, number) for number in wanted}
    assert {number: found[number] for number in (1, 2, 3)} == {number: wanted[number][1] for number in (1, 2, 3)}
    # Two jobs of the same script whose lines read the same: either it is known whose words are whose, or it is said.
    assert found[4] in (None, ("a", "b"))
    assert found[5] in (None, ("a b",))
    assert found[6] in (None, ("a", ""))  # 22.05 shows a line whose end is lost
    reads = Reads(Runner(environ=lab.environ()), lambda: datetime.now(UTC))
    job = reads.job(int(done.stdout))
    assert job is not None
    settings = reads.settings()
    assert arguments_of(settings.state_location, job, reads.detail(job), version=settings.version) == ()
