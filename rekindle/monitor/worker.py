"""A daemon thread that takes turns: work, wait until due or woken, work again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rekindle.monitor.stacks import OWN_PREFIX
from rekindle.monitor.trouble import Trouble

MAX_WAIT_S = 3600.0
LAST_TURNS = 4
LAST_PAUSE_S = 0.5
AFTER_ERROR_S = 5.0  # an error of our own must not become a busy loop


class Worker:
    """Calls `turn` on its own thread; `turn` returns the seconds until it wants to be called again.

    The last turn is repeated a few times until `is_done`: one lost packet must not lose a run's last words.

    Daemon threads do not survive a fork: in a forked child (a data loader's worker) nothing of this runs.
    """

    def __init__(
        self, name: str, turn: Callable[[], float], trouble: Trouble, *, is_done: Callable[[], bool] = lambda: True
    ) -> None:
        self._turn = turn
        self._is_done = is_done
        self._trouble = trouble
        self._name = name
        self._woken = threading.Event()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{OWN_PREFIX}{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping.is_set()

    def stop(self) -> None:
        """Ask for one last turn and the end; does not wait."""
        self._is_stopping.set()
        self._woken.set()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within `timeout_s`."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def end(self, until: float) -> None:
        """Stop, and wait for the last turn until `until` on the process's monotonic clock."""
        self.stop()
        self.join(until - time.monotonic())

    def _run(self) -> None:
        last_turns = 0
        while True:
            is_last = self._is_stopping.is_set()
            is_done = False
            try:
                wait_s = self._turn()
                is_done = is_last and self._is_done()
            except Exception as err:  # the thread's outermost frame: nothing above could act on it
                self._trouble.inner(self._name, err)
                wait_s = AFTER_ERROR_S
            if is_last:
                last_turns += 1
                if is_done or last_turns >= LAST_TURNS:
                    return
                wait_s = LAST_PAUSE_S
                self._woken.clear()
            self._woken.wait(min(max(wait_s, 0.0), MAX_WAIT_S))
            self._woken.clear()
