"""SIGUSR2 on Slurm: "write your stacks now". The agent sends it to the steps of a run that seems to hang.

A handler of Python's runs between two bytecodes of the main thread, so not while that thread is stuck in a collective.
The interpreter's own handler in C runs at once and writes the signal's number to a file descriptor (`set_wakeup_fd`);
a thread of ours reads it there, and writes the report while the main thread goes on hanging.

A signal reaches every process of a step, and ends those that neither catch nor ignore it: launchers, shells, workers.
Hence `is_safe`, which the beat carries: nothing is sent to a run that does not say that it hears.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from rekindle.monitor.signals import ENV_SIGNALS
from rekindle.monitor.slurm import is_on_slurm
from rekindle.monitor.stacks import OWN_PREFIX
from rekindle.monitor.trouble import Trouble, logger

WORD: Final = "USR2"  # what the beat says, and the order
NUMBER: Final = getattr(signal, "SIGUSR2", None)
LOOK_AGAIN_S: Final = 60.0  # the processes of a step seldom change, and a node has thousands
_OURS_ALL: Final = "slurmstepd"  # the parent of everything in a step
_UNASKED: Final = ("batch", "extern")


class StacksOnSignal:
    """`begin` and `end` are for the main thread; `is_safe` for any other."""

    def __init__(self, write: Callable[[], None], trouble: Trouble) -> None:
        self._write = write
        self._trouble = trouble
        self._reads: int | None = None
        self._writes: int | None = None
        self._safe_until = 0.0
        self._was_safe = False
        self._why = ""

    def begin(self, env: Mapping[str, str]) -> bool:
        """Whether the signal is ours now. A handler, or a wakeup descriptor, of somebody else's stays as it is."""
        if NUMBER is None or not is_on_slurm(env) or env.get(ENV_SIGNALS, "").lower() == "off":
            return False
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(NUMBER) not in (signal.SIG_DFL, signal.SIG_IGN):
            logger.info("SIGUSR2 has a handler of the script's own: stacks cannot be asked for by it")
            return False
        reads, writes = os.pipe()
        os.set_blocking(writes, False)
        taken = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        if taken != -1:
            signal.set_wakeup_fd(taken)
            os.close(reads)
            os.close(writes)
            logger.info("Signals wake somebody else here: stacks cannot be asked for by SIGUSR2")
            return False
        signal.signal(NUMBER, _heard)
        self._reads, self._writes = reads, writes
        threading.Thread(target=self._listen, args=(reads,), name=f"{OWN_PREFIX}asked", daemon=True).start()
        return True

    def is_safe(self, now: float) -> bool:
        """The signal would be heard here, and would kill nothing of this step on this node.

        now: of the process's monotonic clock. False also where it cannot be told.
        """
        if self._writes is None or NUMBER is None or signal.getsignal(NUMBER) is not _heard:
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
        """Nobody listens any more; a signal that comes now does nothing."""
        writes, self._writes = self._writes, None
        if writes is None or NUMBER is None or threading.current_thread() is not threading.main_thread():
            return
        set_now = signal.set_wakeup_fd(-1)
        if set_now not in (-1, writes):
            signal.set_wakeup_fd(set_now)
        if signal.getsignal(NUMBER) is _heard:
            signal.signal(NUMBER, signal.SIG_IGN)
        os.close(writes)  # the listener reads the end, and goes

    def forget(self) -> None:
        """In a forked child: the pipe is the parent's, and so is the question."""
        if self._writes is None or NUMBER is None:
            return
        self._writes = None
        try:
            signal.set_wakeup_fd(-1)
            if signal.getsignal(NUMBER) is _heard:
                signal.signal(NUMBER, signal.SIG_IGN)
        except ValueError:  # forked off the main thread
            return

    def _listen(self, reads: int) -> None:
        try:
            while heard := os.read(reads, 512):
                if NUMBER is not None and NUMBER in heard:
                    try:
                        self._write()
                    except Exception as err:  # a report that cannot be made must not deafen the rank
                        self._trouble.inner("asked", err)
        except OSError as err:
            self._trouble.inner("asked", err)
        finally:
            os.close(reads)


def _heard(number: int, frame: FrameType | None) -> None:
    """The listener does it; this only keeps the signal from killing."""


def what_it_would_kill(pid: int, number: int, proc: Path = Path("/proc")) -> str:
    """The first process of the step of `pid`, on this node, that neither catches, ignores nor blocks that signal.

    Empty where there is none. Where the step's processes cannot be told, the reason for that: not knowing is not safe.
    Source: proc(5), status (SigBlk, SigIgn, SigCgt) and stat; scancel manual: all processes of all steps.
    """
    parents, names = _processes(proc)
    top = pid
    while names.get(top) != _OURS_ALL:
        if top not in parents or top == parents[top]:
            return "the step that this process is in cannot be told"
        top = parents[top]
    children: dict[int, list[int]] = {}
    for one, parent in parents.items():
        children.setdefault(parent, []).append(one)
    waiting = [one for step in (top, *_other_steps(proc, names, top)) for one in children.get(step, ())]
    while waiting:
        one = waiting.pop()
        waiting += children.get(one, ())
        if not _survives(proc / str(one) / "status", number):
            return f"process {one} ({names.get(one, '?')}) would be killed by it"
    return ""


def _other_steps(proc: Path, names: Mapping[int, str], own: int) -> list[int]:
    """Those that serve further steps of the same job; the batch script's hears no signal that is sent to the steps.

    slurmstepd names itself `slurmstepd: [JOB.STEP]`. Source: slurm, src/slurmd/slurmstepd/slurmstepd.c.
    """
    job = _title(proc, own).partition(".")[0]
    if not job.startswith("["):
        return []
    served = {pid: _title(proc, pid) for pid, name in names.items() if name == _OURS_ALL and pid != own}
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


def _processes(proc: Path) -> tuple[dict[int, int], dict[int, str]]:
    """Every process's parent and name."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    try:
        there = [int(name) for name in os.listdir(proc) if name.isdigit()]
    except OSError:
        return parents, names
    for pid in there:
        try:
            stat = (proc / str(pid) / "stat").read_bytes().decode(errors="replace")
            head, _, rest = stat.rpartition(")")  # a name may hold spaces and brackets
            parents[pid], names[pid] = int(rest.split()[1]), head.partition("(")[2]
        except (OSError, ValueError, IndexError):  # it went while we looked, or is hidden from us
            continue
    return parents, names


def _survives(status: Path, number: int) -> bool:
    try:
        lines = status.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return not status.parent.exists()  # it is gone
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    if found.get("State", "").strip().startswith(("Z", "X")):
        return True
    try:
        masks = [int(found[name], 16) for name in ("SigBlk", "SigIgn", "SigCgt")]
    except (KeyError, ValueError):
        return False
    return any(mask >> (number - 1) & 1 for mask in masks)
