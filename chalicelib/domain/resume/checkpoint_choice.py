"""Which of many checkpoints are looked at, and whose each one is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from chalicelib.domain.model.job import FAR_BELOW_STEPS
from chalicelib.domain.model.known import Known

if TYPE_CHECKING:
    from chalicelib.domain.model.job import Attempt
    from chalicelib.domain.model.observation import CheckpointView

NEAR: Final = 4  # some of them may be damaged


def attributed(step: int | None, times: Sequence[datetime], attempts: Sequence[Attempt]) -> tuple[str, bool]:
    """By the times of its files: who wrote a checkpoint ("" if that is not known), and whether it no longer might.

    Fenced where that is known: files of one checkpoint from before and after an attempt took over are two writers',
    and a step beyond the last one that the newer attempt did is the older one's. Another run's, under the same root,
    are those far beyond what the only attempt did (a late heartbeat explains a few steps), and those from before the
    Job's first attempt that the first one known to have chosen its own beginning did not continue from.
    """
    saved_at = max(times)
    writer: Attempt | None = None
    for attempt in sorted(attempts, key=lambda attempt: attempt.number):
        if writer is None or attempt.submitted_at <= saved_at:
            writer = attempt
    if writer is None:
        return "", False
    has_elder = any(attempt.number < writer.number for attempt in attempts)
    first = min(attempts, key=lambda attempt: attempt.number)
    began_at = _first_step_of_its_own(attempts)
    was_there = saved_at < first.submitted_at and began_at is not None and step is not None and step >= began_at
    two_writers = has_elder and min(times) < writer.submitted_at <= saved_at
    beyond = (
        isinstance(writer.last_step, Known)
        and writer.ended_at is not None
        and step is not None
        and step > writer.last_step.value + (0 if has_elder else FAR_BELOW_STEPS)
    )
    return writer.name, two_writers or beyond or was_there


def marked_ahead_of_its_run(checkpoints: Sequence[CheckpointView]) -> tuple[CheckpointView, ...]:
    """The same, with a problem on each without a manifest that is further on than what its attempt signed later: steps
    only grow, and one that was started again behind it has left it. Both are dated by the store.
    """
    signed = [checkpoint for checkpoint in checkpoints if checkpoint.manifest and checkpoint.attempt]

    def later(plain: CheckpointView) -> CheckpointView | None:
        of_writer = (other for other in signed if other.attempt == plain.attempt and other.saved_at > plain.saved_at)
        return next((other for other in of_writer if other.step < plain.step), None)

    def judged(checkpoint: CheckpointView) -> CheckpointView:
        below = later(checkpoint) if not checkpoint.manifest and checkpoint.attempt else None
        if below is None:
            return checkpoint
        problem = f"no manifest, and {below.attempt} saved step {below.step} after it: it may be another run's"
        return replace(checkpoint, problems=(*checkpoint.problems, problem))

    return tuple(judged(checkpoint) for checkpoint in checkpoints)


def _first_step_of_its_own(attempts: Sequence[Attempt]) -> int | None:
    """Where the earliest attempt began that was given no resume step, of those whose first step is known."""
    return next(
        (
            attempt.first_step.value
            for attempt in sorted(attempts, key=lambda attempt: attempt.number)
            if isinstance(attempt.first_step, Known) and not isinstance(attempt.resume_step, Known)
        ),
        None,
    )


def wanted_of(steps_newest_first: Sequence[int], *, newest: int, spaced: int, near: Sequence[int]) -> frozenset[int]:
    """Indexes of the newest, of ever sparser older ones, and of the next few at or below each step in `near`."""
    wanted = {index for index in range(len(steps_newest_first)) if index < newest}
    wanted |= {newest - 1 + 2**power for power in range(spaced + 1)}
    for limit in near:
        below = (index for index, step in enumerate(steps_newest_first) if step <= limit)
        wanted |= set(islice(below, NEAR))
    return frozenset(wanted)
