"""The CloudWatch metrics that show a Job's progress, and when they are reason to read its heartbeat. Pure.

Source of the names: rekindle/monitor/base/metrics.py and live.py (namespace, JobId); SageMaker developer guide,
monitoring-cloudwatch, and sagemaker-python-sdk TrainingJobAnalytics (namespace, TrainingJobName, one minute).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.ports.sweep import MetricQuery, Series

MONITOR_NAMESPACE: Final = "Rekindle/Training"
MONITOR_DIMENSION: Final = "JobId"
JOB_NAMESPACE: Final = "/aws/sagemaker/TrainingJobs"
JOB_DIMENSION: Final = "TrainingJobName"

# Long enough to see how regularly steps come (missed_signals.MIN_GAPS), short enough that 500 answers stay small.
MONITOR_WINDOW = timedelta(minutes=45)
# Three hours of minutes for 500 metrics are 90,000 data points, which one call may answer (limit 100,800); further back
# CloudWatch also halves its quota of points per second. Source: CloudWatch quotas, GetMetricData.
METRICS_WINDOW = timedelta(hours=3)
# The monitor sends once a minute, and CloudWatch needs up to two to show it.
MOVED_WITHIN = timedelta(minutes=4)


def metric_queries(job: Job) -> Iterator[MetricQuery]:
    """The metrics to read for one Job; each key is `<job id>/<role>`."""
    if not job.watch.has_own_metrics:
        dimension = (MONITOR_DIMENSION, job.job_id)
        yield MetricQuery(
            key=f"{job.job_id}/step", namespace=MONITOR_NAMESPACE, name="Step", dimension=dimension, stat="Maximum"
        )
        yield MetricQuery(
            key=f"{job.job_id}/bad", namespace=MONITOR_NAMESPACE, name="NonFinite", dimension=dimension, stat="Sum"
        )
        return
    dimension = (JOB_DIMENSION, job.current_attempt)
    for role, name, stat in (
        ("loss", job.watch.loss, "Average"),
        ("step", job.watch.step, "Maximum"),
        ("grad_norm", job.watch.grad_norm, "Maximum"),
    ):
        if name:
            yield MetricQuery(
                key=f"{job.job_id}/{role}", namespace=JOB_NAMESPACE, name=name, dimension=dimension, stat=stat
            )


def readings_of(job: Job, readings: Mapping[str, Maybe[Series]]) -> dict[str, Maybe[Series]]:
    """This Job's part of `readings` (by query key), by role: step, bad, loss or grad_norm."""
    found: dict[str, Maybe[Series]] = {}
    for query in metric_queries(job):
        found[query.key.rpartition("/")[2]] = readings.get(query.key, Unknown("not asked for"))
    return found


def monitor_needs_asking(readings: Mapping[str, Maybe[Series]], *, now: datetime) -> bool:
    """True unless the metrics show that the run makes steps and that its values are finite.

    `readings`: by role, with "step" and "bad". Where one is Unknown the heartbeat is read, as it is
    for a Job without metrics.
    """
    step, bad = readings["step"], readings["bad"]
    if not isinstance(step, Known) or not isinstance(bad, Known):
        return True
    has_moved = bool(step.value) and now - step.value[-1][0] <= MOVED_WITHIN
    return not has_moved or any(value > 0 for _, value in bad.value)
