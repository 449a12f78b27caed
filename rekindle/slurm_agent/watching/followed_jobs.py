"""Which Jobs the watcher follows, for the relay: where their mailboxes and checkpoints lie, and whose they are."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

MAX_IDLE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedJob:
    """One Job. `mailbox` and `checkpoints` are as its comment or environment names them; `job_id` is the Job's."""

    job_id: str
    slurm_job: int
    attempt: str
    mailbox: str
    checkpoints: str
    uid: int | None
    gid: int | None
    is_running: bool


class FollowedJobs:
    """Written by the watcher, read by the relay. Keeps Jobs that slurmctld has forgotten: what is to come of them, and
    the checkpoints that they left, still go through their mailboxes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: dict[str, FollowedJob] = {}

    def put(self, members: Iterable[FollowedJob]) -> None:
        """One per Job: of several, the one that runs, else the newest."""
        best: dict[str, FollowedJob] = {}
        for member in sorted(members, key=lambda member: (member.is_running, member.slurm_job)):
            best[member.job_id] = member
        with self._lock:
            others = [
                replace(member, is_running=False) for member in self._members.values() if member.job_id not in best
            ]
            kept = sorted(others, key=lambda member: member.slurm_job)[-MAX_IDLE:]
            self._members = {member.job_id: member for member in kept} | best

    def members(self) -> tuple[FollowedJob, ...]:
        """As of the watcher's last whole look."""
        with self._lock:
            return tuple(self._members.values())
