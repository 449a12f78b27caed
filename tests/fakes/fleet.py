"""A fleet of Jobs on the embedded cloud: real adapters over moto's wire, states and metrics as the test says."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from chalicelib.aws.dynamodb.jobs import job_item
from chalicelib.bootstrap import Service, build
from chalicelib.domain.model.job import Job, WatchPlan
from chalicelib.platforms.training_job.platform import TRAINING_JOB
from chalicelib.platforms.training_job.tags import TAG_POLICY
from chalicelib.ports.sweep import SweepMark
from chalicelib.services.sweep.round import SweepFigures
from localcloud.aws.sagemaker import Phase
from localcloud.aws.wire import PLATFORM
from localcloud.cloud import STACK, Cloud
from localcloud.stack import CloudSession
from rekindle.protocol.keys import heartbeat_key
from rekindle.protocol.mailbox import Heartbeat, LossState, RunPhase
from rekindle.protocol.manifests import Manifest, ManifestFile, SaveKind
from tests.fakes.executions import RememberedExecutions

STEP = ("Rekindle/Training", "Step", "JobId")
BAD = ("Rekindle/Training", "NonFinite", "JobId")
LOSS = ("/aws/sagemaker/TrainingJobs", "train:loss", "TrainingJobName")


def plain_job(name: str, at: datetime) -> Job:
    """A training job that is protected, with its mailbox, and whose first attempt runs since `at`."""
    return Job(
        job_id=name,
        name=name,
        platform=TRAINING_JOB.name,
        policy_name="default",
        created_at=at,
        current_attempt=name,
        attempt_number=1,
        attempt_started_at=at,
        mailbox=f"s3://{STACK}-mailbox/{name}",
    )


@dataclass
class Fleet:
    """What a test or a measurement does to the fleet, and what it sees of it."""

    cloud: Cloud
    service: Service
    jobs: list[Job] = field(default_factory=list)

    def add(self, count: int, *, prefix: str = "job", mailbox: bool = True, watch: WatchPlan | None = None) -> None:
        """`count` more runs that train, protected."""
        now = self.cloud.clock.now()
        for number in range(len(self.jobs), len(self.jobs) + count):
            name = f"{prefix}-{number:05d}"
            self.cloud.training.create_training_job(
                {"TrainingJobName": name, "Tags": [{"Key": TAG_POLICY, "Value": "default"}]}
            )
            self.cloud.training.enter(name, Phase.TRAINING)
            job = plain_job(name, now)
            job = replace(job, mailbox=job.mailbox if mailbox else "", watch=watch or WatchPlan())
            # Not by `register`: moto copies the whole table in each transaction.
            self.cloud.client("dynamodb").put_item(TableName=STACK, Item=job_item(job))
            self.jobs.append(job)

    def points(self, metric: tuple[str, str, str], values: Mapping[str, Sequence[tuple[datetime, float]]]) -> None:
        """Put data points, by the dimension's value."""
        namespace, name, dimension = metric
        data = [
            {
                "MetricName": name,
                "Dimensions": [{"Name": dimension, "Value": value}],
                "Timestamp": at,
                "Value": number,
            }
            for value, series in values.items()
            for at, number in series
        ]
        for start in range(0, len(data), 500):
            self.cloud.client("cloudwatch").put_metric_data(Namespace=namespace, MetricData=data[start : start + 500])

    def move(self, step: float = 100, jobs: Sequence[Job] | None = None) -> None:
        """Every run (or these) made a step a minute ago."""
        at = self.cloud.clock.now() - timedelta(minutes=1)
        self.points(STEP, {job.job_id: [(at, step)] for job in (self.jobs if jobs is None else jobs)})

    def heartbeat(self, job: Job, **changes: Any) -> None:
        """A heartbeat in the Job's mailbox."""
        values: dict[str, Any] = {
            "job_id": job.job_id,
            "attempt": job.current_attempt,
            "attempt_number": 1,
            "step": 100,
            "first_step": 1,
            "loss": 1.0,
            "loss_state": LossState.FINITE,
            "phase": RunPhase.TRAINING,
            "step_s_median": 1.0,
            "rank": 0,
            "world_size": 1,
            "at": self.cloud.clock.now(),
        }
        body = Heartbeat(**(values | changes)).to_json()
        key = f"{job.job_id}/{heartbeat_key(job.current_attempt)}"
        self.cloud.client("s3").put_object(Bucket=f"{STACK}-mailbox", Key=key, Body=body)

    def save(self, job: Job, step: int) -> None:
        """A manifest in the Job's mailbox, completed now."""
        manifest = Manifest(
            job_id=job.job_id,
            attempt=job.current_attempt,
            attempt_number=1,
            step=step,
            kind=SaveKind.PERIODIC,
            root=f"{job.mailbox}/step-{step}",
            files=(ManifestFile(path="model.bin", bytes=1),),
            world_size=1,
            saved_at=self.cloud.clock.now(),
        )
        key = f"{job.job_id}/{manifest.key}"
        self.cloud.client("s3").put_object(Bucket=f"{STACK}-mailbox", Key=key, Body=manifest.to_json())

    def give_turn(self, job: Job, every: int) -> None:
        """Let the next round be one in which the Job has its pass of so many."""
        number = 1000 * every + zlib.crc32(job.job_id.encode()) % every
        now = self.cloud.clock.now()
        self.service.marks.save(SweepMark(round=number - 1, began_at=now, last_began_at=now))

    def turns(self, every: int) -> int:
        """How many Jobs had their turn of so many in the round that has just ended."""
        number = self.service.marks.load().round
        return sum(zlib.crc32(job.job_id.encode()) % every == number % every for job in self.jobs)

    def wait(self, minutes: float = 1) -> None:
        """Let virtual time pass."""
        self.cloud.clock.run_for(timedelta(minutes=minutes))  # type: ignore[attr-defined]  # a SimClock

    def sweep(self) -> tuple[SweepFigures, Counter[str]]:
        """One sweep, and what it asked of AWS."""
        self.cloud.wire.calls.clear()
        swept = self.service.sweep.run()
        return swept, Counter(self.cloud.wire.calls)


@contextmanager
def fleet() -> Iterator[Fleet]:
    """No function is deployed and no event arrives: the sweep is alone, and what it starts is only written down."""
    with Cloud() as cloud:
        service = build(cloud.environ(), clock=cloud.clock, session=CloudSession(cloud, PLATFORM))
        service.executions = RememberedExecutions()  # type: ignore[assignment]  # the port's fake, in place of Lambda's
        cloud.training.backend = None  # states change when the test says so
        yield Fleet(cloud=cloud, service=service)
