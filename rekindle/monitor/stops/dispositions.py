"""What the kernel does with a signal, saved and put back from any thread.

`signal.signal` is for the main thread alone, which may be stuck in a collective just when a signal has to get its old
effect back. `sigaction` of the C library is not. Its struct is kept as it was written, whatever its layout, so that the
flags of a handler in C come back too. Source: sigaction(2); CPython, Modules/signalmodule.c.
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
    """Whether a function in C has the signal although Python does not know: faulthandler.register, a C++ library."""
    known = signal.getsignal(number)
    if known is None:
        return True
    if known is not signal.SIG_DFL:
        return False
    library = _library()
    if library is None:
        return False
    try:
        import ctypes

        ask = ctypes.pythonapi.PyOS_getsig
        ask.restype, ask.argtypes = ctypes.c_void_p, [ctypes.c_int]
        return ask(number) not in (None, 0, 1)  # SIG_DFL and SIG_IGN; everything else is an address
    except (AttributeError, OSError):
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
