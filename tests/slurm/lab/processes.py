"""The processes of a Slurm lab, identified by node, job and rank. Linux: everything is read from /proc.

A task is identified by its environment. A slurmstepd overwrites its own (setproctitle), so it is identified by its
node's log file, which it keeps open.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localcloud.keeper import descendants


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One living process of a lab. `job`, `rank` and `node` are None where it belongs to none."""

    pid: int
    command: str
    node: str | None = None
    job: int | None = None
    rank: int | None = None  # of the job's running step; None for the batch script and the daemons


def processes_below(root: int, logs: Path) -> list[Process]:
    """All living descendants of `root`; `logs` is the folder of the nodes' logs, `slurmd-<node>.log` each."""
    return [found for pid in descendants(root) if (found := _read_process(pid, logs)) is not None]


def is_alive(pid: int) -> bool:
    """False for a zombie, too: one that a slow parent has not fetched yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def is_stopped(pid: int) -> bool:
    """True for a process that was frozen."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def send(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Those that have ended meanwhile are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def leftovers(folder: Path) -> list[int]:
    """Processes of a lab in this folder, whatever their parent is: the supervisor of the lab may have been killed."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid == os.getpid() or not is_alive(pid):
            continue
        is_task = _environ(pid).get("SLURM_CONF", "").startswith(f"{folder}/")
        if (is_task and "SLURM_JOB_ID" in _environ(pid)) or _is_stepd_of(pid, folder):
            found.append(pid)
    return found


def _is_stepd_of(pid: int, folder: Path) -> bool:
    return _command(pid).startswith("slurmstepd") and any(name.startswith(f"{folder}/") for name in _open_files(pid))


def _read_process(pid: int, logs: Path) -> Process | None:
    if not is_alive(pid):
        return None
    command = _command(pid)
    if command.startswith("slurmstepd"):
        kept = (Path(name) for name in _open_files(pid))
        node = next((log.stem.removeprefix("slurmd-") for log in kept if log.parent == logs), None)
        job = command.partition("[")[2].partition(".")[0]  # `slurmstepd: [12.batch]`
        return Process(pid=pid, command=command, node=node, job=_number(job))
    environ = _environ(pid)
    in_step = environ.get("SLURM_STEP_ID", "").isdigit()  # set for tasks of srun, not for the batch script
    return Process(
        pid=pid,
        command=command,
        node=environ.get("SLURMD_NODENAME"),
        job=_number(environ.get("SLURM_JOB_ID", "")),
        rank=_number(environ.get("SLURM_PROCID", "")) if in_step else None,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _environ(pid: int) -> dict[str, str]:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return {}
    return dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs if b"=" in pair)


def _open_files(pid: int) -> list[str]:
    names = []
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                names.append(os.readlink(entry.path))
    except OSError:
        return names
    return names
