"""A daemon thread that takes turns: work, wait until due or woken, work again."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

from rekindle.monitor.base.guard import note_in_thread
from rekindle.monitor.base.stacks import OWN_PREFIX
from rekindle.monitor.base.trouble import Trouble

MAX_WAIT_S = 3600.0
LOOK_S = 0.01
_Answer = TypeVar("_Answer")
LAST_TURNS = 4
LAST_PAUSE_S = 0.5
AFTER_ERROR_S = 5.0  # an error of our own must not become a busy loop


class WakeSignal:
    """Wakes one waiting thread. `ring` may be called from a signal handler, unlike `threading.Event.set`.

    Event.set takes a lock that is not re-entrant: a handler that runs inside a call of it, on the same thread, and
    calls it again would wait forever. SimpleQueue.put is re-entrant. Source: Python library reference, queue.
    """

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_rung = False

    def ring(self) -> None:
        if not self._is_rung:  # one waiting entry is enough: the queue must not grow while it has no reader
            self._is_rung = True
            self._rings.put(None)

    def wait(self, timeout_s: float) -> None:
        """Until it rings or has rung, at most `timeout_s`."""
        try:
            self._rings.get(timeout=min(max(timeout_s, 0.0), MAX_WAIT_S))
        except queue.Empty:
            return
        self._is_rung = False


def wait_until(is_so: Callable[[], bool], until: float, look_s: float = LOOK_S) -> bool:
    """Whether it was so by `until` on the monotonic clock.

    Each call has an event of its own: a signal handler may wait inside such a wait, and one that waits for an event
    whose lock its own thread holds waits forever, and with it the thread that is about to set it.
    """
    pause = threading.Event()
    while not is_so():
        if time.monotonic() > until:
            return False
        pause.wait(look_s)
    return True


def begin(name: str, work: Callable[[], _Answer]) -> Future[_Answer]:
    """`work` on a daemon thread of its own, and what it will have returned or raised.

    Raises: RuntimeError where the process may have no more threads.
    """
    found: Future[_Answer] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except BaseException as err:  # kept for the caller; a SystemExit in this thread must not end the process
            found.set_exception(err if isinstance(err, Exception) else RuntimeError(repr(err)))

    threading.Thread(target=run, name=f"{OWN_PREFIX}{name}", daemon=True).start()
    return found


class BackgroundCall:
    """Runs a call on a daemon thread, and waits for it no longer than it may take. While one is still running, further
    ones are not begun.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._newest: Future[Any] | None = None

    def run(self, work: Callable[[], object], wait_s: float) -> None:
        """Begin `work`, and wait `wait_s` at most. Without effect where the process may have no more threads."""
        if self._newest is not None and not self._newest.done():
            return
        with suppress(RuntimeError):
            self._newest = begin(self._name, work)
            wait((self._newest,), wait_s)


class Worker:
    """Calls `turn` on its own thread; `turn` returns the seconds until it wants to be called again.

    The last turn is repeated a few times until `is_done`: one lost packet must not lose a run's last messages. No error
    ends the thread, whatever it derives from.

    Daemon threads do not survive a fork: in a forked child (a data loader's worker) nothing of this runs.
    """

    def __init__(
        self, name: str, turn: Callable[[], float], trouble: Trouble, *, is_done: Callable[[], bool] = lambda: True
    ) -> None:
        self._turn = turn
        self._is_done = is_done
        self._trouble = trouble
        self._name = name
        self._bell = WakeSignal()
        self.is_stopping = False
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name=f"{OWN_PREFIX}{name}", daemon=True)

    def start(self) -> None:
        """Raises: RuntimeError where the process may have no more threads."""
        self._thread.start()

    def wake(self) -> None:
        self._bell.ring()

    def stop(self) -> None:
        """Ask for one last turn and the end; does not wait."""
        self.is_stopping = True
        self._bell.ring()

    def end(self, until: float) -> None:
        """Stop, and wait for the last turn until `until` on the process's monotonic clock. No other begins after that:
        a thread that comes back from C++ code while the interpreter ends aborts the process.

        Source: pytorch issue 38228.
        """
        self.stop()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, until - time.monotonic()))
        self._is_given_up = True

    def _run(self) -> None:
        last_turns = 0
        while not self._is_given_up:
            is_last = self.is_stopping
            is_done = False
            try:
                wait_s = self._turn()
                is_done = is_last and self._is_done()
            except BaseException as err:  # the thread's outermost frame: nothing above could act on it
                note_in_thread(self._trouble.inner, self._name, err)
                wait_s = AFTER_ERROR_S
            if is_last:
                last_turns += 1
                if is_done or last_turns >= LAST_TURNS:
                    return
                wait_s = LAST_PAUSE_S
                self._bell.wait(0.0)  # what rang before is done: the pause is for the network
            self._bell.wait(wait_s)
