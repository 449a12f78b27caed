"""What an Incident writes down for its own ledger, look by look. Data, and the one function that keeps it; pure.

Signals give way, timelines are long and the registry forgets when a run stood where, so what the ledger needs is kept
on the Incident when it is seen: when the fault began, when it was first looked at, when each phase was entered, and of
every new start how far the old one had come and which checkpoint was taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar, Final

from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.known import Known, Maybe, Unknown

MAX_ENTERED: Final = 64  # phases; the newest are kept, and `entered_before` says that there were more
MAX_RESTARTS: Final = 32  # new starts; no policy allows more tries in one Incident than that by default


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart(Record):
    """One new start, as it was decided.

    `after` is the attempt that it takes the place of, `furthest` how far that one had come, `ended_at` when it ended.
    `resume_step` is where the new one resumes and `kind` which kind of checkpoint that is; empty where its own script
    chooses. `periodic_step` is the newest checkpoint that would have been taken had no emergency one been made.
    """

    number: int
    name: str
    after: str
    furthest: Maybe[int]
    ended_at: datetime | None
    resume_step: Maybe[int]
    kind: str
    periodic_step: Maybe[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEntry:
    """A phase, by its name, and when the Incident came into it."""

    wire_row: ClassVar[bool] = True  # an Incident has many

    phase: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Account(Record):
    """What is kept for the ledger.

    `onset_at` is the earliest moment at which the fault is reported to have begun, `onset_from` the source of that
    report. `looked_at` is the first observation. `entered` are the phases in order, the first one's included;
    `entered_before` counts those that gave way. `step_s` is the median seconds of the run's steps, at the newest look
    that saw one. `closed_step` is where it stood when the Incident closed. `links` are
    the run's own pages, as its newest heartbeat names them: each a name and an https address.
    """

    onset_at: Maybe[datetime] = Unknown("nothing reported when it began")
    onset_from: str = ""
    looked_at: datetime | None = None
    entered: tuple[PhaseEntry, ...] = ()
    entered_before: int = 0
    restarts: tuple[Restart, ...] = ()
    step_s: Maybe[float] = Unknown("the run's step time was never seen")
    closed_step: Maybe[int] = Unknown("it is not closed")
    links: tuple[tuple[str, str], ...] = ()

    def in_phase(self, phase: str, *, now: datetime) -> Account:
        """The same, the phase written down if it is a new one."""
        if self.entered and self.entered[-1].phase == phase:
            return self
        entered = (*self.entered, PhaseEntry(phase=phase, at=now))
        kept = entered[-MAX_ENTERED:]
        return replace(self, entered=kept, entered_before=self.entered_before + len(entered) - len(kept))

    def began(self, at: datetime, source: str) -> Account:
        """The same, with an earlier onset if `at` is one."""
        if isinstance(self.onset_at, Known) and self.onset_at.value <= at:
            return self
        return replace(self, onset_at=Known(at), onset_from=source[:200])

    def with_restart(self, restart: Restart) -> Account:
        """The same order under the same number is the same new start, however often it is sent.

        What the first sending knew of the old attempt stays: by the next one the new attempt is the one that is seen.
        """
        others = tuple(earlier for earlier in self.restarts if earlier.number != restart.number)
        known = next((earlier for earlier in self.restarts if earlier.number == restart.number), None)
        if known is not None:
            restart = replace(restart, furthest=known.furthest, ended_at=known.ended_at)
            if restart.kind == "" and known.resume_step == restart.resume_step:
                restart = replace(restart, kind=known.kind, periodic_step=known.periodic_step)
        if restart == known:
            return self
        return replace(self, restarts=(*others, restart)[-MAX_RESTARTS:])


def onset_of_silence(occurred_at: datetime, silent_s: object) -> tuple[datetime, str]:
    """A stall is reported after the silence that it is about: it began that much earlier."""
    if isinstance(silent_s, int | float) and not isinstance(silent_s, bool) and 0 < silent_s < 86_400:
        return occurred_at - timedelta(seconds=float(silent_s)), f", less the {silent_s:g} s of silence it tells of"
    return occurred_at, ""


def first_by(moments: Sequence[tuple[datetime, str]]) -> tuple[datetime, str] | None:
    """The earliest, with who says so."""
    return min(moments, default=None, key=lambda item: item[0])
