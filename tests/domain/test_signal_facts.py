"""Which attempt a Signal means that names a Slurm job by its id alone."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from chalicelib.domain.faults.signal_facts import of_newest_start
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.signal import ANY_START
from chalicelib.platforms.slurm.platform import SLURM
from tests.domain.looks import MINUTE, NOW, signal


def job(current: str) -> Job:
    return Job(
        job_id="slurm.hpc.17",
        name="lm",
        platform=SLURM.name,
        policy_name="default",
        created_at=NOW - timedelta(hours=3),
        current_attempt=current,
        attempt_number=2,
        attempt_started_at=NOW - timedelta(hours=1),
    )


@pytest.mark.parametrize(
    ("current", "named", "ago", "meant"),
    [
        ("slurm.hpc.17.r2", "slurm.hpc.17", 1, "slurm.hpc.17.r2"),
        ("slurm.hpc.17", "slurm.hpc.17", 1, "slurm.hpc.17"),
        ("slurm.hpc.17.r2", "slurm.hpc.17", 90, "slurm.hpc.17"),  # from before this start began
        ("slurm.hpc.18", "slurm.hpc.17", 1, "slurm.hpc.17"),
        ("lm-r2", "slurm.hpc.17", 1, "slurm.hpc.17"),
    ],
)
def test_a_slurm_jobs_id_means_its_newest_start(current: str, named: str, ago: int, meant: str) -> None:
    told = signal(attempt=named, at=NOW - ago * MINUTE, evidence={ANY_START: True})
    assert of_newest_start(told, job(current)).attempt == meant
    unnamed = dataclasses.replace(told, evidence={})
    assert of_newest_start(unnamed, job(current)) == unnamed  # a name of the run's own means that very start
