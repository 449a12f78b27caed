"""How long a SIGTERM is put off for the save that it asked for, and when it gets its own effect back.

Without the monitor SIGTERM ends a process that has no handler for it. With `signals=("TERM",)` the ranks first save and
the loop ends. Where that cannot happen any more, the process ends of SIGTERM after all: a launcher waits
for it, and kills it later. Source: torch.distributed.elastic.multiprocessing.api: SIGTERM, 30 s, SIGKILL; the restart
begins only then. SageMaker developer guide, StopTrainingJob: 120 s.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rekindle.monitor.base.run import Clock
from rekindle.monitor.base.trouble import logger
from rekindle.monitor.base.worker import BackgroundCall
from rekindle.monitor.stops.signals import Signals
from rekindle.protocol.mailbox import RunPhase

LOOK_S: Final = 0.25
# A launcher and its process group are often signalled both, and the launcher passes it on: that is one wish.
SAME_WISH_S: Final = 3.0
INSISTS_AT: Final = 3  # signals; two may be the same wish, sent two ways
NO_SAVE_S: Final = 5.0  # where nothing can be saved: time for the loop to look at `should_stop`
UNHEEDED_STEPS: Final = 3  # a loop that looks at `should_stop` does so in every step
STILL_FACTOR: Final = 5.0
STILL_FLOOR_S: Final = 15.0
STILL_FLOOR_ELASTIC_S: Final = 3.0  # under torchrun a rank whose peer on another node died must not wait for long
STILL_UNLEARNED_S: Final = 30.0  # before the length of a step is known
LOG_WAIT_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminationState:
    """What is known of the run while a SIGTERM waits. Seconds, all durations.

    has_read_stop: the script has read `should_stop` as true. is_stopping: it would. unheeded_steps: steps since then
    that it did without reading it. is_sealed: no save waits for its manifest. is_saving: one is being written.
    usual_step_s: what nine of ten steps did not exceed lately; None before any was measured. silent_s: since the
    training thread last moved. is_peer_gone: another worker of the same torchrun has ended; None where not known.
    """

    has_read_stop: bool
    is_stopping: bool
    unheeded_steps: int
    is_sealed: bool
    is_saving: bool
    can_save: bool
    has_stepped: bool
    phase: RunPhase
    silent_s: float
    usual_step_s: float | None
    is_elastic: bool
    is_peer_gone: bool | None


def why_to_end(
    now: TerminationState, *, since_s: float, insists: bool, grace_s: float, unsavable_s: float | None = None
) -> str | None:
    """Why SIGTERM should have its effect now; None to go on waiting for the save and the end of the loop.

    since_s: since the first SIGTERM. unsavable_s: since it is known that nothing can be saved, if that came later: the
    loop is notified of the stop no earlier, and gets its time to react from there. The order matters: a script that
    knows ends at its own pace, and its peers do so before it or after it.
    """
    if insists:
        return "it was sent again"
    if since_s >= grace_s:
        return f"the run did not end within {grace_s:.0f} s"
    if now.has_read_stop or now.is_saving:
        return None
    if now.is_stopping and now.is_sealed and now.unheeded_steps >= UNHEEDED_STEPS:
        return "what was asked for is saved, and the loop continues without looking at should_stop"
    if not now.has_stepped:
        return "no step is done yet, so there is nothing to save"
    if not now.can_save and (since_s if unsavable_s is None else min(since_s, unsavable_s)) >= NO_SAVE_S:
        return "nothing can be saved, and the loop does not look at should_stop"
    if now.is_peer_gone:
        return "another worker of this machine has ended, so that the ranks cannot save together"
    if now.phase is RunPhase.TRAINING and now.silent_s > still_limit_s(now):
        return f"the training thread has not moved for {now.silent_s:.1f} s"
    return None


def still_limit_s(now: TerminationState) -> float:
    """How long a training thread may be silent and still be expected at its next step."""
    if now.usual_step_s is None:
        return STILL_UNLEARNED_S
    return max(STILL_FLOOR_ELASTIC_S if now.is_elastic else STILL_FLOOR_S, STILL_FACTOR * now.usual_step_s)


@dataclass(eq=False, kw_only=True)
class Termination:
    """`heard` and `turn` are for the thread that hears signals. Nothing happens before the first SIGTERM.

    grace_s: see `why_to_end`. moved_at: when the training thread last did, by the clock.
    """

    signals: Signals
    clock: Clock
    grace_s: float
    situation: Callable[[], TerminationState]
    moved_at: Callable[[], float]

    def __post_init__(self) -> None:
        self._heard: list[float] = []  # when the interpreter heard a SIGTERM, in C
        self._handled: list[float] = []  # when the main thread ran our handler for it
        self._is_over = False
        self._unsavable_at: float | None = None  # the first look, since the first SIGTERM, that found it so

    def heard(self, is_from_python: bool) -> None:
        if not self._is_over:
            (self._handled if is_from_python else self._heard).append(self.clock.monotonic())

    def end(self) -> None:
        """The run has ended, and no signal is put off any more."""
        self._is_over = True

    def turn(self) -> float | None:
        """Read, and act. Returns seconds until the next read; None where no SIGTERM waits."""
        came = self._heard if len(self._heard) >= len(self._handled) else self._handled
        if self._is_over or not came or not self.signals.is_ours(signal.SIGTERM):
            return None
        if not self.signals.can_give_back(signal.SIGTERM):
            return None  # the script's own handler was called, or it ignores the signal
        now = self.clock.monotonic()
        if not self._handled and self.moved_at() > came[0] + 1.0:
            # The main thread would have run the handler before it went on: not ours. Between fork and exec a child
            # shares the descriptor, and a signal to it is heard here.
            self._heard.clear()
            return None
        insists = len(came) >= INSISTS_AT or came[-1] - came[0] >= SAME_WISH_S
        situation = self.situation()
        if situation.can_save:
            self._unsavable_at = None
        elif self._unsavable_at is None:
            self._unsavable_at = now
        why = why_to_end(
            situation,
            since_s=now - came[0],
            insists=insists,
            grace_s=self.grace_s,
            unsavable_s=None if self._unsavable_at is None else now - self._unsavable_at,
        )
        if why is None:
            return LOOK_S
        # Not here: the stuck main thread may hold the lock of a log handler.
        BackgroundCall("log").run(lambda: logger.warning("Rekindle gives SIGTERM its effect back: %s", why), LOG_WAIT_S)
        return LOOK_S if not self.signals.give_back(signal.SIGTERM) else None
