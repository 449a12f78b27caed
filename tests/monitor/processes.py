"""Scripts with a monitor, in processes of their own: signals, forks and deaths are real there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.monitor.boxes import PATIENCE_S

ROOT = Path(__file__).parents[2]
PRELUDE = """
import ctypes, json, os, signal, sys, threading, time
from pathlib import Path
from rekindle.monitor import Ranks
here = Path(sys.argv[1])

def say(**what):
    os.write(1, (json.dumps(what) + "\\n").encode())

def hear():
    return sys.stdin.readline().strip()

def stuck_in_c():
    lock = ctypes.create_string_buffer(128)  # all zero is an initialised mutex; taking it twice never ends
    wait = ctypes.CDLL(None).pthread_mutex_lock
    wait(lock)
    wait(lock)

def save(step, kind):
    path = here / f"step-{step}.bin"
    path.write_bytes(b"x" * 100)
    return path

def start(**more):
    from rekindle.monitor.base.settings import Config
    from rekindle.monitor.starting import start_in
    config = Config(heartbeat_s=0.05, poll_s=0.05, watch_s=0.05, **more.pop("config", {}))
    env = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"} | more.pop("env", {})
    return start_in(env, **({"save": save, "mailbox": str(here), "config": config} | more))
"""


HEARD_WITHIN_S = 120.0


class Script:
    """One process; `say(...)` in its body is a line of JSON that `heard` returns, `hear()` waits for `tell`."""

    def __init__(self, here: Path, body: str, **more: str) -> None:
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "REKINDLE", "TORCHE"))
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(body), str(here)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env | {"PYTHONPATH": str(ROOT)} | more,
        )

    def heard(self) -> dict[str, object]:
        """The next line. One that does not come within HEARD_WITHIN_S fails the test, and ends the process."""
        assert self.process.stdout is not None
        overdue = threading.Timer(HEARD_WITHIN_S, self.process.kill)
        overdue.start()
        try:
            return self._line()
        finally:
            overdue.cancel()

    def _line(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        said: dict[str, object] = json.loads(line)
        return said

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """(exit code, what it wrote to stderr)"""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, errors

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.02)
