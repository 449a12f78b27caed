"""The agent's state directory full or read-only, and /tmp full, on a real Slurm: an order is carried out once, or waits
with the reason, and the heartbeat says so.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rekindle.protocol.cluster.orders import Outcome, Verb
from tests.slurm.head import Head, bucket, script, until
from tests.slurm.lab.lab import SlurmLab

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a file system of a test's own needs root")


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with SlurmLab(nodes=("n1", "n2")) as raised:
        yield raised


@pytest.fixture
def s3() -> Iterator[Any]:
    with bucket() as made:
        yield made


@contextmanager
def small(path: Path, options: str) -> Iterator[Path]:
    """A file system of its own."""
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(path)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> Path:
    """Until not one byte more can be written."""
    filler = path / "filler"
    with filler.open("wb", buffering=0) as out:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    out.write(b"x" * size)
            except OSError:
                continue
    return filler


def ended(head: Head) -> tuple[int, str, Path]:
    """A protected job that has ended, its spec, and where it writes down its starts."""
    lab = head.lab
    runs = lab.folder / "work" / f"runs-{len(list((lab.folder / 'work').iterdir()))}"
    path = script(lab, f"{runs.name}.sh", f'echo "$SLURM_JOB_ID" >>{runs}; [ -s {runs}.go ] || exit 3; exec sleep 600')
    job = lab.submit(path, "-N1", "--comment=rekindle")
    lab.wait(lambda: lab.job_state(job) == "FAILED", "it to fail")
    until(lambda: (doc := head.doc(f"slurm.lab.{job}")) is not None and doc.spec is not None, "its spec", head.look)
    Path(f"{runs}.go").write_text("go")
    doc = head.doc(f"slurm.lab.{job}")
    assert doc is not None
    assert doc.spec is not None
    return job, doc.spec, runs


def starts(runs: Path) -> list[str]:
    """The numbers of the jobs that have started."""
    return runs.read_text().split() if runs.exists() else []


def again(head: Head, job: int, spec: str) -> dict[str, Any]:
    name = f"slurm.lab.{job}"
    return {"attempt": name, "slurm_job": job, "new_attempt": f"{name}-a2", "spec": spec}


def test_the_state_directory_is_full(lab: SlurmLab, s3: Any, tmp_path: Path) -> None:
    with small(tmp_path / "state", "size=2m") as state:
        head = Head(lab, s3, state)
        job, spec, runs = ended(head)
        filler = fill(state)
        order = head.order(Verb.SUBMIT, **again(head, job, spec))
        answer = head.answered(order)
        assert answer.outcome is Outcome.DONE, answer
        assert answer.slurm_job is not None
        until(lambda: len(starts(runs)) == 2, "the copy to run")
        assert "cannot be kept on disk" in head.problems()

        head.start()  # killed: what was only in memory is gone
        filler.unlink()
        filler = fill(state)
        second = head.delivered_again(order)
        assert second.slurm_job == answer.slurm_job, second
        assert second.outcome in (Outcome.DONE, Outcome.ALREADY)
        assert starts(runs) == [str(job), str(answer.slurm_job)]
        assert "cannot be kept on disk" in head.problems()

        filler.unlink()
        head.agent.store.settle()
        assert "disk" not in head.problems()
        head.start()
        assert head.delivered_again(order).slurm_job == answer.slurm_job
        assert len(starts(runs)) == 2
        lab.run("scancel", str(answer.slurm_job))


def test_the_state_directory_is_read_only(lab: SlurmLab, s3: Any, tmp_path: Path) -> None:
    """As a file system becomes one by an error of its disk: what the agent has done before is still read."""
    with small(tmp_path / "state", "size=2m") as state:
        head = Head(lab, s3, state)
        job, spec, runs = ended(head)
        running = lab.submit(script(lab, "sleeps.sh", "exec sleep 600"), "-N1", "--comment=rekindle")
        lab.wait(lambda: lab.job_state(running) == "RUNNING", "it to run")
        head.look()
        assert head.carry_out(Verb.CANCEL, attempt=f"slurm.lab.{running}", slurm_job=running).outcome is Outcome.DONE
        head.agent.store.close()
        subprocess.run(["mount", "-o", "remount,ro", str(state)], check=True)
        head.start()
        assert "cannot be kept on disk" in head.problems()
        assert head.agent.journal.has_ended(f"slurm.lab.{running}")
        order = head.order(Verb.SUBMIT, **again(head, job, spec))
        answer = head.answered(order)
        assert answer.outcome is Outcome.DONE, answer
        until(lambda: len(starts(runs)) == 2, "the copy to run")

        head.start()
        assert head.delivered_again(order).slurm_job == answer.slurm_job
        subprocess.run(["mount", "-o", "remount,rw", str(state)], check=True)
        head.agent.store.settle()
        assert "disk" not in head.problems()
        head.start()
        assert head.delivered_again(order).slurm_job == answer.slurm_job
        assert starts(runs) == [str(job), str(answer.slurm_job)]
        lab.run("scancel", str(answer.slurm_job))


@pytest.mark.parametrize(
    "options", ["size=64k", "nr_inodes=2", "size=64k,ro"], ids=["full", "no inode left", "read-only"]
)
def test_the_place_of_temporary_files(
    lab: SlurmLab, s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    head = Head(lab, s3, tmp_path / "state")
    job, spec, runs = ended(head)
    order = head.order(Verb.SUBMIT, **again(head, job, spec))
    with small(tmp_path / "tmp", options) as folder:
        if options == "size=64k":
            fill(folder)
        elif "nr_inodes" in options:
            (folder / "last").touch()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        head.agent.executor.work()
        head.agent.executor.work()
        assert head.answer(order) is None, "it waits"
        assert head.agent.journal.open(), "nothing is lost"
        assert len(starts(runs)) == 1
    monkeypatch.undo()
    answer = head.answered(order)
    assert answer.outcome is Outcome.DONE, answer
    until(lambda: len(starts(runs)) == 2, "the copy to run")
    lab.run("scancel", str(answer.slurm_job))
