"""One start of a Slurm job, and its launch instructions as rekindle.monitor reads them from environment and plan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from localcloud.aws.sagemaker import TERMINAL, Phase
from localcloud.slurm.job import SimJob
from rekindle.monitor.mail.slurm import LaunchInstructions, Unplanned, read_resume_plan
from rekindle.protocol.cluster.names import ENV_CLUSTER, ENV_SLURM_ATTEMPT, ENV_SUBMITTED_ON
from rekindle.protocol.launch_orders import ENV_JOB_ID, ENV_MAILBOX, ResumePlan
from simulation.cloud.store import MemoryObjects
from simulation.runs.monitor import prefix_of
from simulation.runs.truth import TrueRun


@dataclass(slots=True, kw_only=True)
class SlurmStart:
    """One start of a Slurm job: truth.Start."""

    name: str
    slurm_job: int
    environment: dict[str, str]
    nodes: tuple[str, ...]
    created_at: datetime
    phase: Phase = Phase.STARTING
    ended_at: datetime | None = None
    failure_reason: str | None = None

    @property
    def instance_count(self) -> int:
        return len(self.nodes)

    @property
    def is_terminal(self) -> bool:
        return self.phase in TERMINAL


def launch_instructions(job: SimJob, run: TrueRun, objects: MemoryObjects) -> LaunchInstructions:
    """The launch instructions of the job's present start."""
    env = {"SLURM_JOB_ID": str(job.slurm_job), ENV_CLUSTER: job.base.cluster, **job.environment}
    if ENV_SLURM_ATTEMPT in env:
        # As the agent's `copies.spec.submit` and sbatch.
        env |= {ENV_SUBMITTED_ON: "head", "SLURM_SUBMIT_HOST": job.submitted_on}
    if job.restart:
        env["SLURM_RESTART_COUNT"] = str(job.restart)
    if job.job_id is not None:
        env[ENV_JOB_ID] = job.job_id
    mailbox: Any = _Mailbox(objects, f"{prefix_of(run)}/")
    return read_resume_plan(env | {ENV_MAILBOX: job.mailbox}, lambda: mailbox)


class _Mailbox:
    """What `rekindle.monitor.mail.slurm` reads of a mailbox."""

    def __init__(self, objects: MemoryObjects, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix

    def get(self, key: str) -> bytes | None:
        found = self._objects.get(f"{self._prefix}{key}")
        return None if found is None else found.body

    def names(self, prefix: str) -> tuple[str, ...]:
        return tuple(key.removeprefix(self._prefix) for key in self._objects.keys(f"{self._prefix}{prefix}"))


def plan_of(launch: LaunchInstructions, run: TrueRun) -> ResumePlan:
    """Where this start resumes; one without a resume plan takes the newest usable checkpoint that it finds."""
    if launch.resume is not None:
        return launch.resume
    if launch.unplanned is None:
        return ResumePlan.from_env(launch.env)
    return _newest(launch.unplanned, run)


def _newest(unplanned: Unplanned, run: TrueRun) -> ResumePlan:
    """As rekindle.monitor.saving.resuming: of what attempts since the last plan sealed whole and not as poisoned."""
    numbers = {attempt.name: attempt.number for attempt in run.attempts.values()}
    found = [
        save
        for save in run.saved
        if save.is_whole and not save.looks_poisoned and numbers.get(save.attempt, 0) >= unplanned.since_attempt
    ]
    best = max(found, key=lambda save: (save.step, save.at), default=None)
    if best is None:
        return unplanned.base
    return ResumePlan(step=best.step, uri=best.root, skip=unplanned.base.skip)
