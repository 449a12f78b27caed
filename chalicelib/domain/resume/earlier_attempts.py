"""What the attempts of a Job so far have done. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

from chalicelib.domain.faults.poison import died_at
from chalicelib.domain.model.incident import Incident, Phase, best_step
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView

MAX_ATTEMPTS_SEEN = 32  # more than any budget counts
OWN_PAIRS = 10  # of a death and the next start, from which their median says more than an assumption
_DIED = (AttemptStatus.FAILED.value, AttemptStatus.EXPIRED.value)


def with_end(attempts: Sequence[Attempt], seen: Maybe[AttemptView]) -> tuple[Attempt, ...]:
    """The same, the one under care with the end that was just seen and is not written down yet.

    Without it a checkpoint beyond that end could not be attributed to an older attempt that lives on.
    """
    if not isinstance(seen, Known) or not seen.value.status.has_ended or seen.value.step_s is None:
        return tuple(attempts)
    view = seen.value
    return tuple(
        replace(
            attempt,
            first_step=view.first_step if isinstance(view.first_step, Known) else attempt.first_step,
            last_step=view.last_step_at_most,
            ended_at=view.ended_at,
        )
        if attempt.name == view.name
        else attempt
        for attempt in attempts
    )


def with_last_step(attempts: tuple[Attempt, ...], seen: Maybe[AttemptView]) -> tuple[Attempt, ...]:
    """The same, the one under care as far as it has been seen to come."""
    if not isinstance(seen, Known):
        return attempts
    view = seen.value
    return tuple(
        replace(attempt, last_step=step_made(attempt, view), began=attempt.began or has_begun(view))
        if attempt.name == view.name
        else attempt
        for attempt in attempts
    )


def reached_before(attempts: Sequence[Attempt], name: str) -> tuple[Maybe[int], int]:
    """The mark for `name`: the furthest known end before it, and how many attempts in a row, the last, gained nothing.

    One that went back on purpose gives up the ground beyond its resume step: that step is the mark from then on.
    """
    best: Maybe[int] = Unknown("no earlier attempt's end is known")
    fruitless = 0
    for attempt in attempts:
        resumed = attempt.resume_step
        if attempt.went_back and isinstance(resumed, Known) and isinstance(best, Known) and resumed.value < best.value:
            best, fruitless = resumed, 0
        if attempt.name == name:
            break
        if not isinstance(attempt.last_step, Known):
            continue
        if isinstance(best, Known) and attempt.last_step.value <= best.value:
            fruitless += 1
            continue
        best, fruitless = attempt.last_step, 0
    return best, fruitless


def own_gap_s(attempts: Sequence[Attempt]) -> Maybe[float]:
    """See JobRecord.own_gap_s: of those pairs before the first attempt that an Incident of ours submitted."""
    gaps = []
    for died, after in pairwise(attempts):
        if after.incident_id is not None:
            break
        if died.status in _DIED and died.ended_at is not None and after.submitted_at >= died.ended_at:
            gaps.append((after.submitted_at - died.ended_at).total_seconds())
    if len(gaps) < OWN_PAIRS:
        return Unknown(f"{len(gaps)} of {OWN_PAIRS} new starts before Rekindle's first are known")
    from statistics import median  # loaded by an observation alone, not by every function that knows attempts

    return Known(median(gaps))


def ran_of_ours(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """See JobRecord.ran: a submission by a person since then starts a new count."""
    found: list[str] = []
    for attempt in attempts:
        if attempt.incident_id is None:
            found = [attempt.name]
        elif isinstance(attempt.last_step, Known) or attempt.began:
            found.append(attempt.name)
    return tuple(found)[-MAX_ATTEMPTS_SEEN:]


def began_again(attempts: Sequence[Attempt], seen: Maybe[AttemptView]) -> int:
    view = seen.value if isinstance(seen, Known) else None
    steps: list[int] = []
    unseen = 0  # that died before a step, before any whose first step is known
    for attempt in attempts:
        if attempt.incident_id is None:  # what a person has submitted begins anew
            steps, unseen = [], 0
        first = first_step_seen(attempt, view)
        if isinstance(first, Known):
            steps += [first.value] * (unseen + 1)
            unseen = 0
        elif attempt.died_before_step or (view is not None and _died_before_step(attempt, view)):
            unseen += not steps
            steps += steps[-1:]  # it left nothing that a later one could begin after
    count = 0
    for before, now in zip(reversed(steps[:-1]), reversed(steps[1:]), strict=True):
        if now > before:
            break
        count += 1
    return count


def began_before(attempts: Sequence[Attempt], name: str | None) -> Maybe[int]:
    found: Maybe[int] = Unknown("no earlier attempt's first step is known")
    for attempt in attempts:
        if attempt.name == name:
            break
        found = attempt.first_step if isinstance(attempt.first_step, Known) else found
    return found


def had_checkpoints(job: Job, attempts: Sequence[Attempt], incident: Incident) -> bool:
    if job.newest_save is not None:
        return True
    has_resumed = any(isinstance(attempt.resume_step, Known) and attempt.resume_step.value > 0 for attempt in attempts)
    return has_resumed or (incident.halt.ask is not None and incident.halt.ask.outcome == "saved")


def updated_by(attempt: Attempt, incident: Incident, view: AttemptView) -> Attempt:
    """What is now known of it. One that was started again in its place and lives came as far as its furthest life."""
    came_to = best_step(attempt.last_step, view.last_step) if view.life else view.last_step
    ended_at: datetime | None = view.ended_at if view.status.has_ended else None
    return replace(
        attempt,
        status=view.status.value,
        first_step=view.first_step,
        last_step=step_made(attempt, view, died_at(incident, view)) if view.status.has_ended else came_to,
        ended_at=ended_at,
        began=has_begun(view),
        died_before_step=_died_before_step(attempt, view),
    )


def _died_before_step(attempt: Attempt, view: AttemptView) -> bool:
    """One that was stopped before its first step tells nothing."""
    return view.name == attempt.name and view.status is AttemptStatus.FAILED and view.made_no_step


def has_begun(view: AttemptView) -> bool:
    """Whether the platform reports that its script has run. One that failed on nodes of a cluster has."""
    if view.training_since is not None or view.heartbeat_at is not None or view.status is AttemptStatus.RUNNING:
        return True
    return view.start is not None and bool(view.start.nodes) and view.status is AttemptStatus.FAILED


def step_made(attempt: Attempt, view: AttemptView, reported: Maybe[int] | None = None) -> Maybe[int]:
    """The step that it came to. One whose monitor had begun and named no step has not come past its resume point."""
    step = view.last_step if reported is None else reported
    if isinstance(step, Known) or view.heartbeat_at is None or not isinstance(attempt.resume_step, Known):
        return step
    return attempt.resume_step


def first_step_seen(attempt: Attempt, view: AttemptView | None) -> Maybe[int]:
    """The attempt's first step; `view` is newer than the record where it is of that attempt."""
    return view.first_step if view is not None and attempt.name == view.name else attempt.first_step


def alike_in_a_row(incident: Incident) -> int:
    """The newest tries in a row that ended in the same words, and of which nothing shows a gain.

    Unknown is no proof of "no progress"; but ends that are all alike say enough, where no step can be seen.
    """
    ends = {item.attempt: item.signature for item in incident.resubmission.failures}
    ended = [attempt for attempt in incident.resubmission.tries if attempt.ended]
    newest = ends.get(ended[-1].name, "") if ended else ""
    count = 0
    for item in reversed(ended):
        if not newest or item.gained or item.no_room or ends.get(item.name) != newest:
            break
        count += 1
    return count


def tries_in_vain(incident: Incident) -> int:
    """This Incident's own in a row, and those that it began with while none of its own has gained a step."""
    spent = incident.resubmission
    carried = 0 if any(attempt.gained for attempt in spent.tries) else spent.fruitless_before
    return carried + max(spent.no_progress, alike_in_a_row(incident))


def left_in_vain(before: Incident, attempt: str | None) -> int:
    """The tries in vain of an Incident that was handed over while its last try ran, where that one is concerned now."""
    spent = before.resubmission
    if before.phase is not Phase.HANDED_OVER or not spent.tries or spent.tries[-1].name != attempt:
        return 0
    return tries_in_vain(before)
