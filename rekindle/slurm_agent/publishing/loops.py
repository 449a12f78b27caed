"""The loops that look: at Slurm, and at mailboxes on shared paths. What they see goes into the outbox, whole turns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Final

from rekindle.slurm_agent.base.clock import Clock
from rekindle.slurm_agent.base.ports import LeaseHolder, SlurmUnavailable
from rekindle.slurm_agent.base.problems import Problems
from rekindle.slurm_agent.publishing.outbox import Outbox
from rekindle.slurm_agent.watching import watcher as watching
from rekindle.slurm_agent.watching.relay import MailboxRelay

log = logging.getLogger(__name__)

HURRY_FOR_S: Final = 15.0  # after an order: a stop takes up to KillWait to show
HURRY_S: Final = 1.0
MAX_REST_S: Final = 30.0  # while slurmctld is away; the limit for "Slurm unread" is 180 s


class Watch:
    """Reads Slurm every `poll_s`, at once when asked, and often for a while after an order was carried out."""

    def __init__(
        self,
        *,
        watcher: watching.Watch,
        outbox: Outbox,
        clock: Clock,
        problems: Problems,
        poll_s: float,
        on_change: Callable[[], None],
    ) -> None:
        self._watcher = watcher
        self._outbox = outbox
        self._clock = clock
        self._problems = problems
        self._poll_s = poll_s
        self._on_change = on_change
        self._wake = threading.Event()
        self._is_first = True
        self._hurries_until = 0.0
        self._failures = 0

    def hurry(self) -> None:
        """An order was carried out: look at once, and again until it has shown."""
        self._hurries_until = self._clock.monotonic() + HURRY_FOR_S
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._wake.clear()
            self._wake.wait(self.run_once())

    def run_once(self) -> float:
        """One reading. Returns seconds until the next, unless woken before."""
        is_first, self._is_first = self._is_first, False
        now = self._clock.now()
        try:
            reading = self._watcher.read(now)
        except SlurmUnavailable as err:
            self._failures += 1
            self._problems.set("slurm", [str(err)])
            return min(MAX_REST_S, self._poll_s * float(2 ** min(self._failures - 1, 8)))
        except Exception as err:  # a fault of ours in reading must not end the loop: orders go on, and it is told
            log.exception("part=watcher")
            self._problems.set("slurm", [f"internal error: {type(err).__name__}: {err}"])
            return self._poll_s
        is_back = self._failures > 0 or is_first
        self._failures = 0
        self._problems.set("slurm")
        self._problems.set("reading", reading.problems)
        try:
            self._outbox.keep(reading, read_at=now)
        except Exception as err:  # as above; it is seen again at the next look
            log.exception("part=watcher")
            self._problems.set("slurm", [f"internal error: {type(err).__name__}: {err}"])
            return self._poll_s
        if reading.documents or reading.news or is_back:  # when Slurm was read is news after a time without it
            self._on_change()
        return HURRY_S if self._clock.monotonic() < self._hurries_until else self._poll_s


class Relaying:
    """Lets the relay have its turns."""

    def __init__(
        self,
        *,
        relay: MailboxRelay,
        outbox: Outbox,
        clock: Clock,
        problems: Problems,
        poll_s: float,
        on_change: Callable[[], None],
        holding: LeaseHolder | None = None,
    ) -> None:
        self._holding = holding
        self._relay = relay
        self._outbox = outbox
        self._clock = clock
        self._problems = problems
        self._poll_s = poll_s
        self._on_change = on_change

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if self._holding is None or self._holding.left_s() > 0:
                self.run_once(self._clock.now())
            stop.wait(self._poll_s)

    def run_once(self, now: datetime) -> None:
        try:
            reading = self._relay.run_once(now)
            self._outbox.keep(reading)
        except Exception as err:  # a shared path in whatever state must not end the loop
            log.exception("part=relay")
            self._problems.set("relay", [f"internal error: {type(err).__name__}: {err}"])
            return
        self._problems.set("relay", reading.problems)
        if reading.documents or reading.news:
            self._on_change()
