"""Hears signals while the main thread is stuck in a C call.

A handler of Python's runs between two bytecodes of the main thread, so not while that thread waits in a collective.
The interpreter's own handler in C runs at once and writes the signal's number to a file descriptor (`set_wakeup_fd`);
the thread `rekindle-signals` reads it there. Source: Python library reference, signal.set_wakeup_fd.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from typing import Final

from rekindle.monitor.base.guard import note_in_thread
from rekindle.monitor.base.stacks import OWN_PREFIX
from rekindle.monitor.base.trouble import Trouble

_FROM_PYTHON: Final = 0x80  # marks a byte written by our handler in Python; signals' numbers are below


class Wakeup:
    """`begin`, `end` and `forked` are for the main thread. One per monitor, and at most one per process hears."""

    def __init__(self, trouble: Trouble) -> None:
        self._trouble = trouble
        self._reads: int | None = None
        self._writes: int | None = None
        self._on_signal: dict[int, Callable[[bool], None]] = {}
        self._turn: Callable[[], float | None] = lambda: None

    def begin(self, turn: Callable[[], float | None]) -> bool:
        """Start the thread; whether that was possible. Raises nothing.

        turn: called on the thread after each signal, and again after the seconds that it returned (None: never).
        """
        self._turn = turn
        try:
            reads, writes = os.pipe()
        except OSError as err:  # no descriptor left
            self._trouble.inner("signals", err)
            return False
        try:
            os.set_blocking(writes, False)
            threading.Thread(target=self._listen, args=(reads,), name=f"{OWN_PREFIX}signals", daemon=True).start()
        except (OSError, RuntimeError, MemoryError) as err:  # no thread left
            os.close(reads)
            os.close(writes)
            self._trouble.inner("signals", err)
            return False
        self._reads, self._writes = reads, writes
        taken = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        if taken != -1:
            signal.set_wakeup_fd(taken)
        return True

    def on(self, number: int, call: Callable[[bool], None]) -> None:
        """Call it on the thread when the signal comes; with True where our handler in Python has run for it."""
        self._on_signal[number] = call

    def handled(self, number: int) -> None:
        """For our handlers in Python: let the thread know, also where the script has the wakeup descriptor."""
        writes = self._writes
        if writes is None:
            return
        try:
            os.write(writes, bytes((number | _FROM_PYTHON,)))
        except OSError:  # full: then the thread has enough to read
            return

    def end(self) -> None:
        """The thread ends. From another thread than the main one it is left waiting: the descriptor is still in use."""
        self._on_signal = {}
        if self._writes is None or not is_main_thread():
            return
        writes, self._writes = self._writes, None
        self._give_up_descriptor(writes)
        os.close(writes)  # the listener reads the end, and goes

    def forked(self) -> None:
        """In a forked child: the pipe is the parent's, who must not hear the child's signals."""
        self._on_signal = {}
        reads, writes, self._reads, self._writes = self._reads, self._writes, None, None
        if writes is None:
            return
        self._give_up_descriptor(writes)
        os.close(writes)
        if reads is not None:
            os.close(reads)

    def _give_up_descriptor(self, ours: int) -> None:
        set_now = signal.set_wakeup_fd(-1)
        if set_now not in (-1, ours):
            signal.set_wakeup_fd(set_now)

    def _listen(self, reads: int) -> None:
        poll = select.poll()
        poll.register(reads, select.POLLIN)
        wait_s: float | None = None
        while True:
            try:
                if poll.poll(None if wait_s is None else wait_s * 1000):
                    heard = os.read(reads, 512)
                    if not heard:
                        break
                    for byte in heard:
                        call = self._on_signal.get(byte & ~_FROM_PYTHON)
                        if call is not None:
                            call(bool(byte & _FROM_PYTHON))
                wait_s = self._turn()
            except BaseException as err:  # one error must not make the process deaf
                note_in_thread(self._trouble.inner, "signals", err)
                wait_s = 1.0
        self._reads = None
        os.close(reads)


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
