"""What the kernel does with SIGTERM, kept while the monitor handles it, and put back from any thread.

`signal.signal` is for the main thread alone, which may be stuck in a collective just when SIGTERM has to end the
process after all. `faulthandler` is the standard library's way: `register` keeps what holds for a signal, whatever it
is, and `unregister` puts it back from any thread. Without it such a rank would live on until it is killed, 30 s after
the signal under torchrun and 120 s in a training job, instead of ending within 3 to 15 s
(tests/monitor/test_forks.py). Source: CPython, Modules/faulthandler.c, faulthandler_register, faulthandler_unregister.
"""

from __future__ import annotations

import faulthandler
import signal
from typing import Final

STDERR: Final = 2


class Disposition:
    """What holds for one signal at the moment when this is made."""

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
