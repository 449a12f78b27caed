"""Several ranks on this machine and their launcher, forked: what torchrun does, without importing everything for each.

As torchrun's agent, the launcher hosts the ranks' store, passes SIGTERM on, ends all where one fails, and ends itself
with 0 if all ranks did. Restarts are torchrun's own: the stories and `make test-frameworks` play those with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterable
from types import FrameType

GRACE_S = 30.0  # torchrun's, from SIGTERM to SIGKILL
# From a rank's failure to SIGTERM for the others. torchrun looks every 0.1 s; a rank that fails for the same reason as
# another, but a moment later, must come to its own end on a slow machine, too.
SETTLES_S = 2.0


def lead(ranks: int) -> None:
    """Return in each of the forked ranks, with what torchrun puts into its environment; never in the launcher."""
    listener = socket.create_server(("127.0.0.1", 0))
    alive: dict[int, int] = {}
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            os.environ.update(_environment(rank, ranks, listener.getsockname()[1]))
            listener.close()
            return
        alive[pid] = rank
    os._exit(_follow(alive, listener))


def _environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """As torch.distributed.elastic.agent.server.local_elastic_agent sets it (torch 2.13)."""
    places = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(ranks))
    return (
        places
        | sizes
        | {
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "gang",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    )


def _follow(alive: dict[int, int], listener: socket.socket) -> int:
    """Until all ranks have ended; 0 if each of them ended well."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    stops: list[float] = []

    def stop(*_: int | FrameType | None) -> None:
        if not stops:
            stops.append(time.monotonic() + GRACE_S)
            _send(alive, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    port = listener.getsockname()[1]
    store = TCPStore(  # the ranks were forked before it has a thread
        "127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300),
        master_listen_fd=listener.detach(),
    )  # fmt: skip
    failed_at: float | None = None
    while alive:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            if failed_at is not None and time.monotonic() > failed_at + SETTLES_S:
                stop()
            if stops and time.monotonic() > stops[0]:
                _send(alive, signal.SIGKILL)
            time.sleep(0.02)
            continue
        alive.pop(pid, None)
        if status != 0 and failed_at is None:
            failed_at = time.monotonic()
    del store
    return 0 if failed_at is None else 1


def _send(pids: Iterable[int], number: int) -> None:
    for pid in list(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
