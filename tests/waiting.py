"""Waiting for something real: a daemon, a process, a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def ask_until(condition: Callable[[], Any], *, limit_s: float, pause_s: float, rest: float) -> Any:
    """Ask until the answer is true, or `limit_s` have passed; the last answer. A pause is as long as `rest` times the
    question took, and `pause_s` at least: a slow machine is not made slower by the questions.
    """
    deadline, pause = time.monotonic() + limit_s, threading.Event()
    began = time.monotonic()
    while not (answer := condition()):
        asked = time.monotonic()
        if asked > deadline:
            break
        pause.wait(max(pause_s, rest * (asked - began)))
        began = time.monotonic()
    return answer
