"""Our CloudWatch alarms: what each kind looks like, their names, and the calls.

Each carries `rekindle:job=<id> rekindle:fault=<fault>` in its description, the convention by which ingest/alarm.py
reads any alarm. Its event comes over EventBridge whether or not it has actions; it has none.
Source: CloudWatch API reference, PutMetricAlarm (tags count only at creation; 255 characters of name), DeleteAlarms
(100 names; names that do not exist do no harm), DescribeAlarms (100 per page), Metrics Insights alarms (GROUP BY makes
each series a contributor; ORDER BY is then required; 500 series and 10,000 metrics at most).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.domain.model.errors import CapacityUnavailable
from chalicelib.domain.model.job import Job
from rekindle.protocol.signals import FaultClass

MONITOR_NAMESPACE: Final = "Rekindle/Training"  # Source: rekindle/monitor/base/metrics.py
JOB_NAMESPACE: Final = "/aws/sagemaker/TrainingJobs"  # Source: SageMaker developer guide, monitoring-cloudwatch
PERIOD_S: Final = 60
NON_FINITE_MINUTES: Final = 3  # a loss that is NaN is counted in every minute; fp16 loss scaling brings single ones
THROUGHPUT_MINUTES: Final = 15
BAND_WIDTH: Final = 4  # standard deviations; 2 is CloudWatch's default and rings daily on a noisy series
SHARED: Final = "jobs-non-finite"
_SHARED_QUERY: Final = (
    'SELECT SUM(NonFinite) FROM SCHEMA("Rekindle/Training", JobId) GROUP BY JobId ORDER BY SUM() DESC'
)
# CloudWatch's answer to one alarm too many. Source: botocore, cloudwatch, LimitExceededFault.
_FULL: Final = ("LimitExceeded", "LimitExceededFault", "LimitExceededException")
_DELETE_AT_ONCE: Final = 100


class AlarmKind(StrEnum):
    """What one alarm is about; the last word of its name."""

    HANG = "hang"
    NON_FINITE = "non-finite"
    THROUGHPUT = "throughput"


_FAULTS: Final[Mapping[AlarmKind, FaultClass]] = {
    AlarmKind.HANG: FaultClass.HANG,
    AlarmKind.NON_FINITE: FaultClass.NON_FINITE,
    AlarmKind.THROUGHPUT: FaultClass.THROUGHPUT_DROP,
}


class CloudWatchAlarms:
    """ports.AlarmStore; `client` is a boto3 CloudWatch client. `stack` begins every name."""

    def __init__(self, client: Any, *, stack: str) -> None:
        self._client = client
        self._stack = stack
        self._prefix = f"{stack}-job-"

    def put(self, job: Job) -> tuple[str, ...]:
        names = []
        for kind in kinds_of(job):
            name = self.name_of(job.job_id, kind)
            minutes = f"{job.watch.hang_minutes} min" if kind is AlarmKind.HANG else ""
            self._put(
                name,
                tags={"rekindle:job": job.job_id},
                AlarmDescription=f"{_TEXTS[kind].format(minutes=minutes)} rekindle:job={job.job_id} "
                f"rekindle:fault={_FAULTS[kind]}",
                **_BODIES[kind](job),
            )
            names.append(name)
        return tuple(names)

    def put_shared(self) -> str:
        name = f"{self._stack}-{SHARED}"
        self._put(
            name,
            tags={},
            AlarmDescription=f"{_TEXTS[AlarmKind.NON_FINITE]} rekindle:fault={FaultClass.NON_FINITE}",
            Metrics=[{"Id": "q1", "Expression": _SHARED_QUERY, "Period": PERIOD_S, "ReturnData": True}],
            **_above_zero(),
        )
        return name

    def remove(self, job_ids: Sequence[str]) -> None:
        names = [self.name_of(job_id, kind) for job_id in job_ids for kind in AlarmKind]
        for start in range(0, len(names), _DELETE_AT_ONCE):
            self._delete(names[start : start + _DELETE_AT_ONCE])

    def remove_shared(self) -> None:
        self._delete([f"{self._stack}-{SHARED}"])

    def listed(self, token: str) -> tuple[frozenset[str], str]:
        request: dict[str, Any] = {"AlarmNamePrefix": self._prefix, "AlarmTypes": ["MetricAlarm"], "MaxRecords": 100}
        if token:
            request["NextToken"] = token
        try:
            page = call(self._client.describe_alarms, expect=("InvalidNextToken",), **request)
        except AwsRefusal:  # the token is too old: begun anew in a later round
            return frozenset(), ""
        found = (self.job_of(alarm["AlarmName"]) for alarm in page.get("MetricAlarms", ()))
        return frozenset(job_id for job_id in found if job_id), page.get("NextToken") or ""

    def tags_of(self, arn: str) -> Mapping[str, str]:
        try:
            answer = call(
                self._client.list_tags_for_resource,
                expect=("ResourceNotFound", "ResourceNotFoundException", "InvalidParameterValue"),
                ResourceARN=arn,
            )
        except AwsRefusal:
            return {}
        return {tag["Key"]: tag.get("Value", "") for tag in answer.get("Tags", ())}

    def name_of(self, job_id: str, kind: AlarmKind) -> str:
        """The alarm's name; at most 255 characters, as a job id has at most 128."""
        return f"{self._prefix}{job_id}-{kind}"

    def job_of(self, name: str) -> str:
        """The Job that a name of ours is about, empty for any other name."""
        for kind in AlarmKind:
            if name.startswith(self._prefix) and name.endswith(f"-{kind}"):
                return name.removeprefix(self._prefix).removesuffix(f"-{kind}")
        return ""

    def _put(self, name: str, *, tags: Mapping[str, str], **body: Any) -> None:
        tags = {"rekindle:stack": self._stack, **tags}
        try:
            call(
                self._client.put_metric_alarm,
                expect=_FULL,
                AlarmName=name,
                Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
                **body,
            )
        except AwsRefusal as refusal:
            raise CapacityUnavailable(f"{name}: {refusal.message}") from refusal

    def _delete(self, names: list[str]) -> None:
        try:
            call(self._client.delete_alarms, expect=("ResourceNotFound",), AlarmNames=names)
        except AwsRefusal:
            return  # none of them is there


