"""Processes, named so that another process can tell whether one of them still lives. Linux; elsewhere it is unknown."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_UNNAMED: Final = "unknown"  # where the system does not tell: followed by what no other process has
_TOKEN: Final = secrets.token_hex(8)
MAX_ANCESTORS: Final = 64


def own_process() -> str:
    """Names this process to others: its host and the namespace of its number, the number, and when it began."""
    return name_of(os.getpid()) or f"{_UNNAMED} {os.getpid()}-{_TOKEN}"


def name_of(pid: int) -> str:
    """The same of another process of this host; empty where it has ended, or the system does not tell."""
    with suppress(OSError, ValueError):
        found = read_process(pid)
        return f"{_host()} {pid} {found.began}" if found is not None and _host() else ""
    return ""


def is_gone(process: str) -> bool:
    """Whether the process that `own_process` names has ended. False where that is unknown, as for another host's."""
    host, pid, began = _parts(process)
    if not host or host != _host():
        return False
    with suppress(OSError, ValueError):
        found = read_process(int(pid))
        return found is None or found.began != began
    return False


def is_ancestor(process: str) -> bool:
    """Whether this process descends from that one, which lives. False where that is unknown."""
    host, wanted, began = _parts(process)
    if not host or host != _host():
        return False
    pid = os.getppid()
    with suppress(OSError, ValueError):
        for _ in range(MAX_ANCESTORS):
            found = read_process(pid)
            if found is None or str(pid) == wanted:
                return found is not None and found.began == began
            pid = found.parent
    return False


def _parts(process: str) -> tuple[str, str, str]:
    rest, _, began = process.rpartition(" ")
    host, _, pid = rest.rpartition(" ")
    return (host, pid, began) if pid.isdecimal() else ("", "", "")


def _host() -> str:
    """One boot of one kernel, and the namespace in which its processes are numbered."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


# Of the fields behind the name, which is in brackets and may hold anything. Source: proc(5), /proc/PID/stat: state,
# `Z` or `X` for a process that has ended; the parent's number; and as the 22nd of all fields when it began.
_STATE, _PARENT, _BEGAN = 0, 1, 19


@dataclass(frozen=True, slots=True)
class Process:
    """One process as the system shows it. `began`: in ticks of this boot."""

    name: str
    parent: int
    began: str


def read_process(pid: int, proc: Path = Path("/proc")) -> Process | None:
    """None where it has ended, also where it was not waited for yet. Raises: OSError, ValueError where not known."""
    try:
        head, _, rest = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        if not (proc / "self" / "stat").exists():  # then it shows no processes at all
            raise
        return None
    fields = rest.split()
    if len(fields) <= _BEGAN:
        raise ValueError(f"process {pid} has no readable state")
    if fields[_STATE] in ("Z", "X"):
        return None
    return Process(head.partition("(")[2], int(fields[_PARENT]), fields[_BEGAN])


def read_processes(proc: Path = Path("/proc")) -> dict[int, Process]:
    """All that are shown to this user. Raises: OSError."""
    found: dict[int, Process] = {}
    for name in os.listdir(proc):
        with suppress(OSError, ValueError):  # hidden from us, or no process
            if (process := read_process(int(name), proc)) is not None:
                found[int(name)] = process
    return found
