"""What the sweep reads in batches, in memory: metrics, the listing of states, saves, alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from chalicelib.domain.model.errors import CapacityUnavailable
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.ports.sweep import MetricQuery, Series
from tests.fakes.world import FakeScheduler


class FakeMetrics:
    """Series by (metric, dimension value); `broken` names metrics that cannot be read."""

    def __init__(self) -> None:
        self.series: dict[tuple[str, str], list[tuple[datetime, float]]] = {}
        self.broken: set[str] = set()
        self.asked: list[MetricQuery] = []

    def put(self, name: str, value: str, points: Sequence[tuple[datetime, float]]) -> None:
        self.series.setdefault((name, value), []).extend(points)

    def series_of(
        self, queries: Sequence[MetricQuery], *, since: datetime, until: datetime
    ) -> Mapping[str, Maybe[Series]]:
        self.asked += queries
        return {query.key: self._one(query, since, until) for query in queries}

    def _one(self, query: MetricQuery, since: datetime, until: datetime) -> Maybe[Series]:
        if query.name in self.broken:
            return Unknown("InternalError")
        points = self.series.get((query.name, query.dimension[1]), [])
        return Known(tuple(sorted((at, value) for at, value in points if since <= at < until)))


class FakeListing:
    """Says of every attempt what the platform says, as if all had just changed; or nothing, where it `is_behind`."""

    def __init__(self, scheduler: FakeScheduler) -> None:
        self._scheduler = scheduler
        self.is_behind = False
        self.is_broken = False
        self.asked: list[datetime] = []

    def changed(self, since: datetime) -> Maybe[Mapping[str, AttemptStatus]]:
        self.asked.append(since)
        if self.is_broken:
            return Unknown("throttled")
        return Known({} if self.is_behind else {name: run.view.status for name, run in self._scheduler.runs.items()})


class FakeSaves:
    """Saves by job id."""

    def __init__(self) -> None:
        self.times: dict[str, tuple[datetime, ...]] = {}
        self.step = 40  # of the oldest; ten between two
        self.asked: list[str] = []

    def saves(self, job: Job) -> Maybe[tuple[tuple[datetime, int], ...]]:
        self.asked.append(job.job_id)
        if job.job_id not in self.times:
            return Unknown("not listed")
        return Known(tuple((at, self.step + 10 * number) for number, at in enumerate(self.times[job.job_id])))


class FakeAlarmStore:
    """Alarms as job ids; `quota` is how many Jobs may have some, `tags` what any alarm of the account carries."""

    def __init__(self) -> None:
        self.own: dict[str, str] = {}
        self.has_shared = False
        self.quota = 1000
        self.tags: dict[str, Mapping[str, str]] = {}
        self.lookups: list[str] = []

    def put(self, job: Job) -> tuple[str, ...]:
        if job.job_id not in self.own and len(self.own) >= self.quota:
            raise CapacityUnavailable("one alarm too many")
        self.own[job.job_id] = job.current_attempt if job.watch.has_own_metrics else job.job_id
        return (f"{job.job_id}-hang",)

    def put_shared(self) -> str:
        self.has_shared = True
        return "shared"

    def remove(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            self.own.pop(job_id, None)

    def remove_shared(self) -> None:
        self.has_shared = False

    def listed(self, token: str) -> tuple[frozenset[str], str]:
        names = [name for name in sorted(self.own) if name > token]
        return frozenset(names[:2]), names[1] if len(names) > 2 else ""

    def tags_of(self, arn: str) -> Mapping[str, str]:
        self.lookups.append(arn)
        return self.tags.get(arn, {})
