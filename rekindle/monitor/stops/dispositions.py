"""What the kernel does with a signal, saved and put back from any thread.

`signal.signal` is for the main thread alone, which may be stuck in a collective just when SIGTERM has to end the
process after all; without this it lives on until SIGKILL (tests/monitor/test_forks.py, the ranks that are stuck).
`sigaction` of the C library is for any thread, and the only use of ctypes for signals. Its struct is kept as it was
written, whatever its layout, so that the flags of a handler in C come back too. Source: sigaction(2).
"""

from __future__ import annotations

import functools
import signal
from typing import Any, Final

SIZE_BYTES: Final = 1024  # struct sigaction has 152 bytes in glibc on x86-64, 140 in musl, 16 on macOS


class Disposition:
    """What holds for one signal at the moment when this is made."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.in_python = signal.getsignal(number)
        self.has_c_handler = has_c_handler(number)
        self._library = _library()
        self._saved: Any = None
        if self._library is not None:
            self._saved = _buffer()
            if self._library.sigaction(number, None, self._saved) != 0:
                self._saved = None

    @property
    def is_default(self) -> bool:
        """The default holds: no handler, neither in Python nor in C, and not ignored."""
        return self.in_python is signal.SIG_DFL and not self.has_c_handler

    @property
    def is_chained(self) -> bool:
        """A Python function: it is called by the handler that replaced it."""
        return callable(self.in_python) and not isinstance(self.in_python, signal.Handlers)

    def put_back(self) -> bool:
        """Whether the kernel's disposition is again what it was. For any thread; Python's own table stays as it is."""
        if self._library is None or self._saved is None:
            return False
        return bool(self._library.sigaction(self.number, self._saved, None) == 0)


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


def _buffer() -> Any:
    import ctypes

    return ctypes.create_string_buffer(SIZE_BYTES)


@functools.cache
def _library() -> Any:
    """The C library; None where there is none that can be called."""
    try:
        import ctypes

        library = ctypes.CDLL(None)
        library.sigaction.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    except (ImportError, AttributeError, OSError, TypeError):
        return None
    return library
