"""What torch's flight recorder holds, read where a run stands still: never by a collective, and never waiting for long.

Torch is only looked at where the script has loaded it. Its recorders are read from its own debug server, which is there
while they are read, at a socket that only this user can open: its threads do not hold the interpreter's lock while
NCCL's recorder asks the device, which may never answer. The functions that its tutorial names (`_dump_nccl_trace`) hold
that lock, and would stop every thread; the server's handlers cannot be called from Python where torch has NCCL.
"""

from __future__ import annotations

import functools
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from typing import Any, Final

from rekindle.detectors.dumps import BadDump, read_dump
from rekindle.monitor.base.trouble import Trouble
from rekindle.monitor.base.worker import BackgroundCall
from rekindle.protocol.flights import MAX_GROUPS, Flight

READ_S: Final = 1.0  # 2,000 entries take some 30 ms; the report of the stall does not wait for longer
BUFFER: Final = "2000"  # torch's own default from 2.13 on; before, none was kept
NAMES: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FIRST_WITH_NEW_NAME: Final = (2, 8)  # Source: pytorch pull request 152563
# NCCL keeps its own recorder; the other one is gloo's. Source: torch.distributed.debug, its handlers' names.
_HANDLERS: Final = ("dump_nccl_trace_json", "fr_trace_json")


def switch_on(environ: MutableMapping[str, str]) -> None:
    """Let torch keep its last collectives, unless someone has decided that or it is too late.

    The size is read when the first process group is made, so that this changes nothing after it.
    """
    distributed = sys.modules.get("torch.distributed")
    if any(name in environ for name in NAMES) or _is_initialized(distributed):
        return
    installed = _torch_version()
    if installed is None:
        return
    found = re.match(r"(\d+)\.(\d+)", installed)
    is_new = found is None or (int(found[1]), int(found[2])) >= FIRST_WITH_NEW_NAME
    environ[NAMES[0] if is_new else NAMES[1]] = BUFFER


def _torch_version() -> str | None:
    """None where torch is not installed, or its package's metadata cannot be read."""
    if "torch" in sys.modules:
        return str(getattr(sys.modules["torch"], "__version__", ""))
    from importlib.metadata import version  # some fifty modules, which no import should bring

    try:
        return version("torch")
    except Exception:  # cut off or spoiled, they lead to errors of many kinds
        return None


class FlightRecorder:
    """One reading that never ends costs one thread, and the later readings."""

    def __init__(self, trouble: Trouble) -> None:
        self._trouble = trouble
        self._call = BackgroundCall("flight")

    def read(self, timeout_s: float = READ_S) -> Flight | None:
        """What it holds now; None where there is none, or where it does not answer in time. Never raises."""
        if not _is_initialized(sys.modules.get("torch.distributed")):
            return None
        found: list[Flight] = []
        self._call.run(lambda: self._read(found), timeout_s)
        return found[0] if found else None

    def _read(self, found: list[Flight]) -> None:
        try:
            flights = [read_dump(raw) for raw in _dumps() if raw]
            groups = tuple(group for flight in flights for group in flight.groups)
            # In either recorder the groups that matter are first.
            groups = tuple(sorted(groups, key=lambda group: group.first_waiting is None))[:MAX_GROUPS]
            if groups:
                found.append(Flight(groups=groups))
        except BadDump as err:
            self._trouble.once("flight", "Torch's flight recorder cannot be read: %s", err)
        except BaseException as err:  # a torch that is not known may do anything
            self._trouble.inner("flight", err)


def _is_initialized(distributed: Any) -> bool:
    try:
        return distributed is not None and bool(distributed.is_initialized())
    except Exception:  # a torch without process groups has no such function
        return False


def _dumps() -> Iterator[bytes]:
    """The JSON of each recorder; empty where this torch has no such recorder."""
    server = getattr(sys.modules.get("torch._C._distributed_c10d"), "_WorkerServer", None)
    if server is None:  # before 2.4
        return
    with tempfile.TemporaryDirectory(prefix="rekindle-", ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "torch")
        serving = server(path)
        try:
            yield from (_dump(path, handler) for handler in _HANDLERS)
        finally:
            serving.shutdown()


def _dump(path: str, handler: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(f"POST /handler/{handler} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
        answer = b"".join(iter(functools.partial(connection.recv, 65_536), b""))
    head, _, content = answer.partition(b"\r\n\r\n")
    return content if head.split()[1:2] == [b"200"] else b""
