"""SIGTERM as a wish: save at the next step, then stop.

Source: SageMaker developer guide, StopTrainingJob: SIGTERM, then 120 seconds, then the end.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Sigterm:
    """The handler only sets a flag and calls the handler that was there before it.

    Where none was there, the default (death at once) does not happen: the loop has to look at `Monitor.should_stop`.
    """

    def __init__(self) -> None:
        self.is_received = False
        self._previous: Any = None
        self._is_installed = False

    def install(self) -> bool:
        """Whether it could be: Python delivers signals to the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            return False
        self._previous = signal.signal(signal.SIGTERM, self._on_signal)
        self._is_installed = True
        return True

    def restore(self) -> None:
        """Put the previous handler back, unless someone else has taken over since."""
        if not self._is_installed or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._previous if self._previous is not None else signal.SIG_DFL)
        self._is_installed = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.is_received = True
        if callable(self._previous):
            self._previous(number, frame)
