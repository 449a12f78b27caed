"""Whether all workers that torchrun started on this machine are still there. Reads /proc; Unknown is None.

Source: torch.distributed.run, Environment Variables (TORCHELASTIC_RUN_ID, LOCAL_WORLD_SIZE, LOCAL_RANK); the agent
starts each worker as its own child (elastic/multiprocessing/subprocess_handler); proc(5).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rekindle.monitor.base.processes import read_processes
from rekindle.monitor.base.settings import whole_from_env

RUN_ID: Final = "TORCHELASTIC_RUN_ID"
MAX_ENVIRONMENT_BYTES: Final = 4 * 1024 * 1024


class LocalWorkers:
    """The workers of one torchrun agent, seen from one of them."""

    def __init__(self, env: Mapping[str, str], proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._pid = os.getpid()
        self._run_id = env.get(RUN_ID, "")
        self._size = whole_from_env(env, "LOCAL_WORLD_SIZE") or 0

    @property
    def are_elastic(self) -> bool:
        """Whether torchrun started this process: it kills after 30 s those that do not end at SIGTERM."""
        return bool(self._run_id)

    def is_one_gone(self) -> bool | None:
        """Whether fewer workers live than torchrun started; None where that is unknown."""
        if not self._run_id or self._size < 2:
            return None
        try:
            alive = self._living()
        except OSError:
            return None
        if self._pid not in alive:  # a shell between the agent and us, or a process that was not started by exec
            return None
        return len(set(alive.values())) < self._size

    def _living(self) -> dict[int, bytes]:
        """Process → its LOCAL_RANK, of the living children of our parent that belong to the same run."""
        parent = os.getppid()
        beside = (pid for pid, one in read_processes(self._proc).items() if one.parent == parent)
        return {pid: rank for pid in beside if (rank := self._rank_of(pid)) is not None}

    def _rank_of(self, pid: int) -> bytes | None:
        try:
            with (self._proc / str(pid) / "environ").open("rb") as file:
                entries = file.read(MAX_ENVIRONMENT_BYTES).split(b"\0")
        except OSError:
            return None
        known = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
        if known.get(RUN_ID.encode()) != os.fsencode(self._run_id):
            return None
        return known.get(b"LOCAL_RANK")
