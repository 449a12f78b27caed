"""The Job record of one observation, from the Job's attempts as they are registered and seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final

from chalicelib.domain.model.incident import Incident, best_step
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, JobRecord
from chalicelib.domain.resume.earlier_attempts import (
    MAX_ATTEMPTS_SEEN,
    began_again,
    began_before,
    had_checkpoints,
    own_gap_s,
    ran_of_ours,
    reached_before,
)

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(hours=24)
# Over which `trained` is taken: long enough that one slow start does not count, short enough to be told the same day.
LAST_HOURS: Final = timedelta(hours=6)


def job_record(
    job: Job, attempts: Sequence[Attempt], incident: Incident, seen: Maybe[AttemptView], *, now: datetime
) -> JobRecord:
    """`attempts`: all of the Job, in order, the one under care as far as it has been seen to come; empty where they are
    not needed yet.
    """
    best, fruitless = _history(attempts, incident, seen)
    ran = [attempt for attempt in attempts if _has_run(attempt)]
    ours = [attempt for attempt in ran if attempt.incident_id is not None]
    of_a_day = [attempt for attempt in ours if now - attempt.submitted_at < DAY]
    newest = ran[-MAX_ATTEMPTS_SEEN:]
    return JobRecord(
        best_before=best,
        fruitless_before=fruitless,
        furthest_saved=furthest_saved(job, attempts),
        resumed_at=tuple(_value(attempt.resume_step) for attempt in newest),
        came_to=tuple(_value(attempt.last_step) for attempt in newest),
        began_again=began_again(attempts, seen),
        began_before=began_before(attempts, incident.attempt),
        had_checkpoints=had_checkpoints(job, attempts, incident),
        ran=ran_of_ours(attempts),
        started_by_others=sum(1 for _ in takewhile(lambda item: item.incident_id is None, reversed(attempts[1:]))),
        restarts_of_an_hour=sum(now - attempt.submitted_at < HOUR for attempt in of_a_day),
        restarts_of_last_hours=sum(now - attempt.submitted_at < LAST_HOURS for attempt in of_a_day),
        restarts_of_a_day=len(of_a_day),
        rollbacks_of_a_day=sum(attempt.went_back for attempt in of_a_day),
        capped=_capped(attempts, seen),
        own_gap_s=own_gap_s(attempts),
        trained=trained(attempts, seen, now=now),
        died_on=tuple(
            attempt.left_nodes
            for attempt in attempts
            if attempt.left_nodes and attempt.incident_id != incident.incident_id and now - attempt.submitted_at < DAY
        ),
        left_out=attempts[-1].left_out if attempts and now - attempts[-1].submitted_at < DAY else (),
    )


def furthest_saved(job: Job, attempts: Sequence[Attempt]) -> Maybe[int]:
    """See JobRecord: what a later attempt went back behind, on purpose, is no longer on the way. What one resumed from
    had been saved, whether or not its manifest was seen.
    """
    save = job.newest_save
    furthest: Maybe[int] = Unknown("no manifest was seen")
    for attempt in attempts:
        if attempt.went_back and isinstance(attempt.resume_step, Known):
            furthest = attempt.resume_step
        else:
            furthest = best_step(furthest, attempt.resume_step)
        if save is not None and attempt.name == save.attempt:
            furthest = best_step(furthest, Known(save.step))
    if save is not None and all(attempt.name != save.attempt for attempt in attempts):
        furthest = best_step(furthest, Known(save.step))
    return furthest


def trained(attempts: Sequence[Attempt], seen: Maybe[AttemptView], *, now: datetime) -> Maybe[float]:
    """The share of the LAST_HOURS, or of the Job's time so far, that the steps gained in them took at the run's pace.

    Steps that were made before and are made again are not gained. Of an attempt that was running when they began, all
    its steps count: what is not known is no reason to call a person.
    """
    pace = seen.value.step_s if isinstance(seen, Known) else None
    if not attempts or not pace:
        return Unknown("how long a step takes is not known")
    since = max(now - LAST_HOURS, attempts[0].submitted_at)
    best: Maybe[int] = Unknown("no step was seen")
    began: Maybe[int] = best
    for attempt, after in zip(attempts, [*attempts[1:], None], strict=True):
        is_before = after is not None and after.submitted_at <= since
        if not is_before and not isinstance(began, Known):
            began = best if isinstance(best, Known) else _first(attempt)
        resumed = attempt.resume_step
        if attempt.went_back and isinstance(resumed, Known) and isinstance(best, Known) and resumed.value < best.value:
            if isinstance(began, Known):  # what was gained up to there is kept, what lay beyond is not
                began = Known(min(began.value, resumed.value))
            best = resumed
        best = best_step(best, attempt.last_step)
    hours = (now - since).total_seconds()
    if not isinstance(best, Known) or not isinstance(began, Known) or hours <= 0:
        return Unknown("how far it came in the last hours is not known")
    return Known(min((best.value - began.value) * pace / hours, 1.0))


def _first(attempt: Attempt) -> Maybe[int]:
    """The step before its first one."""
    return Known(attempt.first_step.value - 1) if isinstance(attempt.first_step, Known) else attempt.resume_step


def _capped(attempts: Sequence[Attempt], seen: Maybe[AttemptView]) -> int:
    view = seen.value if isinstance(seen, Known) and seen.value.status.has_ended else None
    ends = (view.status.value if view and view.name == item.name else item.status for item in reversed(attempts))
    return sum(1 for _ in takewhile(lambda status: status == AttemptStatus.EXPIRED, filter(None, ends)))


def _value(step: Maybe[int]) -> int | None:
    return step.value if isinstance(step, Known) else None


def _has_run(attempt: Attempt) -> bool:
    """One that got no capacity has restarted nothing."""
    return isinstance(attempt.last_step, Known) or attempt.began


def _history(attempts: Sequence[Attempt], incident: Incident, seen: Maybe[AttemptView]) -> tuple[Maybe[int], int]:
    """What the earlier attempts reached: wanted only when a fresh Incident is about a dead attempt."""
    if incident.resubmission.tries or not isinstance(seen, Known) or not seen.value.status.has_ended:
        return Unknown("not needed yet"), 0
    return reached_before(attempts, seen.value.name)
