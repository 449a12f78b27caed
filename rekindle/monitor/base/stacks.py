"""The stacks of this process's threads as bounded text, and whether a thread works or waits."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Final

MAX_FRAMES = 40  # the innermost ones: where it hangs is at the end of the stack
OWN_PREFIX = "rekindle-"  # of our own threads' names, which are left out
_lock = threading.RLock()  # a signal handler may look while its own thread does


def _current_frames() -> Mapping[int, FrameType]:
    """Each thread's frame, read without the garbage collector on Python 3.11.

    There `sys._current_frames` creates frames while it holds the interpreter's list of threads. Where that starts the
    collector, and a finalizer lets another thread run that begins or ends one, the whole process stands for ever.
    Source: CPython issue 106883; 3.10 creates no frames there, from 3.12 on the collector runs between bytecodes only.
    """
    if sys.version_info[:2] != (3, 11):
        return sys._current_frames()
    with _lock:  # or another thread would switch the collector on again meanwhile
        is_on = gc.isenabled()
        try:
            gc.disable()
            return sys._current_frames()
        finally:
            if is_on:
                gc.enable()


def forked() -> None:
    """In a forked child: another thread of the parent may have held the lock."""
    global _lock
    _lock = threading.RLock()


def capture_stacks(*, limit_chars: int) -> str:
    """All threads' stacks, at most `limit_chars`; main thread last, innermost frame last.

    So the end of the text is where the training thread hangs, and that end survives every cut.
    Source lines are not read: the file system may be the very thing that hangs.
    """
    frames = _current_frames()
    main_id = threading.main_thread().ident
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    order = sorted(frames, key=lambda ident: (ident == main_id, ident))
    parts = [
        f"Thread {names.get(ident, str(ident))}:\n{_format(frames[ident])}"
        for ident in order
        if not names.get(ident, "").startswith(OWN_PREFIX)
    ]
    text = "\n".join(parts)
    return text if len(text) <= limit_chars else f"[cut]\n{text[6 - limit_chars :]}"


def stack_of(thread_id: int) -> str:
    """One thread's stack in the same shape; empty where there is no such thread."""
    frame = _current_frames().get(thread_id)
    return "" if frame is None else f"Thread MainThread:\n{_format(frame)}"


def _name(code: CodeType) -> str:
    if sys.version_info >= (3, 11):
        return code.co_qualname
    return code.co_name


def _format(frame: FrameType | None) -> str:
    lines: list[str] = []
    while frame is not None and len(lines) < MAX_FRAMES:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {_name(code)}')
        frame = frame.f_back
    return "\n".join(reversed(lines)) + "\n"


# Functions in which a thread waits for its next work: (file, function). A pool's waits in C; the last is tqdm's, whose
# first bar begins a thread that looks at all bars from time to time (tqdm/_monitor.py).
_IDLE: Final = frozenset(
    {
        *(("queue.py", "get"), ("connection.py", "poll"), ("connection.py", "wait"), ("connection.py", "recv")),
        *(("selectors.py", "select"), ("socket.py", "accept"), ("socketserver.py", "serve_forever")),
        ("_monitor.py", "run"),
    }
)
_IDLE_ON_TOP: Final = _IDLE | {("thread.py", "_worker")}
IDLE_DEPTH: Final = 5  # frames from the top that are looked at


def is_working(thread: threading.Thread) -> bool:
    """Whether the thread is alive and not waiting for work or a message, as threads of pools and of loaders do.

    A thread that works may be writing a checkpoint.
    """
    frame = _current_frames().get(thread.ident or 0) if thread.is_alive() else None
    if frame is None:
        return False
    for depth in range(IDLE_DEPTH):
        if frame is None:
            return True
        if (os.path.basename(frame.f_code.co_filename), frame.f_code.co_name) in (_IDLE if depth else _IDLE_ON_TOP):
            return False
        frame = frame.f_back
    return True
