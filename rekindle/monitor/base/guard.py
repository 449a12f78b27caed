"""Keeps errors of the monitor out of training.

Frameworks raise errors that do not derive from Exception (`torch.distributed.checkpoint.CheckpointException` derives
from BaseException), so "everything" is BaseException here. Two kinds of errors are the script's and pass: those that
end a program (`PASS`), and those that a signal handler of the script raises while the main thread happens to be in our
code: a time-out by SIGALRM, or PyTorch's report that a data-loader worker has died (SIGCHLD).
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import CodeType
from typing import Any, Final, ParamSpec, TypeVar, cast

PASS: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)
MAX_FRAMES: Final = 2000  # of a traceback; above the interpreter's default limit of 1,000 nested calls

_RUN: Final = object()

_P = ParamSpec("_P")
_T = TypeVar("_T")


def must_pass(err: BaseException) -> bool:
    """Whether an error that was caught in our code is the script's own and has to be raised again."""
    return isinstance(err, PASS) or _is_from_a_signal_handler(err)


def guarded(where: str, *, asleep: Any = _RUN, failed: Any = None) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorates a method of the public face: what fails inside is counted under `where`, and `failed` is returned.

    asleep: returned at once, without a call, where the monitor has ended or this is a forked child; by default the
    method runs there too. Either value may be a class, which is then called without arguments. The method's class has
    `_is_asleep` and `_inner(where, err)`.
    """

    def wrap(method: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(method)
        def inside(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            monitor: Any = args[0]
            try:
                if asleep is not _RUN and monitor._is_asleep:
                    return cast(_T, _value(asleep))
                return method(*args, **kwargs)
            except BaseException as err:
                if must_pass(err):
                    raise
                note(monitor._inner, where, err)
                return cast(_T, _value(failed))

        inside.guarded_as = where  # type: ignore[attr-defined]  # read by the test that all of the face is guarded
        return inside

    return wrap


def _value(given: Any) -> Any:
    return given() if isinstance(given, type) else given


def note(inner: Callable[[str, BaseException], None], where: str, err: BaseException) -> None:
    """Count an error of ours. Raises only what is the script's own."""
    try:
        inner(where, err)
    except BaseException as again:
        if must_pass(again):
            raise


def note_in_thread(inner: Callable[[str, BaseException], None], where: str, err: BaseException) -> None:
    """The same in the outermost frame of a thread of ours, which nothing may end: not a log handler's SystemExit."""
    with suppress(BaseException):
        inner(where, err)


def _is_from_a_signal_handler(err: BaseException) -> bool:
    """Whether the error left a Python signal handler, which only the main thread runs."""
    if threading.current_thread() is not threading.main_thread():
        return False
    codes: set[CodeType] | None = None
    trace = err.__traceback__
    for _ in range(MAX_FRAMES):
        if trace is None:
            return False
        if codes is None:
            codes = _handlers_code()
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _handlers_code() -> set[CodeType]:
    found: set[CodeType] = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if not callable(handler) or isinstance(handler, signal.Handlers):
            continue
        while isinstance(handler, functools.partial):
            handler = handler.func
        handler = getattr(handler, "__func__", handler)
        code = getattr(handler, "__code__", None)
        if code is None:
            code = getattr(vars(type(handler)).get("__call__"), "__code__", None)
        if isinstance(code, CodeType):
            found.add(code)
    return found


def hide_from_compiler(owner: object, names: Sequence[str]) -> None:
    """Keep torch.compile from tracing these methods: where a compiled function calls them, that is one graph break.

    Without this they are compiled too, and again for each new state of theirs. Changes nothing where torch is not
    loaded or cannot do that; no error.
    Source: torch.compiler.disable is there from torch 2.1 on; its argument `reason` only from 2.7 on.
    """
    disable = getattr(getattr(sys.modules.get("torch"), "compiler", None), "disable", None)
    if disable is None:
        return
    try:
        for name in names:
            setattr(owner, name, disable(getattr(owner, name)))
    except PASS:
        raise
    except BaseException:  # of torch's own: a graph more is no reason to watch nothing
        return
