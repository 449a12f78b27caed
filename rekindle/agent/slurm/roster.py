"""Which Jobs the watcher follows, for the relay: where their mailboxes and checkpoints lie, and whose they are."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One Job. `mailbox` and `checkpoints` are as its comment or environment names them; `job_id` is the Job's."""

    job_id: str
    slurm_job: int
    attempt: str
    mailbox: str
    checkpoints: str
    uid: int | None
    gid: int | None
    is_running: bool


class Roster:
    """Written by the watcher, read by the relay."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: tuple[Member, ...] = ()

    def put(self, members: Iterable[Member]) -> None:
        """One per Job: of several, the one that runs, else the newest."""
        best: dict[str, Member] = {}
        for member in sorted(members, key=lambda one: (one.is_running, one.slurm_job)):
            best[member.job_id] = member
        with self._lock:
            self._members = tuple(best.values())

    def members(self) -> tuple[Member, ...]:
        """As of the watcher's last whole look."""
        with self._lock:
            return self._members
