"""Where a Slurm lab or a training job stands on its machine: a folder with a short path, ports of its own."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import tempfile
from typing import Final

_FIRST_PORT, _LAST_PORT = 20000, 32000  # below Linux's ephemeral ports, from 32768 on
MAX_PORTS: Final = 64


def short_folder() -> str:
    """TMPDIR may be long, and Unix sockets stand in the lab's folder."""
    return "/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir()  # noqa: S108  made by mkdtemp


def take_ports(count: int, stack: contextlib.ExitStack) -> int:
    """The first of `count` free ports in a row. They are this lab's until the stack closes: a lock goes with them."""
    if count > MAX_PORTS:
        raise ValueError(f"a lab has at most {MAX_PORTS - 1} nodes")
    blocks = list(range(_FIRST_PORT, _LAST_PORT, MAX_PORTS))
    random.shuffle(blocks)
    for first in blocks:
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0rekindle-slurm-lab-{first}")  # abstract: it is no file, and it goes with this process
        except OSError:
            lock.close()
            continue
        stack.callback(lock.close)
        if all(is_free(port) for port in range(first, first + count)):
            return first
    raise RuntimeError(f"no {count} free ports in a row between {_FIRST_PORT} and {_LAST_PORT}")


def is_free(port: int) -> bool:
    """Whether a process could listen at it now."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
