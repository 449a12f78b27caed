"""The signals of one monitor: what they ask for, whether the script has learned of it, and what is owed afterwards."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rekindle.monitor.base.guard import note
from rekindle.monitor.base.run import Run
from rekindle.monitor.liveness.stall import StallWatch
from rekindle.monitor.stops.signals import Signals
from rekindle.monitor.stops.termination import Termination, TerminationState
from rekindle.monitor.stops.wakeup import Wakeup

if TYPE_CHECKING:  # where signals are taken
    from rekindle.monitor.liveness.peers import LocalWorkers

WISHES: Final = (signal.SIGUSR1,)  # Slurm's, for a save: `scancel --signal`, `sbatch --signal`


class Stopping:
    """`begin`, `end` and `forked` are for the thread that calls them on the monitor; the rest is for any thread.

    is_sealed: whether no save waits for its manifest. can_save: whether an emergency save is possible at all.
    """

    def __init__(
        self,
        run: Run,
        *,
        stall: StallWatch,
        can_save: Callable[[], bool],
        is_sealed: Callable[[], bool],
    ) -> None:
        self._state, self._clock, self._trouble = run.state, run.clock, run.trouble
        self._stall = stall
        self._can_save = can_save
        self._is_sealed = is_sealed
        self._wakeup = Wakeup(run.trouble)
        self.signals = Signals(self._wakeup.handled)
        self._workers: LocalWorkers | None = None
        self._termination = Termination(
            signals=self.signals,
            clock=run.clock,
            grace_s=run.config.term_grace_s,
            situation=self._situation,
            moved_at=lambda: stall.marked_at,
        )
        self._is_saving = False
        self._is_read = False  # the script has read `should_stop` as true
        self._unheeded_steps = 0  # steps that it did since then without reading it
        self.should_stop = False  # all ranks have agreed to stop

    def begin(self, signals: Sequence[signal.Signals], *, env: Mapping[str, str], takes_slurms: bool) -> None:
        """Take the signals; see `LiveMonitor.begin`. What cannot be taken is left as it is, with one warning."""
        wishes = WISHES if takes_slurms else ()
        if not (signals or wishes):
            return
        if threading.current_thread() is not threading.main_thread():
            self._trouble.once("signals", "Signals are left alone: this is not the main thread")
            return
        hears = signal.SIGTERM in signals and self._wakeup.begin(self._termination.turn)
        if hears:
            from rekindle.monitor.liveness.peers import LocalWorkers

            self._workers = LocalWorkers(env)
            self._wakeup.on(signal.SIGTERM, self._termination.heard)
        elif signal.SIGTERM in signals:
            self._trouble.once("signals", "SIGTERM is left alone: the process may have no more threads or files")
        self.signals.install([number for number in signals if hears or number != signal.SIGTERM], wishes)

    def tell(self) -> bool:
        """`should_stop`, for the script: from now on it knows."""
        if self.should_stop:
            self._is_read = True
        return self.should_stop

    def stepped(self) -> None:
        if self.should_stop and not self._is_read:
            self._unheeded_steps += 1

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around an emergency save, which a SIGTERM waits for."""
        self._is_saving = True
        try:
            yield
        finally:
            self._is_saving = False

    def forget_save(self) -> None:
        """What a signal for a save asked for is being done, or cannot be."""
        self.signals.wants_save = False

    @property
    def owes_the_end(self) -> bool:
        """Whether a SIGTERM was put off that the script never learned of."""
        return self.signals.wants_stop and not self._is_read and self.signals.can_give_back(signal.SIGTERM)

    def follow(self, before: Stopping) -> None:
        """Another monitor of this process is about to end, and this one replaces it: what it owes is owed here."""
        if before.owes_the_end:
            self.signals.wants_stop, before.signals.wants_stop = True, False

    def end(self, *, is_exit: bool) -> None:
        """Put all handlers back. A SIGTERM that the script never learned of has its effect now, unless it exits."""
        self._termination.end()
        if self.owes_the_end and not is_exit:
            self.signals.give_back(signal.SIGTERM)
        self.signals.restore()
        self._wakeup.end()

    def forked(self) -> None:
        """In a forked child: put the handlers back that were there before the monitor."""
        self._termination.end()
        for forget in (self._wakeup.forked, self.signals.forked):
            try:
                forget()
            except BaseException as err:
                note(self._trouble.inner, "fork", err)

    def _situation(self) -> TerminationState:
        workers = self._workers
        waits = not (self._is_read or self._is_saving)
        return TerminationState(
            has_read_stop=self._is_read,
            is_stopping=self.should_stop,
            unheeded_steps=self._unheeded_steps,
            is_sealed=self._is_sealed(),
            is_saving=self._is_saving,
            can_save=self._can_save(),
            has_stepped=self._state.step is not None,
            phase=self._stall.phase,
            silent_s=self._clock.monotonic() - self._stall.marked_at,
            usual_step_s=self._usual_step_s(),
            is_elastic=workers is not None and workers.are_elastic,
            is_peer_gone=workers.is_one_gone() if waits and workers is not None else None,
        )

    def _usual_step_s(self) -> float | None:
        """What nine of ten steps did not exceed lately: one compilation or evaluation among them is not usual."""
        steps = sorted(self._state.durations.copy())
        return steps[-1 - len(steps) // 10] if steps else None
