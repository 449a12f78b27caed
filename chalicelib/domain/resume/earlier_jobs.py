"""Earlier Jobs of one run: what trained before it, of the same user, with the same mailbox. Pure.

On a cluster each submission of a script is a Job of its own, which continues from what the one before has saved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from chalicelib.domain.model.evidence import Stretch
from chalicelib.domain.model.job import Attempt
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptView, CheckpointView
from chalicelib.domain.resume.earlier_attempts import first_step_seen

_BAD: Final = "its run had gone bad, as an Incident of that Job found"
_DOUBT: Final = "an earlier Job's: whether this one continues it is not known"
_SHARED: Final = "an earlier Job's, beside which another run saved in the same place: whose it is cannot be told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """From when on a Job's first attempt trained, and when its newest ended; None where it has not, as far as known."""

    began_at: datetime | None
    ended_at: datetime | None


def lived_at_once(life: Lived, other: Lived) -> bool:
    """They are two runs: a run's Jobs follow one another. One that never began has saved nothing."""
    if life.began_at is None or other.began_at is None:
        return False
    return (life.ended_at is None or other.began_at < life.ended_at) and (
        other.ended_at is None or life.began_at < other.ended_at
    )


def is_before(life: Lived, other: Lived, *, was_created_before: bool) -> bool:
    """Whether the one trained before the other; where that is not known of both, by which of them was created first.

    A link of a chain waits: what was submitted after it may train, and end, before it.
    """
    if life.began_at is None or other.began_at is None:
        return was_created_before
    return life.began_at < other.began_at


def shared(lived: Mapping[str, Lived]) -> frozenset[str]:
    """Of earlier Jobs those that lived at once with another of them."""
    return frozenset(
        job_id
        for job_id, life in lived.items()
        if any(lived_at_once(life, other) for other_id, other in lived.items() if other_id != job_id)
    )


def marked_shared(checkpoints: Sequence[CheckpointView], attempts: Collection[str]) -> tuple[CheckpointView, ...]:
    """The same, with a problem on each that one of the attempts, of runs that lived at once, has saved."""
    return tuple(
        replace(checkpoint, problems=(*checkpoint.problems, _SHARED)) if checkpoint.attempt in attempts else checkpoint
        for checkpoint in checkpoints
    )


def numbered_before(earlier: Sequence[Attempt], lived: Mapping[str, Lived]) -> tuple[Attempt, ...]:
    """The attempts of earlier Jobs, numbered so that each comes before the first attempt of the Job: a Job's after
    those of the Jobs that trained before it, however long it had waited in a queue.
    """

    def place(attempt: Attempt) -> tuple[datetime, str, int]:
        return lived[attempt.job_id].began_at or attempt.submitted_at, attempt.job_id, attempt.number

    in_order = sorted(earlier, key=place)
    return tuple(replace(attempt, number=index - len(in_order)) for index, attempt in enumerate(in_order))


def dated_by_its_begin(attempts: Sequence[Attempt], lived: Lived) -> tuple[Attempt, ...]:
    """A Job's attempts, the first as if submitted when it began to train: a link of a chain waits for its turn, and has
    saved nothing until then.
    """
    first, *others = attempts
    began_at = lived.began_at or first.submitted_at
    return (replace(first, submitted_at=max(began_at, first.submitted_at)), *others)


def first_step_of(attempts: Sequence[Attempt], seen: AttemptView | None) -> Maybe[int]:
    """The first step that the Job is known to have made, by its attempts in order; `seen` is newer than its record."""
    for attempt in attempts:
        first = first_step_seen(attempt, seen)
        if isinstance(first, Known):
            return first
    return Unknown("no step of the Job is known")


def begun_from(
    attempts: Sequence[Attempt], checkpoints: Sequence[CheckpointView], seen: AttemptView | None
) -> tuple[Attempt, CheckpointView] | None:
    """The Job's newest attempt that was given no resume point, and the other Job's checkpoint right after which it
    began: whatever lived beside the Job before, its owner has continued from there.
    """
    own = {attempt.name for attempt in attempts}
    for attempt in reversed(attempts):
        first = first_step_seen(attempt, seen)
        if isinstance(attempt.resume_step, Known) or not isinstance(first, Known):
            continue
        there = [
            checkpoint
            for checkpoint in checkpoints
            if checkpoint.step == first.value - 1
            and checkpoint.saved_at <= attempt.submitted_at
            and not checkpoint.problems
        ]
        is_own = any(checkpoint.attempt in own for checkpoint in there)
        return None if is_own or not there else (attempt, max(there, key=lambda checkpoint: checkpoint.saved_at))
    return None


def on_its_line(checkpoints: Sequence[CheckpointView], earlier: Mapping[str, Maybe[int]]) -> tuple[CheckpointView, ...]:
    """The same without those of earlier Jobs that the Job does not continue.

    `earlier`: by the earlier Jobs' attempts, the first step of what continues them, which has their steps up to there.
    Where it is not known, each of theirs has a problem: a person chooses whether to continue from it.
    """
    kept = []
    for checkpoint in checkpoints:
        first_step = earlier.get(checkpoint.attempt)
        if first_step is not None and not isinstance(first_step, Known):
            kept.append(replace(checkpoint, problems=(*checkpoint.problems, _DOUBT)))
        elif first_step is None or checkpoint.step <= first_step.value:
            kept.append(checkpoint)
    return tuple(kept)


def marked_bad_steps(
    checkpoints: Sequence[CheckpointView], stretches: Collection[Stretch]
) -> tuple[CheckpointView, ...]:
    """The same, with a problem on each that lies in a stretch in which an earlier Job's loss was bad."""
    return tuple(
        replace(checkpoint, problems=(*checkpoint.problems, _BAD))
        if checkpoint.attempt
        and any(stretch.holds(checkpoint.attempt, checkpoint.step, checkpoint.life) for stretch in stretches)
        else checkpoint
        for checkpoint in checkpoints
    )
