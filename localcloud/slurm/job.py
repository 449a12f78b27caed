"""One job of the Slurm controller that exists only in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.cluster.names import SlurmAttempt

ARRAY: Final = "it is a task of a job array: one task cannot be submitted again as part of the array"
ENDED: Final = frozenset(
    {
        SlurmState.COMPLETED,
        SlurmState.CANCELLED,
        SlurmState.FAILED,
        SlurmState.TIMEOUT,
        SlurmState.NODE_FAIL,
        SlurmState.PREEMPTED,
        SlurmState.OUT_OF_MEMORY,
    }
)
ON_NODES: Final = frozenset({SlurmState.RUNNING, SlurmState.SUSPENDED})


@dataclass(slots=True, kw_only=True)
class SimJob:
    """One Slurm job, with the fields of Slurm's own record that squeue and scontrol show (hence their number).

    `lineage` is whose run it is, across submissions.
    """

    slurm_job: int
    base: SlurmAttempt
    lineage: str
    name: str = "lm"
    user: str = "ada"
    dependency: str = ""
    submitted_on: str = "head"
    wants: int = 2
    least: int | None = None  # it was made smaller: so few will do
    min_nodes: int | None = None  # what its comment says
    restart: int = 0
    state: SlurmState = SlurmState.PENDING
    nodes: tuple[str, ...] = ()
    held: bool = False
    exclude: tuple[str, ...] = ()
    is_requeueable: bool = True
    has_auto_resume: bool = False
    is_array_task: bool = False
    is_known: bool = True
    mailbox: str = ""
    job_id: str | None = None
    ended_by: EndedBy = EndedBy.UNKNOWN
    reason: str = ""
    detail: str = ""
    exit_code: int | None = None
    step_code: int | None = None
    submitted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def attempt(self) -> str:
        """The name of its present start."""
        return self.base.restarted(self.restart).name
