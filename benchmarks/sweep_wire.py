"""What AWS answers the sweep, from memory, for fleets too large for moto."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from chalicelib.aws.dynamodb.jobs import job_item
from chalicelib.domain.model.job import Job, WatchPlan
from rekindle.protocol.mailbox import Heartbeat, LossState, RunPhase

NOW = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
_PAGE = 100


@dataclass
class Wire:
    """A fleet in memory. One request is answered at a time (benchmarks/sweep_clients.py)."""

    jobs: list[Job]
    calls: Counter[str] = field(default_factory=Counter)
    metrics: int = 0
    read_units: float = 0.0
    mark: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self._items = {job.job_id: job_item(job) for job in self.jobs}
        self._ids = sorted(self._items)
        recent = [NOW - timedelta(minutes=back) for back in range(1, 181)]
        self._recent = recent[::-1]
        # Losses that fall slowly and jitter a little; the same for all, which is as good as any for counting.
        self._losses = [2.0 + 0.3 / (1 + n / 40) + 0.01 * (n * 7 % 5) for n in range(180)]

    def answer(self, service: str, operation: str, request: dict[str, Any]) -> Any:
        self.calls[f"{service}.{operation}"] += 1
        return _ANSWERS[operation](self, request)

    # ---- answers ---------------------------------------------------------------------------------------------------

    def query(self, request: dict[str, Any]) -> dict[str, Any]:
        values = request["ExpressionAttributeValues"]
        if values[":p"]["S"] != "JOBS#ACTIVE":
            self.read_units += 0.5
            return {"Items": []}
        start = request.get("ExclusiveStartKey")
        begin = int(start["gsi1sk"]["S"]) if start else 0
        end = begin + request["Limit"]
        page = self._ids[begin:end]
        self.read_units += max(0.5, len(page) * 120 / 4096 / 2)  # eventually consistent, keys only
        answer: dict[str, Any] = {"Items": [{"pk": self._items[name]["pk"], "sk": {"S": "META"}} for name in page]}
        if end < len(self._ids):
            answer["LastEvaluatedKey"] = {"gsi1sk": {"S": str(end)}}
        return answer

    def batch_get_item(self, request: dict[str, Any]) -> dict[str, Any]:
        ((table, wanted),) = request["RequestItems"].items()
        self.read_units += len(wanted["Keys"])  # strongly consistent, each below 4 KB
        found = [self._items[key["pk"]["S"].removeprefix("JOB#")] for key in wanted["Keys"]]
        return {"Responses": {table: found}}

    def get_item(self, _: dict[str, Any]) -> dict[str, Any]:
        self.read_units += 1
        return {"Item": self.mark} if self.mark else {}

    def put_item(self, request: dict[str, Any]) -> dict[str, Any]:
        self.mark = request["Item"]
        return {}

    def list_training_jobs(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"TrainingJobSummaries": []}  # a quiet minute: nothing has changed its state

    def describe_training_job(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["TrainingJobName"]
        return {
            "TrainingJobName": name,
            "TrainingJobArn": f"arn:aws:sagemaker:us-west-2:123456789012:training-job/{name}",
            "ModelArtifacts": {"S3ModelArtifacts": "s3://b/model.tar.gz"},
            "TrainingJobStatus": "InProgress",
            "SecondaryStatus": "Training",
            "AlgorithmSpecification": {"TrainingInputMode": "File"},
            "ResourceConfig": {"VolumeSizeInGB": 500},
            "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
            "CreationTime": NOW,
        }

    def get_metric_data(self, request: dict[str, Any]) -> dict[str, Any]:
        start, queries = request["StartTime"], request["MetricDataQueries"]
        self.metrics += len(queries)
        first = next((n for n, at in enumerate(self._recent) if at >= start), 180)
        times = self._recent[first:]
        results = []
        for query in queries:
            name = query["MetricStat"]["Metric"]["MetricName"]
            some = [] if name == "NonFinite" else times
            values = self._losses[first:] if name == "train:loss" else [float(n) for n in range(len(some))]
            results.append(
                {
                    "Id": query["Id"],
                    "Label": name,
                    "Timestamps": list(some),
                    "Values": values[: len(some)],
                    "StatusCode": "Complete",
                }
            )
        return {"MetricDataResults": results, "Messages": []}

    def get_object(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["Key"].partition("/")[0]
        heartbeat = Heartbeat(
            job_id=name,
            attempt=name,
            attempt_number=1,
            step=100,
            first_step=1,
            loss=1.0,
            loss_state=LossState.FINITE,
            phase=RunPhase.TRAINING,
            step_s_median=1.0,
            rank=0,
            world_size=1,
            at=NOW,
        )
        return {"Body": io.BytesIO(heartbeat.to_json()), "ETag": '"e"'}

    def list_objects_v2(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"Contents": [], "IsTruncated": False}

    def list_durable_executions_by_function(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"DurableExecutions": []}

    def describe_alarms(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"MetricAlarms": []}

    def delete_alarms(self, _: dict[str, Any]) -> dict[str, Any]:
        return {}


_ANSWERS: Mapping[str, Callable[[Wire, dict[str, Any]], Any]] = {
    "Query": Wire.query,
    "BatchGetItem": Wire.batch_get_item,
    "GetItem": Wire.get_item,
    "PutItem": Wire.put_item,
    "ListTrainingJobs": Wire.list_training_jobs,
    "DescribeTrainingJob": Wire.describe_training_job,
    "GetMetricData": Wire.get_metric_data,
    "GetObject": Wire.get_object,
    "ListObjectsV2": Wire.list_objects_v2,
    "ListDurableExecutionsByFunction": Wire.list_durable_executions_by_function,
    "DescribeAlarms": Wire.describe_alarms,
    "DeleteAlarms": Wire.delete_alarms,
}


def fleet_of(count: int, watch: WatchPlan) -> list[Job]:
    """`count` Jobs that train."""
    jobs = []
    for number in range(count):
        name = f"job-{number:05d}"
        jobs.append(
            Job(
                job_id=name,
                name=name,
                platform="training_job",
                policy_name="default",
                created_at=NOW,
                current_attempt=name,
                attempt_number=1,
                attempt_started_at=NOW,
                mailbox="" if watch.has_own_metrics else f"s3://bucket/{name}",
                watch=watch,
            )
        )
    return jobs
