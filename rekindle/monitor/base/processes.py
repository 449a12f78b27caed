"""Processes, named so that another process can tell whether one of them still lives. Linux; elsewhere it is unknown."""

from __future__ import annotations

import os
import secrets
from functools import lru_cache
from pathlib import Path
from typing import Final

_UNNAMED: Final = "unknown"  # where the system does not tell: followed by what no other process has
MAX_ANCESTORS: Final = 64


def own_process() -> str:
    """Names this process to others: its host and the namespace of its number, the number, and when it began."""
    return name_of(os.getpid()) or _token(os.getpid())


def name_of(pid: int) -> str:
    """The same of another process of this host; empty where it has ended, or the system does not tell."""
    stat = _stat(pid)
    return f"{_host()} {pid} {stat[_BEGAN]}" if stat and _host() else ""


def parent() -> str:
    """What has started this process; empty where that is unknown."""
    return name_of(os.getppid())


def is_gone(process: str) -> bool:
    """Whether the process that `own_process` names has ended. False where that is unknown, as for another host's."""
    host, pid, began = _parts(process)
    if not host or host != _host():
        return False
    stat = _stat(int(pid))
    return stat is not None and (not stat or stat[_BEGAN] != began)


def is_ancestor(process: str) -> bool:
    """Whether this process descends from that one, which lives. False where that is unknown."""
    host, wanted, began = _parts(process)
    if not host or host != _host():
        return False
    pid = os.getppid()
    for _ in range(MAX_ANCESTORS):
        stat = _stat(pid)
        if not stat:
            return False
        if str(pid) == wanted:
            return stat[_BEGAN] == began
        pid = int(stat[_PARENT])
    return False


def _parts(process: str) -> tuple[str, str, str]:
    rest, _, began = process.rpartition(" ")
    host, _, pid = rest.rpartition(" ")
    return (host, pid, began) if pid.isdecimal() else ("", "", "")


@lru_cache(maxsize=1)
def _token(pid: int) -> str:
    return f"{_UNNAMED} {pid}-{secrets.token_hex(8)}"


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


def _stat(pid: int) -> list[str] | None:
    """Empty where it has ended, None where that cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        # Where /proc shows other processes at all: without it nothing is known.
        return [] if os.path.exists("/proc/self/stat") else None
    except OSError:
        return None
    if len(fields) <= _BEGAN:
        return None
    return [] if fields[_STATE] in ("Z", "X") else fields
