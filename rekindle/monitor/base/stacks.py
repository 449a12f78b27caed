"""What every thread of this process is doing, as bounded text."""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType

MAX_FRAMES = 40  # the innermost ones: where it hangs is at the end of the stack
OWN_PREFIX = "rekindle-"  # our own threads' names; they are no news


def capture_stacks(*, limit_chars: int) -> str:
    """All threads' stacks, at most `limit_chars`; main thread last, innermost frame last.

    So the end of the text is where the training thread hangs, and that end survives every cut.
    Source lines are not read: the file system may be the very thing that hangs.
    """
    frames = sys._current_frames()
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
    frame = sys._current_frames().get(thread_id)
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
