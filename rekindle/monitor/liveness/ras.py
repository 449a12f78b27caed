"""NCCL's RAS, asked where a run stands still: by its client's text protocol, on a thread of its own, within bounds.

RAS answers for the whole job and asks all of its processes for that, so only a few ranks ask. Its socket is shared by
all processes of a user on a host: an answer counts only where it is of this very job. Source: NCCL user guide,
Troubleshooting, RAS; src/ras/client.cc, src/ras/client_support.cc.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from rekindle.monitor.base.trouble import Trouble
from rekindle.monitor.base.worker import BackgroundCall
from rekindle.protocol.flights import MAX_RAS, RasSuspect
from rekindle.protocol.summaries import SUMMARISED_ABOVE

if TYPE_CHECKING:  # at a stall only
    from rekindle.detectors.ras import RasAnswer

ADDRESS: Final = "localhost:28028"
PROTOCOL: Final = b"CLIENT PROTOCOL 2\n"
ASKERS: Final = 4
CONNECT_S: Final = 1.0
LIMIT_S: Final = 15.0  # RAS itself gives up on silent processes after 10
SOON_S: Final = 1.0  # where all processes answer, it takes some milliseconds
_MAX_LINE: Final = 1024

Heard = Callable[[tuple[RasSuspect, ...]], None]


class Ras:
    """One question that has no answer yet keeps the later ones from being asked."""

    def __init__(self, rank: int, world_size: int, trouble: Trouble) -> None:
        self._world_size, self._trouble = world_size, trouble
        self._asks = world_size > 1 and rank % max(1, -(-world_size // ASKERS)) == 0
        self._lock = threading.Lock()
        self._call = BackgroundCall("ras")

    def ask(self, environ: Mapping[str, str], later: Heard, soon_s: float = SOON_S) -> tuple[RasSuspect, ...]:
        """Whom it suspects; empty where there is no RAS, or no answer soon: then `later` has it, from a thread.

        Never raises.
        """
        if not self._asks or environ.get("NCCL_RAS_ENABLE") == "0":
            return ()
        address = environ.get("NCCL_RAS_ADDR") or ADDRESS
        heard: list[tuple[RasSuspect, ...]] = []
        is_late = threading.Event()
        self._call.run(lambda: self._ask(address, heard, is_late, later), soon_s)
        with self._lock:
            is_late.set()
            return heard[0] if heard else ()

    def _ask(self, address: str, heard: list[tuple[RasSuspect, ...]], is_late: threading.Event, later: Heard) -> None:
        try:
            from rekindle.detectors.ras import read_ras

            answer = read_ras(question(address, as_json=self._world_size <= SUMMARISED_ABOVE))
            if not self._is_ours(answer):
                return
            suspects = answer.suspects[:MAX_RAS]
            with self._lock:
                heard.append(suspects)
                if not is_late.is_set():
                    return
            if suspects:
                later(suspects)
        except (OSError, ValueError):  # no RAS there, none that answers, or another service
            return
        except BaseException as err:  # whatever answers there, training continues
            self._trouble.inner("ras", err)

    def _is_ours(self, answer: RasAnswer) -> bool:
        return answer.gpus == self._world_size if answer.pids is None else os.getpid() in answer.pids


def question(address: str, *, as_json: bool = True, limit_s: float = LIMIT_S) -> bytes:
    """RAS's answer. Raises: OSError, ValueError for an address that is none, or what does not speak its protocol."""
    from rekindle.detectors.ras import MAX_ANSWER_BYTES

    host, _, given = address.rpartition(":")
    port, until = int(given), time.monotonic() + limit_s
    if not 0 < port < 65536:
        raise ValueError("it is no port")
    with socket.create_connection((host.strip("[]"), port), timeout=CONNECT_S) as connected:
        if not _line(connected, PROTOCOL).startswith(b"SERVER PROTOCOL "):
            raise ValueError("it is not NCCL's RAS")
        if as_json:
            _line(connected, b"SET FORMAT json\n")  # an older one says that it does not know that, and answers in text
        connected.sendall(b"STATUS\n")
        parts: list[bytes] = []
        size = 0
        while (left_s := until - time.monotonic()) > 0 and size <= MAX_ANSWER_BYTES:
            connected.settimeout(left_s)
            part = connected.recv(65536)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
    raise TimeoutError("no end within the bounds")


def _line(connected: socket.socket, command: bytes) -> bytes:
    connected.sendall(command)
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_LINE:
        part = connected.recv(_MAX_LINE - len(line))
        if not part:
            raise ConnectionError("it was closed")
        line += part
    return line
