"""The watchdog's thread: looks for stalls. No I/O in here, so that it works when everything else hangs.

The flight recorder is read, and NCCL's RAS asked, on threads of their own, for each of which a report waits a second.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Final

from rekindle.detectors.frames import phase_in, training_frames, waits_in
from rekindle.monitor.base.run import Run
from rekindle.monitor.base.settings import process_environment
from rekindle.monitor.base.stacks import capture_stacks, stack_of
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.base.worker import Worker
from rekindle.monitor.liveness.flight import FlightRecorder
from rekindle.monitor.liveness.reporter import Reporter
from rekindle.monitor.liveness.stall import Stall, StallWatch
from rekindle.monitor.mail.outbox import Outbox
from rekindle.protocol.mailbox import RunPhase
from rekindle.protocol.reports import MAX_REPORT_STACKS_CHARS
from rekindle.protocol.signals import EventType

if TYPE_CHECKING:  # of several ranks
    from rekindle.monitor.liveness.ras import Ras
    from rekindle.monitor.liveness.run_phases import RunPhases

QUIET_S: Final = 1.0  # without a step, from when on it is worth looking why
OVERSLEPT_S = 0.25  # a watchdog that wakes this late was not run: the process was stopped, or the host is starved


class Watchdog:
    """Reports each stall once: to the mailbox for every rank, and on the bus for the first few.

    `turn` is for the watchdog's thread, the rest for any.
    """

    def __init__(
        self,
        run: Run,
        *,
        stall: StallWatch,
        outbox: Outbox,
        on_stall: Callable[[], None],
        is_in_save: Callable[[], bool],
    ) -> None:
        """is_in_save: whether all ranks are in a save that this one has begun."""
        self._stall = stall
        self._state, self._clock, self._watch_s = run.state, run.clock, run.config.watch_s
        self._rank = run.identity.rank
        self._outbox = outbox
        self._on_stall = on_stall
        self._is_in_save = is_in_save
        self._recorder = FlightRecorder(run.trouble)
        self._due = run.clock.monotonic()
        self.worker = Worker("watch", self.turn, run.trouble)
        self.training_thread = get_ident()
        self.reporter: Reporter | None = None
        self.ras: Ras | None = None
        self.phases: RunPhases | None = None

    def turn(self) -> float:
        now = self._clock.monotonic()
        overslept_s = now - self._due
        if overslept_s > max(OVERSLEPT_S, self._watch_s):
            self._stall.excuse(overslept_s)
        stall = self._stall.look(now, self._busy)
        if stall is not None and not self._state.is_finished:
            self._report(stall)
            now = self._clock.monotonic()  # the report may have waited, and that is no oversleeping
        self._due = now + self._watch_s
        return self._watch_s

    def own_phase(self) -> RunPhase | None:
        """What this rank is inside of, announced or by its stack, and the others wait for; None in training, and beyond
        the phase's limit.
        """
        if self._stall.is_stalled:
            return None
        if self._stall.phase is not RunPhase.TRAINING:
            return self._stall.phase
        phase = phase_in(training_frames(stack_of(self.training_thread))) if self.is_quiet() else RunPhase.TRAINING
        return None if phase is RunPhase.TRAINING else phase

    def is_quiet(self) -> bool:
        return self._clock.monotonic() - self._stall.marked_at > QUIET_S

    def is_waiting(self) -> bool:
        """Whether the training thread waits for other ranks right now."""
        return waits_in(training_frames(stack_of(self.training_thread))) is not None

    def _busy(self) -> RunPhase | None:
        """The phase that the whole run is in, though this rank's training thread is not."""
        if self._is_in_save():
            return RunPhase.SAVING
        return self.own_phase() or (None if self.phases is None else self.phases.seen())

    def _report(self, stall: Stall) -> None:
        stacks = capture_stacks(limit_chars=MAX_REPORT_STACKS_CHARS)
        if self.reporter is not None:
            flight = self._recorder.read()
            suspects = () if self.ras is None else self.ras.ask(process_environment(), self.reporter.heard_of_ras)
            self.reporter.stall(
                silent_s=stall.silent_s, phase=stall.phase.value, stacks=stacks, flight=flight, ras=suspects
            )
        self._outbox.push_as_one_of_many(
            EventType.STALL,
            phase=stall.phase.value,
            silent_s=round(stall.silent_s, 3),
            limit_s=round(stall.limit_s, 3),
            stacks={str(self._rank): stacks},
        )
        self._on_stall()
        # Last: a log handler may wait for a lock that the stalled thread holds.
        logger.warning(
            "No step for %.0f s in %s, above the learned limit of %.0f s", stall.silent_s, stall.phase, stall.limit_s
        )
