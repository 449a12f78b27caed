"""Keeps the workers of one training job: a small process between the embedded cloud and them.

Run as a script, isolated (`python -I -S processes_keeper.py`). The first line on standard input says what to run;
each further line is a signal to send. Each line on standard output tells of a worker that began or ended. When
standard input ends, because the cloud closed it or was killed, all workers are killed: nothing ever outlives the cloud.
And should the keeper itself be killed, the kernel kills its workers (PR_SET_PDEATHSIG, where the system is Linux).
A worker may be a launcher whose ranks stand in sessions of their own (torchrun): on Linux they belong to the worker all
the same, and where the launcher dies first they become the keeper's (PR_SET_CHILD_SUBREAPER), to end with the job.
Standard library only, one thread.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # Source: prctl(2)
_PR_SET_CHILD_SUBREAPER = 36  # Source: prctl(2)


def _die_with_parent() -> None:
    """In the worker, before it becomes the training program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(worker: dict[str, Any]) -> subprocess.Popen[bytes]:
    with open(worker["log"], "ab") as log:
        return subprocess.Popen(
            worker["argv"],
            env=worker["env"],
            cwd=worker["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )


def _say(**facts: object) -> None:
    try:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    except OSError:  # the cloud is gone; the end of standard input, read next, ends everything
        return


def _signal(child: subprocess.Popen[bytes], number: int, *, group: bool) -> None:
    if child.returncode is not None:
        return
    for pid in descendants(child.pid) if group else ():
        _kill(os.kill, pid, number)
    _kill(os.killpg if group else os.kill, child.pid, number)


def _signal_rank(pid: int, number: int) -> None:
    """Signal one process of a worker, only while it still belongs to this job: its PID may have been reused."""
    if pid in descendants(os.getpid()):
        _kill(os.kill, pid, number)


def _kill(how: Callable[[int, int], None], pid: int, number: int) -> None:
    try:
        how(pid, number)
    except ProcessLookupError:
        return


def descendants(pid: int) -> list[int]:
    """Whatever `pid` started, and what that started in turn; nothing where there is no /proc to tell."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name in parentheses, which may hold anything: state, parent. Source: proc_pid_stat(5)
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:  # it has ended meanwhile
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _kill_all(children: list[subprocess.Popen[bytes]]) -> None:
    """Every worker and whatever it started, also where the worker itself has ended already."""
    for child in children:
        _kill(os.killpg, child.pid, signal.SIGKILL)
    # What a launcher was just starting appears only in a second look.
    while alive := [pid for pid in descendants(os.getpid()) if not _is_dead(pid)]:
        for pid in alive:
            _kill(os.kill, pid, signal.SIGKILL)
    for child in children:
        child.wait()


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in ("Z", "X")
    except OSError:
        return True


class _Lines:
    """Whole lines out of a pipe that is read as it fills."""

    def __init__(self, source: int) -> None:
        self._source = source
        self._rest = b""

    def read(self) -> list[bytes] | None:
        """Lines that are complete by now, or None at the end."""
        chunk = os.read(self._source, 65536)
        if not chunk:
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return lines


def main() -> None:
    """Run until every worker has ended, or standard input has."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a Ctrl-C is the cloud's to act upon
        signal.signal(ignored, signal.SIG_IGN)

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    lines = _Lines(0)
    commands = lines.read() or []
    while not commands:
        more = lines.read()
        if more is None:
            return
        commands = more
    children: list[subprocess.Popen[bytes]] = []
    try:
        for rank, worker in enumerate(json.loads(commands.pop(0))["workers"]):
            try:
                children.append(_start(worker))
            except OSError as err:
                _say(failed=rank, why=str(err))
                return
            _say(started=rank, pid=children[-1].pid)
        _tend(children, lines, commands, wake_read)
    finally:
        _kill_all(children)


def _tend(children: list[subprocess.Popen[bytes]], lines: _Lines, commands: list[bytes], wake_read: int) -> None:
    reported: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        while True:
            for rank, child in enumerate(children):
                if rank not in reported and child.poll() is not None:
                    reported.add(rank)
                    _say(ended=rank, code=child.returncode)
            if len(reported) == len(children):
                return
            for command in commands:
                order = json.loads(command)
                for rank in order["ranks"]:
                    _signal(children[rank], order["signal"], group=order["group"])
                for pid in order.get("pids", ()):
                    _signal_rank(pid, order["signal"])
            commands = []
            for key, _ in selector.select():
                if key.fd == wake_read:
                    os.read(wake_read, 4096)
                    continue
                more = lines.read()
                if more is None:
                    return
                commands += more


if __name__ == "__main__":
    main()
