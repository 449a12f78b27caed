"""Signals as wishes: SIGTERM is "save at the next agreed step, then stop", any other "save, and go on".

Sources: SageMaker developer guide, StopTrainingJob: SIGTERM, then 120 seconds, then SIGKILL; sbatch manual, --signal:
SIGUSR1 to the steps of a job some time before its end; scancel manual, --signal: to all processes of all steps.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

from rekindle.monitor.base.trouble import logger
from rekindle.monitor.stops.wakeup import is_main_thread

STDERR: Final = 2


def numbers_of(names: Sequence[str]) -> tuple[signal.Signals, ...]:
    """`USR1` or `SIGUSR1` as numbers. What this platform does not have is logged and left out."""
    found: list[signal.Signals] = []
    for name in names:
        number = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
        if isinstance(number, signal.Signals):
            found.append(number)
        else:
            logger.warning("Rekindle's monitor knows no signal %s here", name)
    return tuple(found)


class Disposition:
    """What holds for one signal at the moment when this is made, kept while the monitor handles it, and put back after.

    `signal.signal` is for the main thread alone, which may be stuck in a collective just when SIGTERM has to end the
    process after all. `faulthandler` is the standard library's way: `register` keeps what holds for a signal, whatever
    it is, and `unregister` puts it back from any thread. Without it such a rank would live on until it is killed, 30 s
    after the signal under torchrun and 120 s in a training job, instead of ending within 3 to 15 s
    (tests/monitor/test_forks.py). Source: CPython, Modules/faulthandler.c, faulthandler_register and _unregister.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.in_python = signal.getsignal(number)
        self.has_c_handler = has_c_handler(number)
        self._is_kept = False
        self._is_dump = False  # the script has its stacks dumped at this signal

    @property
    def is_default(self) -> bool:
        """The default holds: no handler, neither in Python nor in C, and not ignored."""
        return self.in_python is signal.SIG_DFL and not self.has_c_handler

    @property
    def is_chained(self) -> bool:
        """A Python function: it is called by the handler that replaced it."""
        return callable(self.in_python) and not isinstance(self.in_python, signal.Handlers)

    def keep(self) -> None:
        """For `put_back`, right before a handler in Python replaces it: SIGTERM's default, and what C handles."""
        if self.number == signal.SIGTERM and self.in_python in (signal.SIG_DFL, None) and not self._is_kept:
            self._is_dump |= bool(faulthandler.unregister(self.number))  # type: ignore[func-returns-value]
            faulthandler.register(self.number, file=STDERR, chain=True)
            self._is_kept = True

    def put_back(self) -> bool:
        """Whether the kernel's disposition is again what it was. For any thread; Python's own table stays as it is."""
        if not self._is_kept:
            return False
        self._is_kept = False
        faulthandler.unregister(self.number)
        if self._is_dump:  # to where it went, as far as that can be known
            faulthandler.register(self.number, file=STDERR, chain=True)
        return True


def has_c_handler(number: int) -> bool:
    """Whether a function in C has the signal although Python does not know: faulthandler.register, a C++ library.

    Source: proc(5), status (SigCgt). False where there is no such file, as on macOS.
    """
    known = signal.getsignal(number)
    if known is not signal.SIG_DFL:
        return known is None
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            caught = next(line.split()[1] for line in status if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (number - 1) & 1)
    except (OSError, ValueError, IndexError, StopIteration):
        return False


