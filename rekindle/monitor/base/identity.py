"""Who this process is: which Job, which attempt of it, which rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """`attempt` is the platform's own name of the attempt (TRAINING_JOB_NAME on SageMaker).

    `host` is the node's own name for itself, as far as it is known.
    """

    job_id: str
    attempt: str
    attempt_number: int
    rank: int
    world_size: int
    host: str = ""
