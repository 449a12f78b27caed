"""A run's curves as people want to see them: loss, step rate, gradient norm, out of the metrics that its monitor sends,
or of the training job's own ones. Reads only: one GetMetricData for all of it, two where AWS refuses the finer periods.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.domain.model.errors import InvalidRequest
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.reporting.windows import DEFAULT_MINUTES, MAX_MINUTES
from chalicelib.ports.clock import Clock
from chalicelib.ports.jobs import JobRegistry
from chalicelib.ports.sweep import MetricQuery, Metrics, Series
from chalicelib.services.reporting.job_metrics import JOB_DIMENSION, JOB_NAMESPACE, MONITOR_DIMENSION, MONITOR_NAMESPACE

MAX_POINTS: Final = 960  # of one curve: what a wide screen can show apart, and what keeps an answer below 200 kB
MAX_ATTEMPTS: Final = 8  # newest attempts whose own metrics are read; a monitor's stand under the Job, whatever runs it
# Source: CloudWatch API reference, MetricStat: 1, 5, 10, 30 or a multiple of 60; below 60 only within three hours.
_FINE_S: Final[tuple[int, ...]] = (1, 5, 10, 30)
_COARSE_S: Final[tuple[int, ...]] = (60, 300, 900, 3600)
_FINE_WITHIN: Final = timedelta(hours=3)

# Curve -> metric and statistic. Source of the names: rekindle/monitor/base/metrics.py.
_OF_MONITOR: Final[Mapping[str, tuple[str, str]]] = {
    "loss": ("Loss", "Average"),
    "loss_low": ("Loss", "Minimum"),
    "loss_high": ("Loss", "Maximum"),
    "step": ("Step", "Maximum"),
    "step_s": ("StepSeconds", "Average"),
    "grad_norm": ("GradNorm", "Maximum"),
    "tokens_per_s": ("TokensPerSecond", "Average"),
    "non_finite": ("NonFinite", "Sum"),
}
CURVES: Final = tuple(_OF_MONITOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    registry: JobRegistry
    metrics: Metrics
    clock: Clock

    def read(
        self,
        job_id: str,
        *,
        minutes: int = DEFAULT_MINUTES,
        until: datetime | None = None,
    ) -> dict[str, Any]:
        """All curves of the Job of this id: see `of`. Raises UnknownEntity, InvalidRequest."""
        return self.of(self.registry.get(job_id), minutes=minutes, until=until)

    def of(
        self,
        job: Job,
        *,
        minutes: int = DEFAULT_MINUTES,
        until: datetime | None = None,
        only: Collection[str] = CURVES,
    ) -> dict[str, Any]:
        """The `minutes` before `until` (now, if not given): each curve is `{"known": [[at_epoch_s, value], ...]}`,
        oldest first, or `{"unknown": why}`. `only`: the curves that are wanted.

        Raises:
            InvalidRequest: `minutes` is out of bounds.
        """
        if not 1 <= minutes <= MAX_MINUTES:
            raise InvalidRequest("minutes", f"must be a whole number from 1 to {MAX_MINUTES}")
        now = self.clock.now()
        end = min(until or now, now)
        since = end - timedelta(minutes=minutes)
        period_s = period_for(timedelta(minutes=minutes), age=now - since)
        found = self._read_metrics(job, period_s, only, since=since, until=end)
        if period_s < 60 and all(isinstance(series, Unknown) for series in found.values()):
            period_s = 60  # a metric that is kept by the minute may refuse to be asked by the second
            found = self._read_metrics(job, period_s, only, since=since, until=end)
        return {
            "job_id": job.job_id,
            "attempt": job.current_attempt,
            "source": "training_job" if job.watch.has_own_metrics else "monitor",
            "since": since.isoformat(),
            "until": end.isoformat(),
            "period_s": period_s,
            "curves": {
                name: _wire(found.get(name, Unknown("the Job sends no such metric"))) for name in CURVES if name in only
            },
        }

    def _read_metrics(
        self, job: Job, period_s: int, only: Collection[str], *, since: datetime, until: datetime
    ) -> dict[str, Maybe[Series]]:
        attempts = self._attempts(job, since, until) if job.watch.has_own_metrics else ()
        queries = [query for query in _queries(job, attempts, period_s) if query.key.partition("/")[0] in only]
        read = self.metrics.series_of(queries, since=since, until=until)
        found: dict[str, Maybe[Series]] = {}
        for query in queries:
            name = query.key.partition("/")[0]
            found[name] = _joined(found.get(name), read.get(query.key, Unknown("not read")))
        return found

    def _attempts(self, job: Job, since: datetime, until: datetime) -> Sequence[Attempt]:
        """Those that may have run in the window; a training job's metrics stand under the attempt's own name."""
        ran = [
            attempt
            for attempt in self.registry.attempts(job.job_id)
            if attempt.submitted_at <= until and (attempt.ended_at is None or attempt.ended_at >= since)
        ]
        return ran[-MAX_ATTEMPTS:]


def period_for(window: timedelta, *, age: timedelta) -> int:
    """The finest period, in seconds, at which a window that began `age` ago has at most MAX_POINTS points."""
    allowed: tuple[int, ...] = (*(_FINE_S if age <= _FINE_WITHIN else ()), *_COARSE_S)
    return next((period for period in allowed if window.total_seconds() / period <= MAX_POINTS), allowed[-1])


def _queries(job: Job, attempts: Sequence[Attempt], period_s: int) -> Iterator[MetricQuery]:
    if not job.watch.has_own_metrics:
        for curve, (name, stat) in _OF_MONITOR.items():
            yield MetricQuery(
                key=f"{curve}/",
                namespace=MONITOR_NAMESPACE,
                name=name,
                dimension=(MONITOR_DIMENSION, job.job_id),
                stat=stat,
                period_s=period_s,
            )
        return
    named = {
        "loss": (job.watch.loss, "Average"),
        "loss_low": (job.watch.loss, "Minimum"),
        "loss_high": (job.watch.loss, "Maximum"),
        "step": (job.watch.step, "Maximum"),
        "grad_norm": (job.watch.grad_norm, "Maximum"),
    }
    for attempt in attempts:
        for curve, (name, stat) in named.items():
            if name:
                yield MetricQuery(
                    key=f"{curve}/{attempt.name}",
                    namespace=JOB_NAMESPACE,
                    name=name,
                    dimension=(JOB_DIMENSION, attempt.name),
                    stat=stat,
                    period_s=max(period_s, 60),  # SageMaker sends once a minute. Source: job_metrics.py
                )


def _joined(before: Maybe[Series] | None, more: Maybe[Series]) -> Maybe[Series]:
    """One curve of several attempts; Unknown as soon as one of them is, for a gap would look like a pause."""
    if before is None or isinstance(more, Unknown):
        return more
    if isinstance(before, Unknown):
        return before
    return Known(tuple(sorted((*before.value, *more.value))))


def _wire(series: Maybe[Series]) -> dict[str, Any]:
    if isinstance(series, Unknown):
        return {"unknown": series.why}
    if not series.value:
        return {"unknown": "no data points in this window"}
    return {"known": [[round(at.timestamp(), 3), value] for at, value in series.value]}