class Signals:
    """The handlers only set a flag and call the handler that was there before them.

    Where none was there, the default (death at once) is put off: see `termination` for how long. Python runs handlers
    between two bytecodes of the main thread; what has to happen while that thread is stuck is on `wakeup`'s thread.

    handled: called in the handler, on the main thread, with the signal's number. It must not wait.
    """

    def __init__(self, handled: Callable[[int], object]) -> None:
        self.wants_stop = False
        self.wants_save = False
        self._handled = handled
        self._previous: dict[int, Disposition] = {}
        self._pid = os.getpid()
        self._is_over = False
        self._ignored_after: frozenset[int] = frozenset()

    @property
    def numbers(self) -> frozenset[int]:
        """The signals that are taken now."""
        return frozenset(self._previous)

    def install(self, numbers: Sequence[int], wishes: Sequence[int] = ()) -> None:
        """On the main thread. wishes: for a save; taken only where the script has no handler of its own for them."""
        self._ignored_after = frozenset(wishes)
        for number in numbers:
            if number != signal.SIGTERM and has_c_handler(number):
                logger.info("Signal %d has a handler in C (faulthandler?), which stays: it asks for no save", number)
            else:
                self._take(number)
        for wish in wishes:
            is_free = signal.getsignal(wish) in (signal.SIG_DFL, signal.SIG_IGN) and not has_c_handler(wish)
            if wish not in numbers and is_free:
                self._take(wish)

    def _take(self, number: int) -> None:
        if number in self._previous:
            return
        before = Disposition(number)
        owner = getattr(before.in_python, "__self__", None)
        if isinstance(owner, Signals) and owner._is_over:  # ended off the main thread: its handler is still there
            before = owner._previous.get(number, before)
        self._previous[number] = before
        before.keep()
        signal.signal(number, self._on_signal)

    def is_ours(self, number: int) -> bool:
        """Whether the handler is still ours: the script may have replaced it since."""
        return number in self._previous and signal.getsignal(number) == self._on_signal

    def can_give_back(self, number: int) -> bool:
        """Whether the signal had an effect of its own before us, other than a Python handler, which we call."""
        before = self._previous.get(number)
        return before is not None and not before.is_chained and before.in_python is not signal.SIG_IGN

    def give_back(self, number: int) -> bool:
        """The signal happens again, now with the effect that it had before us. Whether that was possible.

        For any thread. Where the effect is the default one this call does not return: the process dies of the signal,
        as it would have without us.
        """
        before = self._previous.get(number)
        if before is None or not self.can_give_back(number) or not self.is_ours(number):
            return False
        if not before.put_back():
            if not is_main_thread() or before.in_python is None:
                return False
            signal.signal(number, before.in_python)
        os.kill(os.getpid(), number)
        return True

    def restore(self) -> None:
        """Put the previous handlers back, unless the script has replaced ours since.

        One of `wishes` that had no handler is ignored from now on: one that comes while the run is torn down must not
        kill. From another thread than the main one what can be put back is what the kernel knows.
        """
        self._is_over = True
        if is_main_thread():
            self._put_back()
            return
        for number, before in self._previous.items():
            if self.is_ours(number):
                before.put_back()

    def forked(self) -> None:
        """In a forked child: as `restore`. A data loader's worker ignores what asks its trainer for a save."""
        self._ignored_after = self.numbers - {signal.SIGTERM}
        self.restore()

    def _put_back(self) -> None:
        for number, before in list(self._previous.items()):
            if self.is_ours(number):
                self._set(number, before)
            self._previous.pop(number, None)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_over or os.getpid() != self._pid:  # a child that C code forked, or an end on another thread
            self._late(number, frame)
            return
        if number == signal.SIGTERM:
            self.wants_stop = True
        else:
            self.wants_save = True
        self._handled(number)
        self._chain(self._previous.get(number), number, frame)

    def _late(self, number: int, frame: FrameType | None) -> None:
        before = self._previous.get(number)
        if before is None or signal.getsignal(number) != self._on_signal:  # a later handler calls ours
            self._chain(before, number, frame)
            return
        self._set(number, before)
        if before.is_chained:
            self._chain(before, number, frame)
        elif before.in_python is not signal.SIG_IGN:
            os.kill(os.getpid(), number)

    def _set(self, number: int, before: Disposition) -> None:
        """Raises: ValueError off the main thread."""
        before.put_back()
        if number in self._ignored_after and before.is_default:
            signal.signal(number, signal.SIG_IGN)
        elif before.in_python is not None and not before.has_c_handler:
            signal.signal(number, before.in_python)

    @staticmethod
    def _chain(before: Disposition | None, number: int, frame: FrameType | None) -> None:
        previous: Any = None if before is None else before.in_python
        if before is not None and before.is_chained:
            previous(number, frame)
