"""Attempts that the platform shows and no Job has registered: their events are lost, or late."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Final

from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import Signal, SignalKind, SignalSource
from chalicelib.ports.clock import Clock
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.platforms import Schedulers
from chalicelib.services.intake.ended_attempt import signal_from_state
from chalicelib.services.intake.remembered_names import UnprotectedNames

# What ended earlier is left: it may be of a time before protection was set up. An outage of an hour fits in, as do the
# retries of what was lost in it.
HISTORY: Final = timedelta(hours=3)
MAX_ASKED: Final = 20  # names a sweep: each costs a read of the registry, and one to three calls of the platform
# An end that nothing has to be done about, where the attempt was never registered.
_OVER: Final = frozenset({AttemptStatus.COMPLETED, AttemptStatus.STOPPED})


@dataclass(frozen=True, slots=True, kw_only=True)
class UnheardAttempts:
    """Finds the Signals that the lost events of such attempts would have sent.

    `asked`: the names that were looked up within the hour; a bounded memory of this process.
    """

    registry: JobRegistry
    scheduler: Schedulers
    clock: Clock
    asked: UnprotectedNames = field(default_factory=UnprotectedNames)

    def names(self, listed: Mapping[str, AttemptStatus], *, known: Collection[str]) -> tuple[str, ...]:
        """Of the states that changed: up to MAX_ASKED names that may be such attempts. Those in `known` are none."""
        now = self.clock.now()
        fresh = (
            name
            for name, status in listed.items()
            if name not in known and status not in _OVER and not self.asked.knows(name, now=now)
        )
        return tuple(islice(fresh, MAX_ASKED))

    def looked_up(self, name: str) -> None:
        """`names` leaves it out for an hour."""
        self.asked.add(name, now=self.clock.now())

    def signals(self, names: Iterable[str], listed: Mapping[str, AttemptStatus] | None = None) -> Iterator[Signal]:
        """Of those of these attempts that are not registered. `listed`: their states, where a listing has shown them;
        the platform is asked about the others, and about each that has ended.
        """
        now = self.clock.now()
        for name in names:
            if self.registry.job_of_attempt(name) is not None:
                continue
            status = (listed or {}).get(name)
            view = self.scheduler.of_name(name).describe(name) if status is None or status.has_ended else None
            ended = signal_from_state(None, view, now=now) if view is not None else None
            if ended is None:
                shown = view.status if view is not None else status
                yield Signal(
                    kind=SignalKind.ATTEMPT_STATE,
                    source=SignalSource.SWEEP,
                    occurred_at=now,
                    dedupe_key=f"unheard-start:{name}:{shown}"[:200],
                    summary=f"{name} is {shown}, and no event has shown it",
                    attempt=name,
                    triggers=False,
                    evidence={"status": shown.value if shown is not None else "", "found_by": "sweep"},
                )
            elif view is not None and view.ended_at is not None and now - view.ended_at < HISTORY:
                yield ended
