"""SageMaker and CloudWatch in memory, at boto3's own level.

The states of training jobs are `localcloud.aws.sagemaker`'s. One client is one caller. What the service's clients are
answered may be wrong or missing, as the story says (`stories/source_faults.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Final

from localcloud.aws.answers import AwsError
from localcloud.aws.sagemaker import TrainingJobs
from localcloud.aws.shapes import service_model
from localcloud.platforms.hyperpod import Clusters
from simulation.cloud.store import refused

Check = Callable[[str, str], None]
"""Called with an operation's name and what it is about; raises ClientError where the story says so."""


_CHANGES: Final = ("CreateTrainingJob", "StopTrainingJob", "BatchRebootClusterNodes", "BatchReplaceClusterNodes")


class MemorySageMaker:
    """A boto3 SageMaker client for training jobs and HyperPod clusters.

    A call that changes the world is made within `changing`; what that raises is the call's error.
    """

    def __init__(
        self,
        jobs: TrainingJobs,
        pods: Clusters,
        *,
        check: Check,
        changing: Callable[[str, dict[str, Any]], AbstractContextManager[None]],
    ) -> None:
        self._jobs = jobs
        self._pods = pods
        self._check = check
        self._changing = changing
        self.meta = SimpleNamespace(service_model=service_model("sagemaker"))

    def describe_training_job(self, **request: Any) -> dict[str, Any]:
        return self._answer("DescribeTrainingJob", self._jobs.describe_training_job, request)

    def list_training_jobs(self, **request: Any) -> dict[str, Any]:
        return self._answer("ListTrainingJobs", self._jobs.list_training_jobs, request)

    def create_training_job(self, **request: Any) -> dict[str, Any]:
        return self._answer("CreateTrainingJob", self._jobs.create_training_job, request)

    def stop_training_job(self, **request: Any) -> dict[str, Any]:
        return self._answer("StopTrainingJob", self._jobs.stop_training_job, request)

    def describe_cluster(self, **request: Any) -> dict[str, Any]:
        return self._answer("DescribeCluster", self._pods.describe_cluster, request)

    def describe_cluster_node(self, **request: Any) -> dict[str, Any]:
        return self._answer("DescribeClusterNode", self._pods.describe_cluster_node, request)

    def list_cluster_nodes(self, **request: Any) -> dict[str, Any]:
        return self._answer("ListClusterNodes", self._pods.list_cluster_nodes, request)

    def describe_cluster_event(self, **request: Any) -> dict[str, Any]:
        return self._answer("DescribeClusterEvent", self._pods.describe_cluster_event, request)

    def batch_reboot_cluster_nodes(self, **request: Any) -> dict[str, Any]:
        return self._answer("BatchRebootClusterNodes", self._pods.batch_reboot_cluster_nodes, request)

    def batch_replace_cluster_nodes(self, **request: Any) -> dict[str, Any]:
        return self._answer("BatchReplaceClusterNodes", self._pods.batch_replace_cluster_nodes, request)

    def list_tags(self, **request: Any) -> dict[str, Any]:
        self._check("ListTags", request["ResourceArn"])
        arn = request["ResourceArn"]
        tags = (self._pods.tags_of(arn) if ":cluster/" in arn else self._jobs.tags_of(arn)) or {}
        return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}

    def _answer(
        self, operation: str, method: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any]
    ) -> dict[str, Any]:
        self._check(operation, str(request.get("TrainingJobName", "")))
        try:
            with self._changing(operation, request) if operation in _CHANGES else nullcontext():
                return method(request)
        except AwsError as err:
            raise refused(operation, err.code, err.message, err.status) from err


class MemorySqs:
    """A boto3 SQS client of the service's, for the queues of orders. `sent` is called with each message."""

    def __init__(self, sent: Callable[[bytes], None]) -> None:
        self._sent = sent
        self._queues: set[str] = set()

    def create_queue(self, *, QueueName: str, **_: Any) -> dict[str, Any]:
        self._queues.add(QueueName)
        return {"QueueUrl": QueueName}

    def get_queue_url(self, *, QueueName: str) -> dict[str, Any]:
        """See boto3. Raises: ClientError."""
        if QueueName not in self._queues:
            raise refused("GetQueueUrl", "AWS.SimpleQueueService.NonExistentQueue")
        return {"QueueUrl": QueueName}

    def send_message(self, *, QueueUrl: str, MessageBody: str) -> dict[str, Any]:
        del QueueUrl
        self._sent(MessageBody.encode())
        return {"MessageId": "1"}


Reading = Callable[[str, str, datetime, datetime], list[tuple[datetime, float]]]
"""(metric, dimension's value, since, until) -> data points of whole minutes, oldest first."""


class MemoryCloudWatch:
    """A boto3 CloudWatch client for GetMetricData. `read` gives what has arrived by now."""

    def __init__(self, read: Reading, check: Check) -> None:
        self._read = read
        self._check = check

    def get_metric_data(
        self, *, MetricDataQueries: list[Mapping[str, Any]], StartTime: datetime, EndTime: datetime, **_: Any
    ) -> dict[str, Any]:
        """See boto3; one page."""
        self._check("GetMetricData", "")
        results = []
        for query in MetricDataQueries:
            metric = query["MetricStat"]["Metric"]
            points = self._read(metric["MetricName"], metric["Dimensions"][0]["Value"], StartTime, EndTime)
            results.append(
                {
                    "Id": query["Id"],
                    "StatusCode": "Complete",
                    "Timestamps": [at for at, _ in points],
                    "Values": [value for _, value in points],
                }
            )
        return {"MetricDataResults": results}


class NoAlarms:
    """ports.AlarmStore of an account without alarms of ours."""

    def put(self, job: object) -> tuple[str, ...]:  # noqa: ARG002  the port's own names
        return ()

    def put_shared(self) -> str:
        return "shared"

    def remove(self, job_ids: object) -> None:
        """See the port."""

    def remove_shared(self) -> None:
        """See the port."""

    def listed(self, token: str) -> tuple[frozenset[str], str]:  # noqa: ARG002  the port's own name
        return frozenset(), ""

    def tags_of(self, arn: str) -> Mapping[str, str]:  # noqa: ARG002  the port's own name
        return {}
