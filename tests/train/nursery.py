"""Forks ranks from a process that has imported the heavy packages once: a rank is there in milliseconds.

    python -m tests.train.nursery MODULE...

Reads one order per line from standard input, `{"id", "argv", "env", "cwd", "log"}`, and answers on standard output:
`{"id", "pid"}` when the rank runs, `{"pid", "status"}` when it has ended (negative: the signal that ended it). A rank
is a session of its own; it ends as every Python process does, with its threads waited for and its atexit functions. The
nursery has one thread, so that forking it is safe; it ends with its standard input, and kills the ranks that are left.

An order with `ranks` is for so many that have a launcher (`gang.py`): the process that is answered with.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import sys
import threading
import traceback
from typing import Any

from tests.train.gang import lead


def serve() -> dict[str, Any] | None:
    """None at the end; in a forked rank, its order."""
    alive: set[int] = set()
    rest = b""
    while True:
        ready, _, _ = select.select([0], [], [], 0.05)
        if ready:
            body = os.read(0, 65536)
            if not body:
                break
            *lines, rest = (rest + body).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    return order
                alive.add(pid)
                _tell({"id": order["id"], "pid": pid})
        while alive:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            alive.discard(pid)
            _tell({"pid": pid, "status": os.waitstatus_to_exitcode(status)})
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return None


ANSWERS = os.dup(1)  # what is imported may print
os.dup2(2, 1)


def _tell(answer: dict[str, Any]) -> None:
    os.write(ANSWERS, (json.dumps(answer) + "\n").encode())


def become(order: dict[str, Any]) -> None:
    """Run the script of the order, as its own main module."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for number in (nothing, log, ANSWERS):
        os.close(number)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    sys.argv = list(order["argv"])
    if order.get("ranks"):
        lead(order["ranks"])  # which returns in each rank
    if "torch" not in sys.modules:
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    status = 1
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as err:
        status = err.code if isinstance(err.code, int) else 0 if err.code is None else 1
    except BaseException:
        traceback.print_exc()
    # As the interpreter ends, but for freeing the thousand modules that were forked, which takes seconds. The rows that
    # are spawned end in full.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        importlib.import_module(name)
    _tell({"id": "ready", "pid": os.getpid()})
    mine = serve()
    if mine is not None:
        become(mine)
