"""What one process says on the bus, in the common shape."""

from __future__ import annotations

from typing import Any

from rekindle.monitor.base.run import Run
from rekindle.monitor.base.state import BadStretch
from rekindle.monitor.mail.outbox import Outbox
from rekindle.protocol.signals import EventType

# Ranks that speak of what all ranks see. Rank 0 may be the one that hangs, so it is not the only one; all of them would
# be thousands of Signals for one fact. Every rank leaves its own report in the mailbox anyway.
SPEAKERS = 8


class BusEvents:
    """Thread-safe; never waits."""

    def __init__(self, run: Run, outbox: Outbox) -> None:
        self._identity, self._state, self._clock = run.identity, run.state, run.clock
        self._outbox = outbox

    def push(self, detail_type: EventType, *, at_step: int | None = None, **more: Any) -> None:
        if self._identity.holding.lost_to is not None and detail_type is not EventType.FINISHED:
            return  # of an earlier life: what it sees is no news of the run
        detail = {
            "v": 1,
            "job_id": self._identity.job_id,
            "attempt": self._identity.attempt,
            "attempt_number": self._identity.attempt_number,
            "life": self._identity.life,
            "rank": self._identity.rank,
            "world_size": self._identity.world_size,
            "step": at_step if at_step is not None else self._state.step,
            "at": self._clock.now().isoformat(),
        }
        self._outbox.push(detail_type, detail | more)

    def push_bad_stretch(self, stretch: BadStretch, *, is_judge: bool) -> None:
        """Say that values of this rank stay not finite: the first few ranks do, and the one that judges the loss."""
        if is_judge or self._identity.rank < SPEAKERS:
            self.push(
                EventType.NON_FINITE,
                at_step=stretch.step,
                loss_state=stretch.loss_state.value,
                metric=stretch.metric,
                own=stretch.own,
                alone=stretch.alone,
            )

    def push_as_one_of_many(self, detail_type: EventType, **more: Any) -> None:
        """Say what every rank sees at about the same time: only the first few ranks do."""
        if self._identity.rank < SPEAKERS:
            self.push(detail_type, **more)
