"""Why a run that is dead, hung or poisoned may be without an open Incident and without a page: one function a reason.

The judge counts `dead_unwatched` only where none of EXCUSES applies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from simulation.judging.knowable import has_shown, is_bad_as_before
from simulation.runs.truth import ActiveTrouble, TrueRun
from simulation.stages.world import World

UNWATCHED_AFTER: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """What the judge knows at the end of a minute.

    `open_runs`: runs with an open Incident. `has_open_node`: an Incident about a node is open. `called_bad`: attempts
    that were left to a person because of what they had loaded.
    """

    world: World
    now: datetime
    open_runs: Collection[str]
    has_open_node: bool
    called_bad: Collection[str]


Excuse = Callable[[Minute, TrueRun, ActiveTrouble], bool]


def is_over(minute: Minute, run: TrueRun, ill: ActiveTrouble) -> bool:
    """Its owner has stopped it, or it has finished."""
    del minute, ill
    return run.owner_stopped or run.is_finished


def is_watched(minute: Minute, run: TrueRun, ill: ActiveTrouble) -> bool:
    """An Incident about it is open."""
    del ill
    return run.name in minute.open_runs


def waits_for_a_node(minute: Minute, run: TrueRun, ill: ActiveTrouble) -> bool:
    """Slurm has put it back into its queue, behind a job that goes first, or while an Incident is open about a node
    that it waits for.
    """
    del ill
    newest = next(reversed(run.attempts.values()), None)
    is_behind = newest is not None and newest.was_preempted
    return (is_behind or minute.has_open_node) and not run.live and minute.world.waits_in_queue(run)


def is_its_owners(minute: Minute, run: TrueRun, ill: ActiveTrouble) -> bool:
    """A person has taken it over. One that dies is watched for again, if its owner has left it protected."""
    del minute
    return run.owner_took_it and (ill.kind != "dead" or run.is_unprotected)


def shows_no_loss(minute: Minute, run: TrueRun, ill: ActiveTrouble) -> bool:
    """CloudWatch takes no loss that is no number: no source of a run that only sends metrics shows it."""
    del minute
    return ill.kind == "poisoned" and run.spec.watch == "metrics"


def has_shown_nothing(minute: Minute, run: TrueRun, ill: ActiveTrouble) -> bool:
    """Weights are seen by the loss that is computed from them, and none has been yet."""
    return ill.kind == "poisoned" and not has_shown(run, minute.now)


def was_told_of_this_attempt(minute: Minute, run: TrueRun, ill: ActiveTrouble) -> bool:
    """A person was paged about this very attempt as it began, or as the scale of its gradients collapsed."""
    return ill.kind == "poisoned" and any(
        attempt.name in minute.called_bad and (is_bad_as_before(attempt) or attempt.collapsed_at is not None)
        for attempt in run.live
    )


def is_on_its_way(minute: Minute, run: TrueRun, ill: ActiveTrouble) -> bool:
    """A new attempt was submitted a few minutes ago."""
    return ill.kind == "dead" and any(minute.now - attempt.job.created_at < UNWATCHED_AFTER for attempt in run.live)


EXCUSES: Final[tuple[Excuse, ...]] = (
    is_over,
    is_watched,
    waits_for_a_node,
    is_its_owners,
    shows_no_loss,
    has_shown_nothing,
    was_told_of_this_attempt,
    is_on_its_way,
)
