"""What time it is by the clock of a file system, which may be a server's, minutes from this host's."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

TRIES = 3
QUICK_S = 0.05  # a disk that others are writing to takes a second to keep a byte


def file_time_of(began: float, place: Path) -> float | None:
    """What the file system of `place` had for the time when this host's monotonic clock stood at `began`.

    A file is made beside it, without a name where that is possible, and its time read. Not later than it was, and
    earlier by no more than that took: on a busy disk it is tried again. None where no file can be made there. Never
    raises.
    """
    latest: float | None = None
    try:
        device = os.stat(place).st_dev
        folder = place.parent
        if os.stat(folder).st_dev != device:  # the root of a file system of its own
            folder = place
        for _ in range(TRIES):
            asked = time.monotonic()
            written_at = written_now(str(folder))
            answered = time.monotonic()
            latest = max(latest or 0.0, written_at - (answered - began))
            if answered - asked < QUICK_S:
                break
    except OSError:
        return latest
    return latest


def written_now(folder: str) -> float:
    """The time that a file made in there gets now. Raises: OSError."""
    with contextlib.suppress(OSError, AttributeError):  # neither on NFS nor on FUSE
        return _stamped(os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600))
    name = os.path.join(folder, f".rekindle-clock-{secrets.token_hex(4)}.tmp")
    try:
        return _stamped(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def _stamped(descriptor: int) -> float:
    try:
        os.write(descriptor, b"\0")
        os.fsync(descriptor)  # a network file system stamps what has reached it
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
