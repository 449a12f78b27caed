"""Signals as wishes: SIGTERM is "save at the next agreed step, then stop", SIGUSR1 "save, and go on".

Sources: SageMaker developer guide, StopTrainingJob: SIGTERM, then 120 seconds, then the end; sbatch manual, --signal:
SIGUSR1 to the steps of a job some time before its end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any


class Signals:
    """The handlers only set a flag and call the handler that was there before them.

    Where none was there, the default (death at once) does not happen: after SIGTERM the loop has to look at
    `Monitor.should_stop`. Python runs handlers between two bytecodes of the main thread: a signal that comes while
    that thread is inside a collective is seen when the collective returns.
    """

    def __init__(self) -> None:
        self.wants_stop = False
        self.wants_save = False
        self._previous: dict[int, Any] = {}

    def install(self, numbers: Sequence[int]) -> bool:
        """Whether it could be: Python delivers signals to the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            return False
        for number in numbers:
            self._previous[number] = signal.signal(number, self._on_signal)
        return True

    def restore(self) -> None:
        """Put the previous handlers back, unless someone else has taken over since."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        self._previous = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self.wants_stop = True
        else:
            self.wants_save = True
        previous = self._previous.get(number)
        if callable(previous):
            previous(number, frame)
