"""A signal handler of the script may call the monitor inside itself: nothing that it takes may be taken already."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path

import pytest

import rekindle
from rekindle.monitor.base.worker import wait_until

ROOT = Path(rekindle.__file__).parent
# What a handler could take again on the thread that it interrupts: a plain Lock, and what is made of one.
PLAIN = re.compile(r"threading\.(?:Event|Lock|Semaphore|BoundedSemaphore|Barrier)\(")
# Where one stands all the same, and why no handler meets it.
ALLOWED = {
    ("monitor/base/worker.py", "pause = threading.Event()"): "made by each call, for itself",
    ("monitor/saving/joint_save.py", "pause = threading.Event()"): "made by each call, for itself",
    ("monitor/saving/measure.py", "threading.Event().wait(SETTLE_S)"): "made by each call, for itself",
    ("monitor/mail/slurm.py", "threading.Event().wait(wait_s)"): "made by each call, for itself",
    (
        "monitor/saving/hasher.py",
        "self._stop = threading.Event()",
    ): "its own thread waits for it; set once, at the end",
    ("monitor/liveness/ras.py", "self._lock = threading.Lock()"): "the watchdog's and its own threads meet it alone",
    ("monitor/liveness/ras.py", "is_late = threading.Event()"): "the watchdog's and its own threads meet it alone",
    ("integrations/torch_ranks.py", "pause = threading.Event()"): "made by each call, for itself",
}


def test_no_lock_of_the_monitor_can_be_met_twice_by_one_thread() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), line.strip())
        for folder in ("monitor", "integrations")
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if PLAIN.search(line)
    }
    assert found == ALLOWED.keys(), "take an RLock, a WakeSignal or `wait_until`; or say here why no handler meets it"


@pytest.mark.long
def test_a_handler_may_wait_inside_any_wait_for_the_same() -> None:
    """All of them end with it. One threading.Event for all hangs here once in many thousand."""
    for _ in range(30):
        is_open, depth = list[bool](), list[int]()

        def handler(*_: object, is_open: list[bool] = is_open, depth: list[int] = depth) -> None:
            if len(depth) < 20:
                depth.append(1)
                wait_until(lambda: bool(is_open), time.monotonic() + 30.0)

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        opener = threading.Timer(0.03, is_open.append, (True,))
        opener.start()
        try:
            began = time.monotonic()
            assert wait_until(lambda is_open=is_open: bool(is_open), time.monotonic() + 30.0)
            assert time.monotonic() - began < 20.0
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            opener.join()


def test_what_does_not_come_lets_go_in_time() -> None:
    assert not wait_until(lambda: False, time.monotonic() + 0.02)
