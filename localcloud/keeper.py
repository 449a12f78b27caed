"""Keeps real processes: a small process between the embedded cloud, or a Slurm lab, and all that runs in it.

Run as an isolated script (`python -I -S keeper.py`). Each line on standard input is an order, each on standard output
a report, numbered in the order of the starts:

    {"start": {"argv", "env", "cwd", "log"}}              -> {"started": 0, "pid": 17} or {"failed": 0, "why": "…"}
    {"signal": 9, "numbers": [0], "group": true}          a process, and with `group` all that it started
    {"signal": 9, "numbers": [], "pids": [21]}            others, each only while it descends from this process
                                                          -> {"ended": 0, "code": -9}

When standard input ends, because the user closed it or was killed, everything is killed: nothing outlives the user.
On Linux this process is the subreaper of all it starts (PR_SET_CHILD_SUBREAPER), so the ranks of a launcher that died
and a slurmstepd whose slurmd was killed become its children and end with it; and if it is killed itself, the kernel
kills what it started (PR_SET_PDEATHSIG). Standard library only, one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

KEEPER: Final = Path(__file__)
_PR_SET_PDEATHSIG = 1  # Source: prctl(2)
_PR_SET_CHILD_SUBREAPER = 36  # Source: prctl(2)
_IS_LINUX = sys.platform == "linux"


def descendants(root: int) -> list[int]:
    """What `root` started, and what that started in turn, parents before their children; without zombies, and nothing
    where there is no /proc to tell.
    """
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # After the name in parentheses, which may hold anything: state, parent. Source: proc_pid_stat(5)
            state, parent = stat.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        if state not in ("Z", "X"):
            children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _die_with_parent() -> None:
    """In the new process, before it becomes the program."""
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
            preexec_fn=_die_with_parent if _IS_LINUX else None,
        )


def _report(**facts: object) -> None:
    # Where the user is gone: the end of standard input, read next, ends everything.
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def _kill(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


class _Keeper:
    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes] | None] = []  # None: it could not be started
        self._ended: set[int] = set()

    def obey(self, order: dict[str, Any]) -> None:
        if "start" in order:
            number = len(self._started)
            try:
                started = _start(order["start"])
            except OSError as err:
                self._started.append(None)
                _report(failed=number, why=str(err))
            else:
                self._started.append(started)
                _report(started=number, pid=started.pid)
            return
        for number in order["numbers"]:
            child = self._started[number]
            if child is None or number in self._ended:  # its PID may have been given to another process
                continue
            if order["group"]:
                _kill(descendants(child.pid), order["signal"])
                _kill_group(child.pid, order["signal"])
            else:
                _kill([child.pid], order["signal"])
        if pids := order.get("pids"):
            _kill(set(pids) & set(descendants(os.getpid())), order["signal"])

    def reap(self) -> None:
        """Fetch the dead: what was started, which is reported, and every orphan of it."""
        numbers = {child.pid: number for number, child in enumerate(self._started) if child is not None}
        for pid, status in iter(lambda: self._wait(os.WNOHANG), (0, 0)):
            if (number := numbers.get(pid)) is not None and number not in self._ended:
                self._ended.add(number)
                _report(ended=number, code=os.waitstatus_to_exitcode(status))

    def kill_all(self) -> None:
        """Everything that still runs, also what a process left behind in its group where there is no /proc."""
        for child in self._started:
            if child is not None:
                _kill_group(child.pid, signal.SIGKILL)
        while alive := descendants(os.getpid()):  # again, for what was being started appears only in a second look
            _kill(alive, signal.SIGKILL)
            self.reap()
        for _ in iter(self._wait, (0, 0)):  # no zombie is left to an init that fetches slowly
            pass

    @staticmethod
    def _wait(options: int = 0) -> tuple[int, int]:
        try:
            return os.waitpid(-1, options)
        except ChildProcessError:
            return 0, 0


def main() -> None:
    """Run until standard input ends."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a Ctrl-C is the user's to act upon
        signal.signal(ignored, signal.SIG_IGN)
    if _IS_LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keeper = _Keeper()
    rest = b""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    chunk = os.read(int(key.fd), 65536)
                    if key.fd == wake_read:
                        keeper.reap()
                        continue
                    if not chunk:
                        return
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        keeper.obey(json.loads(line))
    finally:
        keeper.kill_all()


if __name__ == "__main__":
    main()
