"""SageMaker training jobs as AWS shows them: names, states, transitions, tags, limits. What runs is a backend's affair.

The API speaks botocore's shapes (`aws_shapes` holds it to them). Times are the cloud clock's. Each change of state is
published as `SageMaker Training Job State Change`.
Source: docs/facts-sagemaker.md#training-jobs; botocore sagemaker model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol

from localcloud.aws.answers import AwsError, as_time, paged
from localcloud.aws.authorization import ACCOUNT_ID, REGION
from localcloud.aws.clock import Clock


class Phase(StrEnum):
    """SecondaryStatus, as far as training jobs that Rekindle drives show it (the model has a few more)."""

    STARTING = "Starting"
    PENDING = "Pending"
    DOWNLOADING = "Downloading"
    TRAINING = "Training"
    UPLOADING = "Uploading"
    INTERRUPTED = "Interrupted"
    RESTARTING = "Restarting"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    MAX_RUNTIME_EXCEEDED = "MaxRuntimeExceeded"
    MAX_WAIT_TIME_EXCEEDED = "MaxWaitTimeExceeded"
    COMPLETED = "Completed"
    FAILED = "Failed"


_TIME_IS_OVER = frozenset({Phase.MAX_RUNTIME_EXCEEDED, Phase.MAX_WAIT_TIME_EXCEEDED})
TERMINAL = frozenset({Phase.STOPPED, *_TIME_IS_OVER, Phase.COMPLETED, Phase.FAILED})
_RUNNING = frozenset(Phase) - TERMINAL - {Phase.STOPPING}

# Where a job can go from each phase. A job can fail, be stopped or be repaired from anywhere while it is in progress.
TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    **{phase: frozenset(_RUNNING | TERMINAL | {Phase.STOPPING}) for phase in _RUNNING},
    # A job that ends by itself while it is being stopped still ends as stopped or failed, never as in progress.
    Phase.STOPPING: frozenset({Phase.STOPPED, *_TIME_IS_OVER, Phase.FAILED}),
    **{phase: frozenset() for phase in TERMINAL},
}

_STATUS = {
    Phase.STOPPING: "Stopping",
    Phase.STOPPED: "Stopped",
    Phase.MAX_RUNTIME_EXCEEDED: "Stopped",
    Phase.MAX_WAIT_TIME_EXCEEDED: "Stopped",
    Phase.COMPLETED: "Completed",
    Phase.FAILED: "Failed",
}

# Texts that DescribeTrainingJob shows beside each transition. Source: SageMaker console.
_MESSAGES = {
    Phase.STARTING: "Starting the training job",
    Phase.PENDING: "Training job waiting for capacity",
    Phase.DOWNLOADING: "Downloading the training image",
    Phase.TRAINING: "Training image download completed. Training in progress.",
    Phase.UPLOADING: "Uploading generated training model",
    Phase.INTERRUPTED: "Training job interrupted due to insufficient capacity",
    Phase.RESTARTING: "Repairing training cluster due to hardware failure",
    Phase.STOPPING: "Stopping the training job",
    Phase.STOPPED: "Training job stopped",
    Phase.MAX_RUNTIME_EXCEEDED: "Training job runtime exceeded MaxRuntimeInSeconds provided",
    Phase.MAX_WAIT_TIME_EXCEEDED: "Training job runtime exceeded MaxWaitTimeInSeconds provided",
    Phase.COMPLETED: "Training job completed",
    Phase.FAILED: "Training job failed",
}

# Members of CreateTrainingJobRequest that DescribeTrainingJob does not give back. Source: botocore.
_NOT_DESCRIBED = frozenset({"Tags", "SessionChainingConfig"})
# Members of the event's detail beside the states. Source: the sample in automating-sagemaker-with-eventbridge.
_IN_EVENT = (
    "HyperParameters",
    "AlgorithmSpecification",
    "RoleArn",
    "InputDataConfig",
    "OutputDataConfig",
    "ResourceConfig",
    "VpcConfig",
    "StoppingCondition",
)
_MAX_REASON_CHARS = 1024  # Source: botocore FailureReason
_DEFAULT_MAX_RUNTIME_S = 24 * 3600  # Source: botocore, StoppingCondition
_WARM_POOL_KEYS = ("RoleArn", "VpcConfig", "EnableNetworkIsolation", "EnableInterContainerTrafficEncryption")


@dataclass(slots=True, kw_only=True)
class TrainingJob:
    """One training job. `request` is what CreateTrainingJob was given, without tags."""

    name: str
    arn: str
    request: dict[str, Any]
    tags: dict[str, str]
    created_at: datetime
    modified_at: datetime
    phase: Phase = Phase.STARTING
    started_at: datetime | None = None
    ended_at: datetime | None = None
    failure_reason: str | None = None
    stop_requested_at: datetime | None = None
    transitions: list[dict[str, Any]] = field(default_factory=list)
    warm_pool: dict[str, Any] | None = None
    reused_warm_pool: bool = False

    @property
    def status(self) -> str:
        return _STATUS.get(self.phase, "InProgress")

    @property
    def is_terminal(self) -> bool:
        return self.phase in TERMINAL

    @property
    def environment(self) -> dict[str, str]:
        return dict(self.request.get("Environment") or {})

    @property
    def instance_count(self) -> int:
        return int((self.request.get("ResourceConfig") or {}).get("InstanceCount", 1))

    @property
    def max_runtime(self) -> timedelta:
        condition = self.request.get("StoppingCondition") or {}
        return timedelta(seconds=condition.get("MaxRuntimeInSeconds", _DEFAULT_MAX_RUNTIME_S))

    def describe(self) -> dict[str, Any]:
        """The answer of DescribeTrainingJob."""
        answer = {k: v for k, v in self.request.items() if k not in _NOT_DESCRIBED and v is not None}
        answer.setdefault("StoppingCondition", {"MaxRuntimeInSeconds": _DEFAULT_MAX_RUNTIME_S})
        for flag in ("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption", "EnableManagedSpotTraining"):
            answer.setdefault(flag, False)
        output = str((self.request.get("OutputDataConfig") or {}).get("S3OutputPath", "s3://output")).rstrip("/")
        answer |= {
            "TrainingJobArn": self.arn,
            "TrainingJobStatus": self.status,
            "SecondaryStatus": self.phase.value,
            "ModelArtifacts": {"S3ModelArtifacts": f"{output}/{self.name}/output/model.tar.gz"},
            "CreationTime": self.created_at,
            "LastModifiedTime": self.modified_at,
            "SecondaryStatusTransitions": [dict(t) for t in self.transitions],
        }
        if "CheckpointConfig" in answer:
            answer["CheckpointConfig"] = {"LocalPath": "/opt/ml/checkpoints"} | answer["CheckpointConfig"]
        if self.started_at is not None:
            answer["TrainingStartTime"] = self.started_at
        if self.ended_at is not None:
            answer["TrainingEndTime"] = self.ended_at
            if self.started_at is not None:
                trained_s = max(1, int((self.ended_at - self.started_at).total_seconds()))
                answer |= {"TrainingTimeInSeconds": trained_s, "BillableTimeInSeconds": trained_s}
        if self.failure_reason is not None:
            answer["FailureReason"] = self.failure_reason
        if self.warm_pool is not None:
            answer["WarmPoolStatus"] = dict(self.warm_pool)
        return answer

    def summary(self) -> dict[str, Any]:
        """The entry in ListTrainingJobs."""
        entry = {
            "TrainingJobName": self.name,
            "TrainingJobArn": self.arn,
            "CreationTime": self.created_at,
            "LastModifiedTime": self.modified_at,
            "TrainingJobStatus": self.status,
            "SecondaryStatus": self.phase.value,
        }
        if self.ended_at is not None:
            entry["TrainingEndTime"] = self.ended_at
        return entry

    def event_detail(self) -> dict[str, Any]:
        """The detail of the state-change event: times in epoch milliseconds, tags always empty, as documented."""
        described = self.describe()
        detail: dict[str, Any] = {
            "TrainingJobName": self.name,
            "TrainingJobArn": self.arn,
            "TrainingJobStatus": self.status,
            "SecondaryStatus": self.phase.value,
            "HyperParameters": {},
            "Tags": {},
        }
        if self.failure_reason is not None:
            detail["FailureReason"] = self.failure_reason
        detail |= {key: described[key] for key in _IN_EVENT if key in described}
        for key in ("CreationTime", "TrainingStartTime", "TrainingEndTime", "LastModifiedTime"):
            if key in described:
                detail[key] = _epoch_ms(described[key])
        detail["SecondaryStatusTransitions"] = [
            {k: _epoch_ms(v) if isinstance(v, datetime) else v for k, v in t.items()} for t in self.transitions
        ]
        return detail


class TrainingBackend(Protocol):
    """What makes a job run. It drives the job by `TrainingJobs.enter`."""

    def launch(self, job: TrainingJob) -> None:
        """The job was created; must return at once."""
        ...

    def stop(self, job: TrainingJob) -> None:
        """StopTrainingJob was called (SIGTERM, then 120 s); must return at once and end in STOPPED."""
        ...


Publish = Callable[[str, str, dict[str, Any], list[str]], object]


class TrainingJobs:
    """The SageMaker API for training jobs.

    publish: called with (source, detail-type, detail, resources) for each change of state.
    """

    def __init__(self, *, clock: Clock, publish: Publish) -> None:
        self._clock = clock
        self._publish = publish
        self._arn_root = f"arn:aws:sagemaker:{REGION}:{ACCOUNT_ID}:training-job/"
        self._lock = threading.RLock()
        self.jobs: dict[str, TrainingJob] = {}
        self.backend: TrainingBackend | None = None

    # ---- what tests and backends do --------------------------------------------------------------------------------

    def enter(self, name: str, phase: Phase, *, failure_reason: str | None = None) -> bool:
        """Bring a job to a phase and publish it; False, and nothing, where the job cannot go there any more."""
        with self._lock:
            job = self.jobs[name]
            if phase not in TRANSITIONS[job.phase]:
                return False
            now = self._clock.now()
            if job.transitions:
                job.transitions[-1]["EndTime"] = now
            job.phase = phase
            job.modified_at = now
            transition = {"Status": phase.value, "StartTime": now, "StatusMessage": _MESSAGES[phase]}
            if phase in TERMINAL:
                job.ended_at = now
                transition["EndTime"] = now
                self._retain_warm_pool(job)
            if phase is Phase.TRAINING and job.started_at is None:
                job.started_at = now
            if failure_reason is not None:
                job.failure_reason = failure_reason[:_MAX_REASON_CHARS]
            job.transitions.append(transition)
            detail = job.event_detail()
        self._publish("aws.sagemaker", "SageMaker Training Job State Change", detail, [job.arn])
        return True

    def restore(self, jobs: Iterable[TrainingJob]) -> None:
        """Take jobs from an earlier life of the cloud as they were; nothing runs and nothing is published."""
        with self._lock:
            self.jobs.update({job.name: job for job in jobs})

    # ---- the API ---------------------------------------------------------------------------------------------------

    def create_training_job(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["TrainingJobName"]
        with self._lock:
            if name in self.jobs:  # names stay taken for ever, also those of finished jobs
                raise AwsError("ResourceInUse", f"Training job names must be unique within an AWS account: {name}")
            now = self._clock.now()
            job = TrainingJob(
                name=name,
                arn=self._arn_root + name,
                request={k: v for k, v in request.items() if k != "Tags"},
                tags={tag["Key"]: tag["Value"] for tag in request.get("Tags") or []},
                created_at=now,
                modified_at=now,
            )
            job.reused_warm_pool = self._take_warm_pool(job)
            self.jobs[name] = job
        self.enter(name, Phase.STARTING)
        if self.backend is not None:
            self.backend.launch(job)
        return {"TrainingJobArn": job.arn}

    def describe_training_job(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return self._find(request["TrainingJobName"], missing="ValidationException").describe()

    def stop_training_job(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["TrainingJobName"]
        with self._lock:
            job = self._find(name)
            if job.is_terminal:
                # The text is not documented; the code is what callers may rely on.
                raise AwsError(
                    "ValidationException",
                    f"The request was rejected because the training job is in status {job.status}.",
                )
            if job.phase is Phase.STOPPING:
                return {}
            job.stop_requested_at = self._clock.now()
        if self.enter(name, Phase.STOPPING) and self.backend is not None:
            self.backend.stop(job)
        return {}

    def list_training_jobs(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            found = [job for job in self.jobs.values() if _matches(job, request)]
        keys: dict[str, Callable[[TrainingJob], Any]] = {
            "Name": lambda job: job.name,
            "CreationTime": lambda job: (job.created_at, job.name),
            "Status": lambda job: (job.status, job.name),
        }
        found.sort(key=keys[request.get("SortBy", "CreationTime")], reverse=request.get("SortOrder") == "Descending")
        page, token = paged(found, request)
        answer: dict[str, Any] = {"TrainingJobSummaries": [job.summary() for job in page]}
        return answer | ({"NextToken": token} if token else {})

    def tags_of(self, arn: str) -> dict[str, str] | None:
        """The tags behind an ARN, to be changed in place; None where it is no training job's."""
        if not arn.startswith(self._arn_root):
            return None
        with self._lock:
            return self._find(arn.removeprefix(self._arn_root)).tags

    def _find(self, name: str, *, missing: str = "ResourceNotFound") -> TrainingJob:
        job = self.jobs.get(name)
        if job is None:
            # The model lists ResourceNotFound; the live service is known to answer DescribeTrainingJob with
            # ValidationException (so does moto). Callers must take both, so each operation shows one of them.
            raise AwsError(missing, "Requested resource not found.")
        return job

    def _retain_warm_pool(self, job: TrainingJob) -> None:
        keep_s = (job.request.get("ResourceConfig") or {}).get("KeepAlivePeriodInSeconds")
        if not keep_s:
            return
        job.warm_pool = {"Status": "Available", "ResourceRetainedBillableTimeInSeconds": 0}
        self._clock.after(timedelta(seconds=keep_s), lambda: self._release_warm_pool(job), label="warm pool ends")

    def _release_warm_pool(self, job: TrainingJob) -> None:
        with self._lock:
            if job.warm_pool and job.warm_pool["Status"] == "Available":
                job.warm_pool["Status"] = "Terminated"

    def _take_warm_pool(self, job: TrainingJob) -> bool:
        wanted = _warm_pool_key(job)
        for other in self.jobs.values():
            if other.warm_pool and other.warm_pool["Status"] == "Available" and _warm_pool_key(other) == wanted:
                other.warm_pool |= {"Status": "Reused", "ReusedByJob": job.name}
                return True
        return False


def _matches(job: TrainingJob, request: Mapping[str, Any]) -> bool:
    if request.get("StatusEquals") and job.status != request["StatusEquals"]:
        return False
    if request.get("NameContains") and request["NameContains"] not in job.name:
        return False
    for prefix, at in (("CreationTime", job.created_at), ("LastModifiedTime", job.modified_at)):
        after, before = as_time(request.get(f"{prefix}After")), as_time(request.get(f"{prefix}Before"))
        if (after is not None and at <= after) or (before is not None and at >= before):
            return False
    return True


def _epoch_ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def _warm_pool_key(job: TrainingJob) -> tuple[Any, ...]:
    resources = {k: v for k, v in (job.request.get("ResourceConfig") or {}).items() if k != "KeepAlivePeriodInSeconds"}
    return (repr(sorted(resources.items())), *(repr(job.request.get(key)) for key in _WARM_POOL_KEYS))
