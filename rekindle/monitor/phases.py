"""`with mon.phase("evaluation")`: other limits hold in there than between two steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from rekindle.mailbox import RunPhase
from rekindle.monitor.clock import Clock
from rekindle.monitor.stall import StallWatch
from rekindle.monitor.state import RunState
from rekindle.monitor.trouble import Trouble

TO_ENTER = (RunPhase.STARTUP, RunPhase.EVALUATION, RunPhase.SAVING)  # start-up: of an epoch's data, too


class Phase(AbstractContextManager[None]):
    """Never raises, not even for a phase that does not exist: that one is told once and changes nothing."""

    def __init__(
        self,
        name: str,
        *,
        stall: StallWatch,
        state: RunState,
        clock: Clock,
        trouble: Trouble,
        on_resumed: Callable[[float | None], None],
    ) -> None:
        self._name = name
        self._stall = stall
        self._state = state
        self._clock = clock
        self._trouble = trouble
        self._on_resumed = on_resumed
        self._entered: tuple[RunPhase, RunPhase, float] | None = None

    def __enter__(self) -> None:
        try:
            if self._name not in TO_ENTER:
                self._trouble.once(
                    "bad_phase",
                    "There is no phase %r to enter: only startup, evaluation and saving",
                    str(self._name)[:100],
                )
                return
            phase, now = RunPhase(self._name), self._clock.monotonic()
            self._entered = (phase, self._stall.phase, now)
            self._on_resumed(self._stall.enter(phase, now))
        except Exception as err:
            self._trouble.inner("phase", err)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered is None:
            return
        try:
            phase, before, entered_at = self._entered
            now = self._clock.monotonic()
            if phase is RunPhase.SAVING:
                self._state.saving_s = now - entered_at
            self._on_resumed(self._stall.leave(phase, before, entered_at, now))
        except Exception as err:
            self._trouble.inner("phase", err)
