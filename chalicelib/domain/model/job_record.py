"""What outlives Incidents, per Job, as one observation needs it: made by run/job_record.py, asked before each start."""

from __future__ import annotations

from dataclasses import dataclass

from chalicelib.domain.model.codec import Record
from chalicelib.domain.model.known import Maybe, Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(Record):
    """The Job's attempts, over all Incidents; the defaults are those of a Job whose attempts were not needed.

    What they reached. `best_before` is the furthest step that any earlier attempt is known to have ended at, or the
    step to which a later one, or this one, went back on purpose; `fruitless_before` is how many attempts in a row,
    the newest of them included, ended without passing what had been reached before them: a Job that dies again
    right after each "recovery" is seen to gain nothing, though every Incident of its own looks fresh.
    `furthest_saved` is the newest sealed save that was ever seen on the way to where the run is now, whatever has
    become of it. `resumed_at` are the steps that the newest attempts resumed at, the newest last, and `came_to` how
    far each came; None where that is not known. `began_again` counts the newest attempts of ours in a row that
    began no further on than the one before them, or died before a step, of those of which that is known.
    `began_before` is the first step of the attempt before this one. `had_checkpoints`: a manifest of the Job has been
    seen, or an attempt of it has resumed from a checkpoint or has answered that it saved one, so that an observation
    which finds none has found them gone.

    How often it was started. `ran` names the newest that was submitted by a person, and those of ours since that
    have begun. `restarts_of_an_hour`, `restarts_of_last_hours` (run/job_record.py) and `restarts_of_a_day` count
    those of ours that began within that time, over all Incidents, and `rollbacks_of_a_day` those of them that went
    back on purpose. `capped` counts the newest attempts in a row that their own run-time limit ended. `own_gap_s`
    is the median time from an attempt's death to the next start, before Rekindle started any. `trained` is the
    share of the last hours that the steps gained in them took.

    What it ran on. `died_on` are the nodes of the attempts of the last day that hung or died of hardware in other
    Incidents, of which none was named, the newest last; `left_out` those that the newest start of the day was kept
    away from for such deaths.
    """

    best_before: Maybe[int] = Unknown("not needed yet")
    fruitless_before: int = 0
    furthest_saved: Maybe[int] = Unknown("not needed yet")
    resumed_at: tuple[int | None, ...] = ()
    came_to: tuple[int | None, ...] = ()
    began_again: int = 0
    began_before: Maybe[int] = Unknown("not needed yet")
    had_checkpoints: bool = False
    ran: tuple[str, ...] = ()
    started_by_others: int = 0
    restarts_of_an_hour: int = 0
    restarts_of_last_hours: int = 0
    restarts_of_a_day: int = 0
    rollbacks_of_a_day: int = 0
    capped: int = 0
    own_gap_s: Maybe[float] = Unknown("not needed yet")
    trained: Maybe[float] = Unknown("not needed yet")
    died_on: tuple[tuple[str, ...], ...] = ()
    left_out: tuple[str, ...] = ()
