"""The excuses for a run that is dead, hung or poisoned without an open Incident and without a page, one function each.

The judge counts `dead_unwatched` only where none of EXCUSES applies. An excuse that is a delay expires.
"""

from __future__ import annotations

from collections import Counter
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
    that were left to a person because of the checkpoint that they loaded.
    """

    world: World
    now: datetime
    open_runs: Collection[str]
    has_open_node: bool
    called_bad: Collection[str]


Applies = Callable[[Minute, TrueRun, ActiveTrouble], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Excuse:
    """One row. `lasts`: how long it covers one trouble at most; None where it is a state and not a delay."""

    applies: Applies
    lasts: timedelta | None

    @property
    def name(self) -> str:
        return self.applies.__name__


def is_over(minute: Minute, run: TrueRun, ill: ActiveTrouble) -> bool:
    """Its owner has stopped it, or it has finished."""
    del minute, ill
    return run.owner_stopped or run.is_finished


def is_paused(minute: Minute, run: TrueRun, ill: ActiveTrouble) -> bool:
    """A person has paused everything, and knows it."""
    del run, ill
    return minute.world.paused_at is not None


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
    """A person has taken it over. If it dies it is to be watched again, unless its owner has ended its protection."""
    del minute
    return run.owner_took_it and (ill.kind != "dead" or run.is_unprotected)


def shows_no_loss(minute: Minute, run: TrueRun, ill: ActiveTrouble) -> bool:
    """CloudWatch takes no loss that is no number: no source of a run that only sends metrics shows it."""
    del minute
    return ill.kind == "poisoned" and run.spec.watch == "metrics"


def has_shown_nothing(minute: Minute, run: TrueRun, ill: ActiveTrouble) -> bool:
    """Bad weights show in the losses that are computed from them, and too few losses have been seen yet."""
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


# An Incident that waits tells people after 15 minutes (domain/run/down.py), and what cannot be read is paged after 30.
TOLD_BY: Final = timedelta(minutes=40)

EXCUSES: Final = (
    Excuse(applies=is_over, lasts=None),
    Excuse(applies=is_paused, lasts=None),
    Excuse(applies=is_watched, lasts=TOLD_BY),
    Excuse(applies=waits_for_a_node, lasts=timedelta(hours=1)),
    Excuse(applies=is_its_owners, lasts=None),
    Excuse(applies=shows_no_loss, lasts=None),
    Excuse(applies=has_shown_nothing, lasts=None),
    Excuse(applies=was_told_of_this_attempt, lasts=None),
    Excuse(applies=is_on_its_way, lasts=UNWATCHED_AFTER),
)


class Expiring:
    """Which excuse covers a trouble in a minute; each only until it has expired for that trouble."""

    def __init__(self) -> None:
        self._minutes: Counter[tuple[int, str]] = Counter()

    def covering(self, minute: Minute, run: TrueRun, ill: ActiveTrouble) -> str | None:
        """The first excuse that applies and has not expired. Called once a minute for each trouble."""
        for excuse in EXCUSES:
            if not excuse.applies(minute, run, ill):
                continue
            self._minutes[id(ill), excuse.name] += 1
            if excuse.lasts is None or timedelta(minutes=self._minutes[id(ill), excuse.name]) <= excuse.lasts:
                return excuse.name
        return None
