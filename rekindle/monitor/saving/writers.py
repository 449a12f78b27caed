"""Threads that a save function began: whether they may still write."""

from __future__ import annotations

import os
import sys
import threading
from typing import Final

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


def may_write(thread: threading.Thread) -> bool:
    """Whether it lives, and does not wait for work or for a message, as the threads of pools and of loaders do."""
    frame = sys._current_frames().get(thread.ident or 0) if thread.is_alive() else None
    if frame is None:
        return False
    for depth in range(IDLE_DEPTH):
        if frame is None:
            return True
        if (os.path.basename(frame.f_code.co_filename), frame.f_code.co_name) in (_IDLE if depth else _IDLE_ON_TOP):
            return False
        frame = frame.f_back
    return True
