"""One agent for each state directory, and none while a command of a killed forerunner still runs.

The lock's descriptor is inherited by every command that changes something in Slurm (`build.AgentContext.guard_fd`): the
kernel keeps a lock that was taken with flock until the last process that inherited it is gone. So an agent that is
started again cannot look whether a job was submitted while a left-over sbatch may still submit it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import Final

NAME: Final = "agent.lock"
LOOK_S: Final = 0.2


class LockTaken(Exception):
    """Another agent, or a command that a killed one has left behind, holds the lock."""


def acquire(state_dir: Path, *, wait_s: float, stop: threading.Event) -> int:
    """The descriptor that holds the lock until this process and its commands are gone.

    Raises: Taken after `wait_s`, or when `stop` is set; OSError where there is no directory to hold it.
    """
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(state_dir / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            if time.monotonic() >= end or stop.wait(LOOK_S):
                os.close(descriptor)
                raise LockTaken(f"{state_dir / NAME} is held by another agent") from err
        except OSError:
            os.close(descriptor)
            raise
        else:
            return descriptor
