"""The Incident's account: the facts from which its ledger is computed. Data; pure.

Other records do not keep these facts until the ledger is written: an Incident drops its oldest Signals, timelines are
long, and the registry does not store a run's progress over time. So they are recorded on the Incident at each
observation: when the fault began, when it was first observed, when each phase was entered, and for each new start how
far the previous attempt had come and from which checkpoint the new one resumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar, Final

from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.known import Known, Maybe, Unknown

MAX_ENTERED: Final = 64  # phases; only the newest are kept, and `entered_before` counts the others
MAX_RESTARTS: Final = 32  # new starts; the default policy allows fewer tries in one Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart(Record):
    """One new start of the run, as it was decided.

    number          the new attempt's number within its Job
    name            the new attempt
    after           the attempt that it replaces
    furthest        the last step that the replaced attempt reached
    ended_at        when the replaced attempt ended
    resume_step     the step at which the new attempt resumes
    kind            the SaveKind of the checkpoint at that step; empty where the training script chooses by itself
    periodic_step   the newest periodic checkpoint: where the run would have resumed without an emergency checkpoint
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
    """A phase, by its name, and when the Incident entered it."""

    wire_row: ClassVar[bool] = True  # stored as a list of values, without names: an Incident has many

    phase: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Account(Record):
    """What an Incident records for its ledger. Not an AWS account.

    onset_at        the earliest time at which the fault is reported to have begun
    onset_from      the source of that report, for people
    looked_at       when the Incident was first observed
    entered         the phases in the order in which they were entered, the first included; at most MAX_ENTERED
    entered_before  how many older entries were dropped from `entered`
    restarts        the new starts, in order; at most MAX_RESTARTS
    step_s          the median seconds of one step, from the newest observation that reported it
    closed_step     the step that the run had reached when the Incident closed
    own_gap_s       how long the Job took from a death to the next start before Rekindle started any (Observation)
    """

    onset_at: Maybe[datetime] = Unknown("nothing reported when it began")
    onset_from: str = ""
    looked_at: datetime | None = None
    entered: tuple[PhaseEntry, ...] = ()
    entered_before: int = 0
    restarts: tuple[Restart, ...] = ()
    step_s: Maybe[float] = Unknown("the run's step time was never seen")
    closed_step: Maybe[int] = Unknown("it is not closed")
    own_gap_s: Maybe[float] = Unknown("nothing was started again")

    def with_phase(self, phase: str, *, now: datetime) -> Account:
        """A copy that records the phase as entered `now`; the same object if it is the current phase already."""
        if self.entered and self.entered[-1].phase == phase:
            return self
        entered = (*self.entered, PhaseEntry(phase=phase, at=now))
        kept = entered[-MAX_ENTERED:]
        return replace(self, entered=kept, entered_before=self.entered_before + len(entered) - len(kept))

    def with_onset(self, at: datetime, source: str) -> Account:
        """A copy with the onset at `at`; the same object if an onset is known that is not later."""
        if isinstance(self.onset_at, Known) and self.onset_at.value <= at:
            return self
        return replace(self, onset_at=Known(at), onset_from=source[:200])

    def with_restart(self, restart: Restart) -> Account:
        """A copy with the new start added, or updated where its number is known: an order may be sent more than once.

        Facts about the replaced attempt are kept from the first time, because later observations already show the new
        attempt instead.
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
    """When a stall began, and a note for its source: `silent_s` seconds before it was reported.

    `silent_s` is untrusted evidence; where it is not a number of seconds within a day, the report's own time counts.
    """
    if isinstance(silent_s, int | float) and not isinstance(silent_s, bool) and 0 < silent_s < 86_400:
        return occurred_at - timedelta(seconds=float(silent_s)), f", less the {silent_s:g} s of silence it tells of"
    return occurred_at, ""


def earliest(moments: Sequence[tuple[datetime, str]]) -> tuple[datetime, str] | None:
    """The earliest of (time, source); None where there is none."""
    return min(moments, default=None, key=lambda item: item[0])
