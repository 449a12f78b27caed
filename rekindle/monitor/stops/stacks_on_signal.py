"""SIGUSR2 on Slurm: "write your stacks now". The agent sends it to the steps of a run that seems to hang.

It is heard by `wakeup`'s thread, which writes the report while the main thread still hangs.

A signal reaches every process of a step, and ends those that neither catch nor ignore it: launchers, shells, workers.
Hence `is_safe`, which the heartbeat carries: nothing is sent to a run that does not declare a handler.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from rekindle.monitor.base.processes import Process, read_processes
from rekindle.monitor.base.trouble import Trouble, logger
from rekindle.monitor.stops.dispositions import has_c_handler
from rekindle.monitor.stops.wakeup import Wakeup

NUMBER: Final = signal.SIGUSR2
LOOK_AGAIN_S: Final = 60.0  # the processes of a step seldom change, and a node has thousands
_OURS_ALL: Final = "slurmstepd"  # the parent of everything in a step
_UNASKED: Final = ("batch", "extern")


def is_free() -> bool:
    """Whether the signal has no handler of the script's."""
    if signal.getsignal(NUMBER) not in (signal.SIG_DFL, signal.SIG_IGN) or has_c_handler(NUMBER):
        logger.info("SIGUSR2 has a handler of the script's own: stacks cannot be asked for by it")
        return False
    return True


class StacksOnSignal:
    """`begin` and `end` are for the main thread; `is_safe` for any other."""

    def __init__(self, write: Callable[[], None], wakeup: Wakeup, trouble: Trouble) -> None:
        self._write = write
        self._wakeup = wakeup
        self._trouble = trouble
        self._is_taken = False
        self._safe_until = 0.0
        self._was_safe = False
        self._why = ""

    def begin(self) -> bool:
        """Whether the signal is ours now. A wakeup descriptor of the script's stays as it is."""
        if not self._wakeup.hears_in_c:
            logger.info("The script has the wakeup descriptor: stacks cannot be asked for by SIGUSR2")
            return False
        signal.signal(NUMBER, _heard)
        self._is_taken = True
        self._wakeup.on(NUMBER, self._on_signal)
        return True

    def is_safe(self, now: float) -> bool:
        """The signal would be heard here, and would kill nothing of this step on this node.

        now: of the process's monotonic clock. False also where it is unknown.
        """
        if not self._is_taken or signal.getsignal(NUMBER) is not _heard:
            return False
        if now >= self._safe_until:
            self._safe_until = now + LOOK_AGAIN_S
            why = what_it_would_kill(os.getpid(), NUMBER)
            self._was_safe = not why
            if why and why != self._why:
                logger.info("Stacks cannot be asked for by SIGUSR2: %s", why)
            self._why = why
        return self._was_safe

    def end(self) -> None:
        """A signal that comes from now on does nothing. Also for a forked child, whose worker it must not kill."""
        was_taken, self._is_taken = self._is_taken, False
        if not was_taken or signal.getsignal(NUMBER) is not _heard:
            return
        try:
            signal.signal(NUMBER, signal.SIG_IGN)
        except ValueError:  # off the main thread: the handler stays, and does nothing
            return

    def _on_signal(self, is_from_python: bool) -> None:  # noqa: ARG002 - the listener's signature
        try:
            self._write()
        except Exception as err:  # a report that cannot be made must not deafen the rank
            self._trouble.inner("asked", err)


def _heard(number: int, frame: FrameType | None) -> None:
    """The listening thread does the work; this only keeps the signal from killing."""


def what_it_would_kill(pid: int, number: int, proc: Path = Path("/proc")) -> str:
    """The first process of the step of `pid`, on this node, that neither catches, ignores nor blocks that signal.

    Empty where there is none. Where the step's processes are unknown, the reason for that: not knowing is not safe.
    Source: proc(5), status (SigBlk, SigIgn, SigCgt) and stat; scancel manual: all processes of all steps.
    """
    there: dict[int, Process] = {}
    with suppress(OSError):
        there = read_processes(proc)
    top = pid
    while top not in there or there[top].name != _OURS_ALL:
        if top not in there or top == there[top].parent:
            return "the step that this process is in is not known"
        top = there[top].parent
    children: dict[int, list[int]] = {}
    for child, process in there.items():
        children.setdefault(process.parent, []).append(child)
    waiting = [child for step in (top, *_other_steps(proc, there, top)) for child in children.get(step, ())]
    while waiting:
        one = waiting.pop()
        waiting += children.get(one, ())
        if not _survives(proc / str(one) / "status", number):
            return f"process {one} ({there[one].name}) would be killed by it"
    return ""


def _other_steps(proc: Path, there: Mapping[int, Process], own: int) -> list[int]:
    """Those that serve further steps of the same job; the batch script's hears no signal that is sent to the steps.

    slurmstepd names itself `slurmstepd: [JOB.STEP]`. Source: slurm, src/slurmd/slurmstepd/slurmstepd.c.
    """
    job = _title(proc, own).partition(".")[0]
    if not job.startswith("["):
        return []
    served = {pid: _title(proc, pid) for pid, one in there.items() if one.name == _OURS_ALL and pid != own}
    return [
        pid
        for pid, title in served.items()
        if title.startswith(f"{job}.") and not title.startswith(_UNASKED, len(job) + 1)
    ]


def _title(proc: Path, pid: int) -> str:
    try:
        raw = (proc / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return raw.rstrip(b"\0").decode(errors="replace").partition(": ")[2].strip()


def _survives(status: Path, number: int) -> bool:
    try:
        lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return not status.parent.exists()  # it is gone
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    try:
        masks = [int(found[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt")]
    except (KeyError, ValueError):
        return False
    return any(mask >> (number - 1) & 1 for mask in masks)
