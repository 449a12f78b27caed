"""Has the run stopped moving? The watchdog's pure half: no threads, the clock is an argument.

`look` runs on the watchdog's thread, all else on the training thread. They share only whole values (one tuple, one
flag), so no lock is taken on the training thread. Where both race, the worst outcome is a stall report that is
followed at once by "resumed".

What it cannot see: a process that is itself stopped (SIGSTOP, a frozen host) or whose main thread holds the
interpreter lock forever. Then the *other* ranks, which wait for it in their barrier, report, and the missing heartbeat
tells the service's sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Final

from rekindle.detectors.hang import HangLimit
from rekindle.monitor.base.guard import guarded
from rekindle.monitor.base.run import Run
from rekindle.protocol.mailbox import RunPhase

BUSY_AFTER_S: Final = 5.0  # of silence, from when on it is asked what the other ranks do


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Silent for `silent_s` in `phase`, where `limit_s` was the learned limit."""

    phase: RunPhase
    silent_s: float
    limit_s: float


class StallWatch:
    """Seconds are of one monotonic clock. Each stall is reported once; any movement re-arms."""

    def __init__(self, limits: Mapping[RunPhase, HangLimit], *, now: float) -> None:
        self._limits = limits
        self._mark: tuple[RunPhase, float] = (RunPhase.STARTUP, now)
        self._between = RunPhase.STARTUP  # the phase outside of all that were entered
        self._entered: dict[int, tuple[RunPhase, float]] = {}  # those not left yet, the newest last
        self._next_entry = 0
        self._is_partial = True
        self._excused_at = now  # when it last waited for what another rank had announced
        self.is_stalled = False

    @property
    def phase(self) -> RunPhase:
        return self._mark[0]

    @property
    def marked_at(self) -> float:
        return self._mark[1]

    def stepped(self, now: float) -> tuple[float | None, float | None]:
        """A step is done. Returns (its duration or None where it was not a whole one, silent_s of an ended stall)."""
        phase, before = self._mark
        duration = None if self._is_partial or phase is not RunPhase.TRAINING else now - before
        self._between = RunPhase.TRAINING
        resumed = self._moved(now)
        self._is_partial = bool(self._entered)
        if duration is not None:
            self._limits[RunPhase.TRAINING].update(duration)
        return duration, resumed

    def alive(self, now: float) -> float | None:
        """Something moved that is not a step. Returns silent_s of a stall that ended by it."""
        self._is_partial = True
        return self._moved(now)

    def enter(self, phase: RunPhase, now: float) -> tuple[int, float | None]:
        """Returns (what `leave` needs, silent_s of an ended stall). Phases may overlap, and end in any order."""
        self._next_entry = entry = self._next_entry + 1
        self._entered[entry] = (phase, now)
        self._is_partial = True
        return entry, self._moved(now)

    def leave(self, entry: int, now: float) -> tuple[float | None, float | None]:
        """Returns (how long it took, silent_s of an ended stall). An entry that was left before changes nothing."""
        phase, entered_at = self._entered.pop(entry, (None, now))
        if phase is None:
            return None, None
        self._limits[phase].update(now - entered_at)
        self._is_partial = True
        return now - entered_at, self._moved(now)

    def look(self, now: float, busy: Callable[[], RunPhase | None] = lambda: None) -> Stall | None:
        """A stall that has to be reported now, or None.

        busy: the phase that the whole run is in, whatever this rank waits for; asked where this rank is silent for some
        time. Its limit, where that is longer, then holds for this rank's silence, and its own from the end of it on.
        """
        phase, since = self._mark
        limit_s = self._limits[phase].limit()
        if self.is_stalled or now - since <= min(limit_s / 4, BUSY_AFTER_S):
            return None
        if (of_run := busy()) is not None:
            self._excused_at, self._is_partial = now, True
            limit_s = max(limit_s, self._limits[of_run].limit())
        elif now - self._excused_at <= limit_s:
            return None
        if now - since <= limit_s:
            return None
        self.is_stalled = True
        return Stall(phase=phase, silent_s=now - since, limit_s=limit_s)

    def excuse(self, lost_s: float) -> None:
        """The whole process did not run for `lost_s` (stopped and continued): that silence is not the run's."""
        phase, since = self._mark
        self._mark = (phase, since + lost_s)

    def _moved(self, now: float) -> float | None:
        since = self._mark[1]
        open_now = list(self._entered.values())
        self._mark = (open_now[-1][0] if open_now else self._between, now)
        if not self.is_stalled:
            return None
        self.is_stalled = False
        return now - since


ALIASES = {"validation": RunPhase.EVALUATION, "checkpoint": RunPhase.SAVING}
TO_ENTER = (RunPhase.STARTUP, RunPhase.EVALUATION, RunPhase.SAVING)  # start-up: of an epoch's data, too


class Phase(AbstractContextManager[None]):
    """Never raises, not even for a phase that does not exist: that one is logged once and changes nothing."""

    def __init__(self, run: Run, name: str, *, stall: StallWatch, on_resumed: Callable[[float | None], None]) -> None:
        self._name = ALIASES.get(name, name)
        self._stall = stall
        self._state, self._clock, self._trouble = run.state, run.clock, run.trouble
        self._inner = run.trouble.inner
        self._on_resumed = on_resumed
        self._entries: list[int] = []  # the same object may be entered again before it is left

    @guarded("phase")
    def __enter__(self) -> None:
        if self._name not in TO_ENTER:
            text = "There is no phase %r to enter: only startup, evaluation and saving"
            self._trouble.once("bad_phase", text, str(self._name)[:100])
            return
        entry, resumed_s = self._stall.enter(RunPhase(self._name), self._clock.monotonic())
        self._entries.append(entry)
        self._on_resumed(resumed_s)

    @guarded("phase")
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._entries:
            return
        took_s, resumed_s = self._stall.leave(self._entries.pop(), self._clock.monotonic())
        if self._name == RunPhase.SAVING:
            self._state.saving_s = took_s
        self._on_resumed(resumed_s)
