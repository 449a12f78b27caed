"""The stretches of every attempt, and the timers that end them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from localcloud.aws.clock import Clock, Timer
from simulation.cloud.store import MemoryObjects
from simulation.runs.monitor import Monitor
from simulation.runs.saves import Saves
from simulation.runs.truth import Attempt, TrainingSpan

_FAILED: Final = 'AlgorithmError: ExecuteUserScriptError:\nExitCode 1\nErrorMessage "{text}"'


class Spans:
    """Where each attempt is, what its monitor says and what it saves. A later call in its place cancels a timer."""

    def __init__(self, clock: Clock, objects: MemoryObjects, monitor: Monitor) -> None:
        self.clock, self.objects, self.monitor = clock, objects, monitor
        self.saves = Saves(clock, objects, monitor)
        self.attempts: dict[str, Attempt] = {}
        self._timers: dict[tuple[str, str], Timer] = {}

    def gets_over(self, attempt: Attempt, reached: int) -> None:
        """What was wrong with it; what is wrong beside that counts from now on."""
        run, now = attempt.run, self.clock.now()
        run.is_well_again(now)
        if attempt.spikes_on:
            run.falls_ill("spiking", now, reached=reached)
        elif attempt.stretches[-1].pace > 1.0:
            run.falls_ill("slow", now, reached=reached)

    def enter(self, attempt: Attempt, base: int, **changes: Any) -> None:
        """A new stretch from now on, in which its monitor writes; what else is not named stays as it was."""
        now = self.clock.now()
        if not attempt.stretches:
            attempt.stretches.append(TrainingSpan(at=now, base=base, **changes))
            return
        changes.setdefault("is_mute", False)
        attempt.stretches.append(replace(attempt.stretches[-1], at=now, base=base, **changes))

    def freeze_stretch(self, attempt: Attempt, *, moves: bool) -> None:
        if attempt.stretches and attempt.stretches[-1].moves:
            self.enter(attempt, attempt.step_at(self.clock.now()), moves=moves)

    def later(self, attempt: Attempt, what: str, delay: timedelta, call: Callable[[], None]) -> None:
        self.cancel(attempt, what)
        self._timers[attempt.name, what] = self.clock.after(delay, call, label=f"{attempt.name} {what}")

    def cancel(self, attempt: Attempt, what: str) -> None:
        timer = self._timers.pop((attempt.name, what), None)
        if timer is not None:
            timer.cancel()

    def cancel_all(self, attempt: Attempt) -> None:
        for name, what in [key for key in self._timers if key[0] == attempt.name]:
            del name
            self.cancel(attempt, what)


def output_of(attempt: Attempt, text: str) -> str:
    """As the platform passes on what the container, or the job's own output, says."""
    return text if attempt.run.spec.platform == "slurm" else _FAILED.format(text=text)