def kinds_of(job: Job) -> tuple[AlarmKind, ...]:
    """A training job's own metrics know no NaN, and need not have a step time: only their silence can be watched."""
    return (AlarmKind.HANG,) if job.watch.has_own_metrics else tuple(AlarmKind)


def _hang(job: Job) -> dict[str, Any]:
    """No data point in so many minutes. A run that stands still sends no Step, and a dead one nothing at all."""
    if job.watch.has_own_metrics:
        namespace, dimension = JOB_NAMESPACE, {"Name": "TrainingJobName", "Value": job.current_attempt}
        metric = job.watch.step or job.watch.loss or job.watch.grad_norm
    else:
        namespace, metric, dimension = MONITOR_NAMESPACE, "Step", {"Name": "JobId", "Value": job.job_id}
    return {
        "Namespace": namespace,
        "MetricName": metric,
        "Dimensions": [dimension],
        "Statistic": "SampleCount",
        "Period": PERIOD_S,
        "Threshold": 1.0,
        "ComparisonOperator": "LessThanThreshold",
        "EvaluationPeriods": job.watch.hang_minutes,
        "DatapointsToAlarm": job.watch.hang_minutes,
        "TreatMissingData": "breaching",
    }


def _non_finite(job: Job) -> dict[str, Any]:
    return {
        "Namespace": MONITOR_NAMESPACE,
        "MetricName": "NonFinite",
        "Dimensions": [{"Name": "JobId", "Value": job.job_id}],
        "Statistic": "Sum",
        "Period": PERIOD_S,
        **_above_zero(),
    }


def _above_zero() -> dict[str, Any]:
    return {
        "Threshold": 1.0,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "EvaluationPeriods": NON_FINITE_MINUTES,
        "DatapointsToAlarm": NON_FINITE_MINUTES,
        "TreatMissingData": "notBreaching",
    }


def _throughput(job: Job) -> dict[str, Any]:
    """Step times above the band that CloudWatch has learned from this Job: no threshold has to be set."""
    metric = {
        "Namespace": MONITOR_NAMESPACE,
        "MetricName": "StepSeconds",
        "Dimensions": [{"Name": "JobId", "Value": job.job_id}],
    }
    return {
        "Metrics": [
            {"Id": "m1", "MetricStat": {"Metric": metric, "Period": PERIOD_S, "Stat": "Average"}, "ReturnData": True},
            {"Id": "band", "Expression": f"ANOMALY_DETECTION_BAND(m1, {BAND_WIDTH})", "ReturnData": True},
        ],
        "ThresholdMetricId": "band",
        "ComparisonOperator": "GreaterThanUpperThreshold",
        "EvaluationPeriods": THROUGHPUT_MINUTES,
        "DatapointsToAlarm": THROUGHPUT_MINUTES,
        "TreatMissingData": "notBreaching",
    }


_BODIES: Final = {AlarmKind.HANG: _hang, AlarmKind.NON_FINITE: _non_finite, AlarmKind.THROUGHPUT: _throughput}
_TEXTS: Final[Mapping[AlarmKind, str]] = {
    AlarmKind.HANG: "No training step for {minutes}.",
    AlarmKind.NON_FINITE: "Loss or gradient is not finite.",
    AlarmKind.THROUGHPUT: "Steps take longer than this run's own history explains.",
}
