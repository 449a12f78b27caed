"""Signals as wishes: SIGTERM is "save at the next agreed step, then stop", any other "save, and go on".

Sources: SageMaker developer guide, StopTrainingJob: SIGTERM, then 120 seconds, then the end; sbatch manual, --signal:
SIGUSR1 to the steps of a job some time before its end; scancel manual, --signal: to all processes of all steps.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, Final

from rekindle.mailbox import ENV_BUS, ENV_MAILBOX
from rekindle.monitor.trouble import logger

ENV_SIGNALS: Final = "REKINDLE_SIGNALS"  # "off": signals are left alone before `start`


class _Early:
    """What came before a monitor was there. One per process."""

    came = False


def hold(env: Mapping[str, str]) -> bool:
    """In a protected Slurm job, keep SIGUSR1 from killing a process whose monitor has not started yet.

    Called when `rekindle.monitor` is imported, so import it before the slow imports. The signal is remembered, and the
    monitor saves as soon as it can. A script's own handler stays, and so does "ignore". Whether the signal is held now.
    """
    number = getattr(signal, "SIGUSR1", None)
    is_protected = env.get("SLURM_JOB_ID") and (env.get(ENV_MAILBOX) or env.get(ENV_BUS))
    if number is None or not is_protected or env.get(ENV_SIGNALS, "").lower() == "off" or not _is_main():
        return False
    if signal.getsignal(number) is not signal.SIG_DFL:
        return False
    signal.signal(number, _held)
    return True


def numbers_of(names: Sequence[str]) -> tuple[signal.Signals, ...]:
    """`USR1` or `SIGUSR1` as numbers; what this platform does not have is told and left out."""
    found: list[signal.Signals] = []
    for name in names:
        number = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
        if isinstance(number, signal.Signals):
            found.append(number)
        else:
            logger.warning("Rekindle's monitor knows no signal %s here", name)
    return tuple(found)


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

    def install(self, numbers: Sequence[int], wishes: Sequence[int] = ()) -> bool:
        """Whether it could be: Python delivers signals to the main thread only.

        wishes: signals for a save that are taken only where the script has no handler of its own for them.
        """
        if not _is_main():
            return False
        for number in numbers:
            self._take(number)
        for wish in wishes:
            if wish not in numbers and signal.getsignal(wish) in (signal.SIG_DFL, signal.SIG_IGN, _held):
                self._take(wish)
                if self._previous[wish] is signal.SIG_DFL:
                    self._previous[wish] = signal.SIG_IGN  # one that comes during the tear-down must not kill
        return True

    def _take(self, number: int) -> None:
        self._previous[number] = signal.signal(number, self._on_signal)
        if self._previous[number] is _held and _Early.came:
            self.wants_save, _Early.came = True, False

    def restore(self) -> None:
        """Put the previous handlers back, unless someone else has taken over since."""
        if not _is_main():
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
        if callable(previous) and previous is not _held:
            previous(number, frame)


def _held(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler's signature
    _Early.came = True


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
