"""What the sweep reads and keeps: metrics, marks, alarms; and the quarantine of events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from chalicelib.domain.model.codec import Record

if TYPE_CHECKING:
    from chalicelib.domain.model.job import Job
    from chalicelib.domain.model.known import Maybe


class Quarantine(Protocol):
    """Where events go that could not be read. Nothing is lost, nothing is retried in a storm."""

    def put(self, *, raw: str, function: str, error: str, field: str, at: datetime) -> None: ...

    def peek(self, *, limit: int) -> tuple[Mapping[str, Any], ...]:
        """Up to `limit` quarantined events, left where they are."""
        ...

    def take(self, *, limit: int) -> Iterator[tuple[Mapping[str, Any], str]]:
        """Events with their receipts; each stays hidden until `drop`, or comes back."""
        ...

    def drop(self, receipt: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricQuery:
    """One metric at one dimension, in periods of `period_s`. `key` is the caller's own name for it.

    Below a minute there are data only of the last three hours, and only where the sender sent that finely.
    """

    key: str
    namespace: str
    name: str
    dimension: tuple[str, str]
    stat: str
    period_s: int = 60


Series = tuple[tuple[datetime, float], ...]


class Metrics(Protocol):
    """Many metrics in few calls."""

    def series_of(
        self, queries: Sequence[MetricQuery], *, since: datetime, until: datetime
    ) -> Mapping[str, Maybe[Series]]:
        """By key. Unknown where the call failed or only a part of the data came; Known(()) where there is none.

        Never raises for what AWS says: one failing call leaves its own metrics Unknown, and no others.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepMark(Record):
    """Where the sweep stands. A round is one pass over all active Jobs, in one sweep or in several.

    `cursor`: the id of the last Job that was looked at, empty at a round's begin. `jobs` is how many the last whole
    round met, `met` how many this one has so far. States are listed from `last_began_at` on: when the last round began,
    or an earlier one some of whose attempts could not be looked up since. `alarms_token`: where the listing of alarms
    continues. `has_shared`: the round has met a Job that the shared alarm is for. `has_unread`: of what it met,
    something could not be read or taken in, and may be in the next.
    """

    round: int = 0
    cursor: str = ""
    began_at: datetime | None = None
    last_began_at: datetime | None = None
    jobs: int = 0
    met: int = 0
    alarms_token: str = ""
    has_shared: bool = False
    has_unread: bool = False


class SweepMarks(Protocol):
    """The sweep's own memory."""

    def load(self) -> SweepMark:
        """The mark, a fresh one where there is none."""
        ...

    def save(self, mark: SweepMark) -> None: ...


class AlarmStore(Protocol):
    """CloudWatch alarms of ours. Names are made from the Job's id, so that every call may be repeated."""

    def put(self, job: Job) -> tuple[str, ...]:
        """Create the Job's own alarms or bring them up to date; their names.

        Raises:
            CapacityUnavailable: the account's quota of alarms is used up; those made so far stay.
        """
        ...

    def put_shared(self) -> str:
        """The one alarm over all Jobs that asked for it; its name. Raises CapacityUnavailable."""
        ...

    def remove(self, job_ids: Sequence[str]) -> None:
        """Delete these Jobs' alarms; one that is not there is no error."""
        ...

    def remove_shared(self) -> None:
        """Delete the shared alarm, if it is there."""
        ...

    def listed(self, token: str) -> tuple[frozenset[str], str]:
        """The Jobs that one page of our alarms is about, and the token of the next page, empty after the last."""
        ...

    def tags_of(self, arn: str) -> Mapping[str, str]:
        """Tags of any alarm; empty for one that is gone."""
        ...
