"""Whether a Slurm job that has a known number is the job that is known: a number alone is not a job.

slurmctld numbers from FirstJobId again where its StateSaveLocation was lost. Who submitted a job, and when, says which
one it is: SubmitTime is the submission's at the first start, and at each later one when it was put back. Pure.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc

SET_BACK: Final = timedelta(days=1)  # the head node's clock, between a submission and a requeue


def why_different(known: AttemptDoc, *, user: str, restart: int, submitted_at: datetime | None) -> str:
    """Why a job now under the number of `known` is another one; "" where it is the same, or nothing tells."""
    if known.user and user and known.user != user:
        return f"job {known.slurm_job} is {user}'s now, and was {known.user}'s: another job has its number"
    if known.submitted_at is None or submitted_at is None:
        return ""
    is_later = submitted_at > known.submitted_at - SET_BACK and restart > known.restart
    if submitted_at == known.submitted_at or is_later:
        return ""
    when = f"{submitted_at:%Y-%m-%d %H:%M:%S}, and not at {known.submitted_at:%Y-%m-%d %H:%M:%S} UTC"
    return f"job {known.slurm_job} was submitted at {when}: another job has its number"
