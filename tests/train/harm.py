"""What a rank of a story does to itself, at a place and step that the story names.

    {"do": "kill", "at": "save", "step": 20, "ranks": [1]}

Places: `before start`, `started`, `step` (before the step's work), `stepped` (after `Monitor.step`), `save` (the save
function is entered), `half saved` (a part of the files is there), `saved` (the save function is about to return),
`finish`. A place with `step` means the first time that the place is reached at that step or later. Each fault is done
once, but those that `Harm.has` names, which last.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.train.line import Line

ENV_HARM = "TRAIN_HARM"


class OutsideException(BaseException):
    """Derives from BaseException, as torch's CheckpointException does."""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "OSError": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "BaseException": lambda: OutsideException("a save that failed outside of Exception"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "MemoryError": MemoryError,
    "RuntimeError": lambda: RuntimeError("Connection closed by peer"),
    "StopIteration": StopIteration,
    "RecursionError": lambda: RecursionError("maximum recursion depth exceeded"),
    "GeneratorExit": GeneratorExit,
}


class Harm:
    """The faults of one rank."""

    def __init__(self, line: Line) -> None:
        self._line = line
        orders = json.loads(os.environ.get(ENV_HARM, "[]"))
        restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)  # torchrun's: a fault is not done again
        self._orders = [
            order for order in orders if (order["ranks"] == "all" or line.rank in order["ranks"]) and restart == 0
        ]
        self.children: list[Any] = []

    def has(self, do: str, step: int | None = None) -> dict[str, Any] | None:
        """A fault that lasts, from its step on, such as `nonsense`: the script itself acts on it."""
        for order in self._orders:
            if order["do"] == do and (step is None or step >= order.get("step", 0)):
                return dict(order)
        return None

    def at(self, place: str, step: int = 0) -> None:
        """Do what is due here. Raises: what the story wants raised."""
        for order in [order for order in self._orders if order["at"] == place and step >= order.get("step", 0)]:
            self._orders.remove(order)
            self._line.send("harm", do=order["do"], at_place=place, step=step)
            self._do(order)

    def _do(self, order: dict[str, Any]) -> None:
        do, _, detail = str(order["do"]).partition(":")
        if do == "raise":
            raise ERRORS[detail]()
        actions: dict[str, Callable[[str], None]] = {
            "signal": lambda name: os.kill(os.getpid(), getattr(signal, name)),
            "hang": lambda _: threading.Event().wait(),
            "spin": _spin,
            "sleep": lambda text: time.sleep(float(text)),
            "exit": lambda text: os._exit(int(text)),
            "file bytes": _limit_file_bytes,
            "descriptors": _limit_descriptors,
            "daemon": lambda _: self._daemon(),
            "pool": lambda _: self._pool(),
            "subprocess": lambda _: self._subprocess(),
            "set": lambda text: os.environ.__setitem__(*text.split("=", 1)),
        }
        actions[do](detail)

    def _daemon(self) -> None:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,), daemon=True)
        child.start()
        self.children.append(child)

    def _pool(self) -> None:
        pool = multiprocessing.get_context("fork").Pool(2)
        pool.map(abs, range(4))
        self.children.append(pool)  # kept open, as a data loader's is: the interpreter's end terminates it

    def _subprocess(self) -> None:
        subprocess.run([sys.executable, "-c", "pass"], check=True)


def _spin(text: str) -> None:
    """Compute for so many seconds without giving way to another thread more than Python makes it."""
    until = time.monotonic() + float(text)
    while time.monotonic() < until:
        pass


def _limit_file_bytes(text: str) -> None:
    """As a full disk: a write that would make a file longer fails with an OSError (EFBIG)."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if text == "any" else int(text), hard))


def _limit_descriptors(text: str) -> None:
    """So many more descriptors than are open now."""
    limit = len(os.listdir("/proc/self/fd")) + int(text)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
