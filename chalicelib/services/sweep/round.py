"""One round of the sweep over all Jobs: what its passes share, its figures, and how it goes on when cut short. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import TypeVar

from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Maybe
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.model.signal import Signal
from chalicelib.ports.sweep import SweepMark
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRound:
    """What all Jobs of one pass share.

    `number` counts rounds. `changed` are the attempts whose state changed since the previous round, as listed. `until`
    is when the pass must stop. `metrics_every`: a Job's metrics are read in one of so many rounds.
    """

    number: int
    changed: Maybe[Mapping[str, AttemptStatus]]
    until: datetime
    metrics_every: int = 1

    def is_turn(self, job: Job, every: int) -> bool:
        """Whether the Job is due in this round: once in `every`, spread over the rounds by the hash of its id."""
        return zlib.crc32(job.job_id.encode()) % every == self.number % every

    def reads_metrics(self, job: Job) -> bool:
        """Whether the Job's metrics are read in this round."""
        return self.is_turn(job, self.metrics_every)


def next_round(mark: SweepMark, *, now: datetime) -> SweepMark:
    return replace(
        mark,
        round=mark.round + 1,
        cursor="",
        last_began_at=mark.began_at,
        began_at=now,
        met=0,
        has_shared=False,
        has_unread=False,
    )


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """`size` at a time."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


@dataclass(slots=True, kw_only=True)
class SweepFigures:
    """One sweep's figures, as they come up; `stuck` feeds the alarm on stuck executions.

    `left`: Jobs that the time was not enough for; the next sweep begins with them. `unknown`: metrics that could not
    be read. Of the outcomes only those that did something are kept, so that memory is bounded.
    """

    jobs: int = 0
    unread: int = 0
    left: int = 0
    unknown: int = 0
    restarted: int = 0
    woken: int = 0
    stuck: int = 0
    outcomes: list[Outcome] = field(default_factory=list)
    silent: list[tuple[Job, Signal]] = field(default_factory=list)  # told when it is known how many there are
    attempts: set[str] = field(default_factory=set)  # of the Jobs met in this sweep
    clusters: dict[str, str] = field(default_factory=dict)  # met in this sweep, each with the policy of a run on it

    @property
    def reopened(self) -> int:
        return sum(outcome.what is OutcomeKind.OPENED for outcome in self.outcomes)
