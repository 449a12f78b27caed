"""`with mon.phase("evaluation")`: other limits hold in there than between two steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from rekindle.monitor.base.guard import must_pass, note
from rekindle.monitor.base.run import Run
from rekindle.monitor.liveness.stall import StallWatch
from rekindle.protocol.mailbox import RunPhase

ALIASES = {"validation": RunPhase.EVALUATION, "checkpoint": RunPhase.SAVING}
TO_ENTER = (RunPhase.STARTUP, RunPhase.EVALUATION, RunPhase.SAVING)  # start-up: of an epoch's data, too


class Phase(AbstractContextManager[None]):
    """Never raises, not even for a phase that does not exist: that one is logged once and changes nothing."""

    def __init__(
        self,
        run: Run,
        name: str,
        *,
        stall: StallWatch,
        on_resumed: Callable[[float | None], None],
    ) -> None:
        self._name = ALIASES.get(name, name)
        self._stall = stall
        self._state, self._clock, self._trouble = run.state, run.clock, run.trouble
        self._on_resumed = on_resumed
        self._entries: list[int] = []  # the same object may be entered again before it is left

    def __enter__(self) -> None:
        try:
            if self._name not in TO_ENTER:
                self._trouble.once(
                    "bad_phase",
                    "There is no phase %r to enter: only startup, evaluation and saving",
                    str(self._name)[:100],
                )
                return
            entry, resumed_s = self._stall.enter(RunPhase(self._name), self._clock.monotonic())
            self._entries.append(entry)
            self._on_resumed(resumed_s)
        except BaseException as err:
            if must_pass(err):
                raise
            note(self._trouble.inner, "phase", err)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._entries:
            return
        try:
            took_s, resumed_s = self._stall.leave(self._entries.pop(), self._clock.monotonic())
            if self._name == RunPhase.SAVING:
                self._state.saving_s = took_s
            self._on_resumed(resumed_s)
        except BaseException as err:
            if must_pass(err):
                raise
            note(self._trouble.inner, "phase", err)
