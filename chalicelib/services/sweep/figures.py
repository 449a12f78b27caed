"""A sweep's figures."""

from __future__ import annotations

from dataclasses import dataclass, field

from chalicelib.domain.model.job import Job
from chalicelib.domain.model.signal import Signal
from chalicelib.services.reporting.outcome import Outcome, OutcomeKind


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
