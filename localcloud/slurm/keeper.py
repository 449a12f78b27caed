"""Supervises the daemons of one Slurm lab: a small process between the lab's user and everything that runs in the lab.

Run as an isolated script (`python -I -S keeper.py`). Each line on standard input names a program to start and is
answered by a line with its process id. The process is the subreaper of all it starts (PR_SET_CHILD_SUBREAPER): a
slurmstepd whose slurmd was killed becomes its child, so every process of the lab descends from it. When standard input
ends, because the user closed it or was killed, all of them are killed. If this process itself is killed, the kernel
kills its daemons (PR_SET_PDEATHSIG). Linux, standard library only, one thread.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # Source: prctl(2)
_PR_SET_CHILD_SUBREAPER = 36  # Source: prctl(2)


def _die_with_parent() -> None:
    """In the daemon, before it becomes one."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _start(what: dict[str, Any]) -> subprocess.Popen[bytes]:
    with open(what["log"], "ab") as log:
        return subprocess.Popen(
            what["argv"],
            env=what["env"],
            cwd=what["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )


def _say(**facts: object) -> None:
    try:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()
    except OSError:  # the user is gone; the end of standard input, read next, ends everything
        return


def _descendants() -> list[int]:
    """The processes that run in the lab, without zombies."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name in parentheses, which may hold anything: state, parent. Source: proc_pid_stat(5)
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        if state not in ("Z", "X"):
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, waiting = [], [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _reap() -> None:
    """Fetch the dead: the daemons, and every orphan of theirs."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def _wait() -> int | None:
    try:
        return os.waitpid(-1, 0)[0]
    except ChildProcessError:
        return None


def _kill_all() -> None:
    while alive := _descendants():  # again, for what was being started appears only in a second look
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        _reap()
    for _ in iter(_wait, None):  # no zombie is left to an init that fetches slowly
        pass


def main() -> None:
    """Run until standard input ends."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a Ctrl-C is the user's to act upon
        signal.signal(ignored, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started: list[subprocess.Popen[bytes]] = []  # kept, for a Popen that is thrown away is waited for
    rest = b""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while True:
                _reap()
                for key, _ in selector.select():
                    chunk = os.read(int(key.fd), 65536)
                    if key.fd == wake_read:
                        continue
                    if not chunk:
                        return
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        try:
                            started.append(_start(json.loads(line)))
                        except OSError as err:
                            _say(why=str(err))
                        else:
                            _say(pid=started[-1].pid)
    finally:
        _kill_all()


if __name__ == "__main__":
    main()
