"""The lab itself: a real Slurm whose nodes die as nodes do, and of which nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.lab.commands import LabError
from tests.slurm.lab.conf import Timers
from tests.slurm.lab.lab import SlurmLab
from tests.slurm.lab.processes import is_alive, is_stopped, leftovers, send

PROJECT = Path(__file__).resolve().parents[2]
SLEEPS = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --open-mode=append
srun bash -c 'exec sleep 1000'
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    # A slow machine is no dead node.
    patient = Timers(slurmd_timeout_s=10, message_timeout_s=5)
    with SlurmLab(nodes=("n1", "n2"), spares=("n3",), timers=patient) as raised:
        yield raised


@pytest.fixture
def job(lab: SlurmLab) -> Iterator[int]:
    """A job of two ranks that only sleep, on two nodes of a lab that is whole again."""
    for node in lab.nodes:
        lab.start_node(node)
        lab.run("scontrol", "update", f"nodename={node}", "state=resume", fails=True)
    lab.wait(lambda: set(lab.node_states().values()) == {"idle"}, "all nodes to be idle")
    script = lab.folder / "work/sleeps.sh"
    script.write_text(SLEEPS)
    number = lab.submit(script)
    lab.wait(lambda: lab.rank_pids(number, 0) and lab.rank_pids(number, 1), "both ranks")
    yield number
    lab.run("scancel", str(number))
    for node in lab.nodes:  # a slurmd that comes back ends what it should not have
        lab.start_node(node)
    lab.wait(lambda: not any(process.job == number for process in lab.processes()), "the job to be gone")


def test_a_killed_node_takes_its_rank_along_and_slurm_goes_on_elsewhere(lab: SlurmLab, job: int) -> None:
    first, second = lab.nodes_of(job)

    lab.kill_node(second)

    assert lab.processes(second) == []
    assert lab.rank_pids(job, 0, node=first)  # the other node lives
    lab.wait(lambda: lab.job(job).get("Restarts") == "1" and lab.job_state(job) == "RUNNING", "the second start")
    assert second not in lab.nodes_of(job)
    assert [record.state for record in lab.records(job)] == ["NODE_FAIL"]
    lab.start_node(second)
    lab.wait(lambda: lab.node_states()[second] == "idle", "the node to be back")


def test_a_rank_lives_on_when_only_its_slurmd_is_killed(lab: SlurmLab, job: int) -> None:
    node = lab.nodes_of(job)[1]
    pids = lab.rank_pids(job, 1)

    lab.kill_slurmd(node)

    assert not lab.is_running(f"slurmd-{node}")
    assert lab.rank_pids(job, 1) == pids
    lab.wait(lambda: lab.job(job).get("Restarts") == "1" and lab.job_state(job) == "RUNNING", "the second start")
    assert all(is_alive(pid) for pid in pids)  # beside its successor


def test_a_frozen_rank_is_stopped_and_can_be_thawed(lab: SlurmLab, job: int) -> None:
    frozen = lab.freeze_rank(job, 1)

    lab.wait(lambda: all(is_stopped(pid) for pid in frozen), "the rank to stand still")
    assert not any(is_stopped(pid) for pid in lab.rank_pids(job, 0))
    assert lab.job_state(job) == "RUNNING"
    send(frozen, signal.SIGCONT)
    lab.wait(lambda: not any(is_stopped(pid) for pid in frozen), "the rank to move")


def test_a_replaced_node_is_a_fresh_one_under_the_same_name(lab: SlurmLab, job: int) -> None:
    node = lab.nodes_of(job)[1]
    before = {process.pid for process in lab.processes(node)}
    (lab.folder / "spool" / node / "local").touch()

    lab.replace_node(node)

    lab.wait(lambda: lab.node_states().get(node) in ("idle", "mix"), "the fresh node")
    assert not any(is_alive(pid) for pid in before)
    assert not (lab.folder / "spool" / node / "local").exists()


@pytest.mark.parametrize("kills", [False, True])
def test_slurmctld_comes_back_on_the_state_it_had_saved(lab: SlurmLab, job: int, kills: bool) -> None:
    lab.wait(lambda: str(job) in lab.run("squeue", "-h", "-t", "R", "-o", "%i").stdout.split(), "the job to run")
    # It saves seconds after a change, and what it has not saved is lost. A save that ends now may have begun before the
    # job ran: only the one after it is sure to hold that.
    for change in ("first", "second") if kills else ():
        began = lab.jobs_saved_at()
        lab.run("scontrol", "update", f"jobid={job}", f"comment={change}")
        lab.wait(lambda began=began: lab.jobs_saved_at() > began, f"job {job} in the state file")

    lab.stop_slurmctld(kills=kills)
    assert lab.job_state(job) is None  # nobody answers
    lab.start_slurmctld()

    lab.wait(lambda: lab.job_state(job) == "RUNNING", "the job to run on")
    assert lab.job(job)["Restarts"] == "0"


def test_two_labs_stand_side_by_side_one_of_them_without_munge(lab: SlurmLab) -> None:
    with SlurmLab(nodes=("n1",), with_munge=False) as other:
        assert other.port != lab.port
        assert other.folder != lab.folder
        assert set(other.node_states()) == {"n1"}
        assert set(lab.node_states()) == {"n1", "n2", "n3"}
        folder = other.folder
    assert not folder.exists()
    assert leftovers(folder) == []


@pytest.mark.skipif(shutil.which("gcc") is None, reason="HyperPod's plugin is stood in for by one built with gcc")
def test_auto_resume_is_an_option_as_on_hyperpod() -> None:
    with SlurmLab(nodes=("n1",), with_auto_resume=True) as lab:
        told = lab.run("srun", "--auto-resume=1", "printenv", "SLURMLAB_AUTO_RESUME").stdout
        assert told.strip() == "1"
        assert lab.run("srun", "--auto-resume=7", "true", fails=True).returncode != 0
    with SlurmLab(nodes=("n1",)) as plain, pytest.raises(LabError, match="auto-resume"):
        plain.run("srun", "--auto-resume=1", "true")


USES_A_LAB = """
import sys
from tests.slurm.lab.lab import SlurmLab
with SlurmLab(nodes=("n1", "n2")) as lab:
    script = lab.folder / "work/sleeps.sh"
    script.write_text(sys.argv[1])
    job = lab.submit(script)
    lab.wait(lambda: lab.rank_pids(job, 0) and lab.rank_pids(job, 1), "both ranks")
    lab.kill_slurmd("n2")  # its rank lives on, with nobody above it but the keeper
    print(lab.folder, *(one.pid for one in lab.processes()), flush=True)
    raise ZeroDivisionError if sys.argv[2] == "raises" else sys.stdin.read() or SystemExit(0)
"""


@pytest.mark.parametrize("ends", ["raises", "killed", "returns"])
def test_nothing_is_left_however_its_user_ends(lab: SlurmLab, ends: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", USES_A_LAB, SLEEPS, ends],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as user:
        assert user.stdout is not None
        folder, *pids = user.stdout.readline().split()
        assert len(pids) > 6
        if ends == "killed":
            user.kill()
        user.communicate()

    lab.wait(lambda: not any(is_alive(int(pid)) for pid in pids), "all of it to end")
    assert leftovers(Path(folder)) == []
    if ends != "killed":
        assert not Path(folder).exists()
    shutil.rmtree(folder, ignore_errors=True)
