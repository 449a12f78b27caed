"""The smoke test itself: submit, watch, look, remove, add up.

Everything that it makes carries the name of the run, is listed while it stands, and is removed at the end, also where
something went wrong. What AWS keeps (the ended training jobs, their log streams) costs nothing and is named.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from infra.package import ROOT
from rekindle.client.api import Client, path
from rekindle.client.errors import CliError

TRAINER: Final = Path(__file__).with_name("trainer.py")
CODE: Final = "/opt/ml/input/data/code"  # Source: SageMaker developer guide, where training data is put, channel `code`
# USD an hour of SageMaker training in us-east-1. Source: SageMaker pricing, as known in November 2026.
HOURLY: Final = {"ml.m5.large": 0.115, "ml.c5.large": 0.102, "ml.t3.medium": 0.05}
MAX_RUNTIME: Final = timedelta(minutes=20)
_NOTICES: Final = 10  # messages that one receive may bring


class SmokeFailed(Exception):
    """Something that had to happen did not; the message says what, and where to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitLimits:
    """How long is waited. The figures are SageMaker's: an instance takes minutes to start, twice."""

    protected: timedelta = timedelta(minutes=10)
    failed: timedelta = timedelta(minutes=15)
    recovered: timedelta = timedelta(minutes=25)
    completed: timedelta = timedelta(minutes=15)
    notified: timedelta = timedelta(minutes=3)
    look: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeTarget:
    """Where the test runs. client: boto3's client of a service. outputs: the stack's.

    role, prefix: a training role of the stack, and the prefix below which its tag opens mailboxes. code: where a
    container finds the channel `code`. settings: further environment of the trainer.
    """

    stack: str
    client: Callable[[str], Any]
    api: Client
    outputs: Mapping[str, str]
    role: str
    prefix: str
    image: str
    instance: str = "ml.m5.large"
    policy: str = "default"
    code: str = CODE
    pace_s: float = 1.0
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Smoke:
    """One run. pause: waits so long; say: tells people a line; now: the time."""

    place: SmokeTarget
    name: str
    pause: Callable[[float], object]
    say: Callable[[str], None]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    patience: WaitLimits = field(default_factory=WaitLimits)
    problems: list[str] = field(default_factory=list)

    def run(self) -> bool:
        """All of it; True when everything was as it should be."""
        with ExitStack() as made:
            try:
                queue = made.enter_context(self._listening())
                made.enter_context(self._uploaded())
                made.enter_context(self._submitted())
                self._watch(queue)
            except (SmokeFailed, CliError) as err:
                self._check("the run", False, str(err))
            self._cost()
        self._left()
        self.say(f"{self.name}: {'all is well' if not self.problems else f'{len(self.problems)} problem(s)'}")
        return not self.problems

    # ---- what is watched -------------------------------------------------------------------------------------------

    def _watch(self, queue: str) -> None:
        limit = self.patience
        self._until("the Job is protected", limit.protected, self._job)
        self._until("alarms of its own are made", limit.failed, self._own_alarms)  # by the sweep, once a minute
        self._until("the first attempt dies on purpose", limit.failed, lambda: self._ended(self.name) == "Failed")
        brief = self._until("an Incident is closed", limit.recovered, self._closed)
        incident = self.place.api.get(path("incidents", brief["incident_id"]))
        if incident["phase"] != "recovered":
            last = (incident["timeline"] or [{}])[-1].get("text", "")
            raise SmokeFailed(f"the Incident {brief['incident_id']} ended as {incident['phase']}: {last}")
        self._check("it is recovered", True, "")
        self._check("its timeline shows what happened", len(incident["timeline"]) >= 3, "the timeline is short")
        second = self._until("the run continues under a new name", limit.completed, self._second)
        self._until("and ends on its own", limit.completed, lambda: self._ended(second) == "Completed")
        self._check("it continued from a checkpoint", self._went_on(second), "its environment names no checkpoint")
        ledger = self.place.api.get(path("incidents", brief["incident_id"], "ledger"))
        known = {name: ledger.get(name) for name in ("mttd_s", "mttr_s", "steps_lost")}
        missing = [name for name, value in known.items() if not isinstance(value, int | float)]
        self._check(f"the ledger knows {known}", not missing, f"the ledger does not know {', '.join(missing)}")
        self._until("notices of it arrive", limit.notified, lambda: self._is_notified(queue, brief["incident_id"]))
        self._alarms()

    def _job(self) -> bool:
        try:
            return bool(self.place.api.get(path("jobs", self.name)))
        except CliError:
            return False

    def _closed(self) -> dict[str, Any] | None:
        found = self.place.api.get("/incidents", job_id=self.name, state="closed")["incidents"]
        return dict(found[0]) if found else None

    def _attempts(self) -> list[str]:
        """The names of the training jobs, oldest first."""
        sagemaker = self.place.client("sagemaker")
        pages = sagemaker.get_paginator("list_training_jobs").paginate(NameContains=self.name, SortOrder="Ascending")
        return [job["TrainingJobName"] for page in pages for job in page["TrainingJobSummaries"]]

    def _second(self) -> str | None:
        later = [name for name in self._attempts() if name != self.name]
        return later[-1] if later else None

    def _describe(self, attempt: str) -> dict[str, Any]:
        return dict(self.place.client("sagemaker").describe_training_job(TrainingJobName=attempt))

    def _ended(self, attempt: str) -> str | None:
        """Its last state. Ended in another way than expected is no reason to wait on."""
        found = self._describe(attempt)
        status = str(found["TrainingJobStatus"])
        if attempt == self.name and status in ("Completed", "Stopped"):
            raise SmokeFailed(f"{attempt} is {status}, where it should have died")
        if attempt != self.name and status in ("Failed", "Stopped"):
            raise SmokeFailed(f"{attempt} is {status}: {found.get('FailureReason', 'no reason given')}")
        return status

    def _went_on(self, attempt: str) -> bool:
        environment = self._describe(attempt).get("Environment", {})
        return any(f"/{self.name}/checkpoints/" in value for value in environment.values())

    def _is_notified(self, queue: str, incident_id: str) -> bool:
        answer = self.place.client("sqs").receive_message(
            QueueUrl=queue, MaxNumberOfMessages=_NOTICES, WaitTimeSeconds=1
        )
        return any(
            incident_id in message["Body"] or self.name in message["Body"] for message in answer.get("Messages", [])
        )

    def _own_alarms(self) -> list[str]:
        prefix = f"{self.place.stack}-job-{self.name}"
        found = self.place.client("cloudwatch").describe_alarms(AlarmNamePrefix=prefix)["MetricAlarms"]
        return [alarm["AlarmName"] for alarm in found]

    def _alarms(self) -> None:
        watch, stack = self.place.client("cloudwatch"), self.place.stack
        pages = watch.get_paginator("describe_alarms").paginate(AlarmNamePrefix=f"{stack}-")
        rings = [
            alarm["AlarmName"] for page in pages for alarm in page["MetricAlarms"] if alarm["StateValue"] == "ALARM"
        ]
        foreign = [name for name in rings if not name.startswith((f"{stack}-job-", f"{stack}-jobs-"))]
        self._check("no alarm of the stack rings", not foreign, f"these ring: {', '.join(foreign)} (docs/runbook)")

    # ---- what is made, and removed ---------------------------------------------------------------------------------

    @contextmanager
    def _listening(self) -> Iterator[str]:
        """A queue that hears the stack's notices while this lasts."""
        sqs, sns, topic = self.place.client("sqs"), self.place.client("sns"), self.place.outputs["TopicArn"]
        url = sqs.create_queue(QueueName=self.name, Attributes={"MessageRetentionPeriod": "3600"})["QueueUrl"]
        try:
            arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
            statement = {
                "Effect": "Allow",
                "Principal": {"Service": "sns.amazonaws.com"},
                "Action": "sqs:SendMessage",
                "Resource": arn,
                "Condition": {"ArnEquals": {"aws:SourceArn": topic}},
            }
            policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
            sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
            subscribed = sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn, ReturnSubscriptionArn=True)
            try:
                yield str(url)
            finally:
                sns.unsubscribe(SubscriptionArn=subscribed["SubscriptionArn"])
        finally:
            sqs.delete_queue(QueueUrl=url)
            self.say(f"removed: the queue {self.name} and its subscription")

    @contextmanager
    def _uploaded(self) -> Iterator[None]:
        """Trainer and package in the stack's bucket; everything below the run's prefix goes at the end."""
        s3, bucket = self.place.client("s3"), self.place.outputs["BucketName"]
        root = f"{self.place.prefix}/{self.name}"
        try:
            s3.put_object(Bucket=bucket, Key=f"{root}/code/trainer.py", Body=TRAINER.read_bytes())
            s3.put_object(Bucket=bucket, Key=f"{root}/code/rekindle.zip", Body=package())
            yield
        finally:
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{root}/")
            keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
            for first in range(0, len(keys), 1000):
                some = [{"Key": key} for key in keys[first : first + 1000]]
                s3.delete_objects(Bucket=bucket, Delete={"Objects": some, "Quiet": True})
            self.say(f"removed: {len(keys)} objects below s3://{bucket}/{root}/")

    @contextmanager
    def _submitted(self) -> Iterator[None]:
        """The training job; whatever of it still runs at the end is stopped, and the Job's alarms go."""
        sagemaker = self.place.client("sagemaker")
        sagemaker.create_training_job(**self.request())
        try:
            yield
        finally:
            for name in self._attempts():
                if self._describe(name)["TrainingJobStatus"] == "InProgress":
                    sagemaker.stop_training_job(TrainingJobName=name)
                    self.say(f"stopped: {name}")
            if found := self._own_alarms():
                self.place.client("cloudwatch").delete_alarms(AlarmNames=found)
                self.say(f"removed: {len(found)} alarms of the Job")

    def request(self) -> dict[str, Any]:
        """For CreateTrainingJob, as a user writes it: the tags are what asks for protection."""
        place = self.place
        root = f"s3://{place.outputs['BucketName']}/{place.prefix}/{self.name}"
        source = {"S3DataType": "S3Prefix", "S3Uri": f"{root}/code", "S3DataDistributionType": "FullyReplicated"}
        tags = {"rekindle:policy": place.policy, "rekindle:alarms": "job", "rekindle:smoke": self.name}
        if place.stack != "rekindle":
            tags["rekindle:stage"] = place.stack.removeprefix("rekindle-")
        return {
            "TrainingJobName": self.name,
            "RoleArn": place.role,
            "AlgorithmSpecification": {
                "TrainingImage": place.image,
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["python3"],
                "ContainerArguments": [f"{place.code}/trainer.py"],
            },
            "InputDataConfig": [{"ChannelName": "code", "DataSource": {"S3DataSource": source}}],
            "OutputDataConfig": {"S3OutputPath": f"{root}/output"},
            "ResourceConfig": {"InstanceType": place.instance, "InstanceCount": 1, "VolumeSizeInGB": 10},
            "StoppingCondition": {"MaxRuntimeInSeconds": int(MAX_RUNTIME.total_seconds())},
            "Environment": {
                "PYTHONPATH": f"{place.code}/rekindle.zip",
                "REKINDLE_MAILBOX": root,
                "REKINDLE_CHECKPOINT_URI": f"{root}/checkpoints",
                "REKINDLE_BUS": place.outputs["BusName"],
                "SMOKE_STEPS": "180",
                "SMOKE_DIES_AT": "45",
                "SMOKE_PACE_S": str(place.pace_s),
                **place.settings,
            },
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }

    # ---- telling ---------------------------------------------------------------------------------------------------

    def _cost(self) -> None:
        """Of the instances, by their billed seconds; the rest is requests, some hundredths of a cent."""
        hourly, seconds = HOURLY.get(self.place.instance), 0
        for name in self._attempts():
            found = self._describe(name)
            began, ended = found.get("TrainingStartTime"), found.get("TrainingEndTime")
            spent = int((ended - began).total_seconds()) if began and ended else 0
            seconds += int(found.get("BillableTimeInSeconds", spent))
        price = "price unknown" if hourly is None else f"{seconds / 3600 * hourly:.4f} USD at {hourly} an hour"
        self.say(f"cost: {seconds} s of {self.place.instance}: {price} (us-east-1); requests: less than 0.01 USD")

    def _left(self) -> None:
        names = ", ".join(self._attempts()) or "none"
        self.say(f"left, free of charge: the ended training jobs ({names}) with their logs; the Job in the table")

    def _until(self, what: str, limit: timedelta, look: Callable[[], Any]) -> Any:
        ends = self.now() + limit
        while not (found := look()):
            if self.now() >= ends:
                raise SmokeFailed(f"{what}: not within {limit}")
            self.pause(self.patience.look.total_seconds())
        self._check(what, True, "")
        return found

    def _check(self, what: str, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problems.append(otherwise)
        self.say(f"{'ok' if holds else 'PROBLEM'}: {what}{'' if holds else f': {otherwise}'}")


def package() -> bytes:
    """Rekindle's package as one zip, from which Python imports; pure Python, boto3 is the image's."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression=zipfile.ZIP_DEFLATED) as packed:
        for file in sorted((ROOT / "rekindle").rglob("*.py")):
            packed.write(file, file.relative_to(ROOT))
    return buffer.getvalue()
