"""A head node that exists only on the clock: a modelled Slurm with its agent, and simulated attempts on its nodes.

Orders come from the cluster's real queue; documents and answers go to the cluster state and the bus, in the shared wire
formats, so the service under test reads exactly what a cluster would write.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from botocore.exceptions import ClientError

from localcloud.aws.clock import Clock, Timer
from localcloud.aws.sagemaker import TERMINAL, Phase, TrainingJob
from localcloud.platforms.sagemaker_simulated import Simulated
from localcloud.platforms.simulated_run import Script
from localcloud.slurm.agent import SlurmAgent
from localcloud.slurm.job import SimJob
from localcloud.slurm.model import SlurmModel
from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.cluster.names import agent_key, queue_name
from rekindle.protocol.keys import plan_key
from rekindle.protocol.launch_orders import ENV_RESUME_STEP, AttemptOrder, Plan, ResumePlan
from rekindle.protocol.wire import FOLDER, Place

TICK: Final = timedelta(seconds=10)
HEARTBEAT: Final = timedelta(seconds=30)
_NONE: Final = timedelta(0)
_SCRIPT: Final = Script(
    starting=_NONE,
    downloading=_NONE,
    startup=_NONE,
    step=timedelta(seconds=2),
    checkpoint_every=10,
    save=timedelta(seconds=1),
    stall_limit=timedelta(seconds=60),
)


class SlurmSimulated:
    """One cluster. `is_silent`: its agent is away; Slurm itself and the runs go on."""

    def __init__(
        self,
        *,
        clock: Clock,
        client: Callable[[str], Any],
        cluster: str,
        bucket: str,
        bus: str,
        stack: str,
        nodes: tuple[str, ...],
    ) -> None:
        self._clock = clock
        self._client = client
        self._bucket = bucket
        self._bus = bus
        self._stack = stack
        self.cluster = cluster
        self.model = SlurmModel(cluster=cluster, nodes=nodes, now=clock.now)
        self.model.on_start.append(self._start)
        self.model.on_end.append(lambda job: self._simulated.cut_off(job.attempt))
        s3, events = (partial(client, service) for service in ("s3", "events"))
        self._simulated = Simulated(clock=clock, jobs=self, s3=s3, events=events, default=_SCRIPT)
        self.runs = self._simulated.runs
        self._jobs: dict[str, SimJob] = {}
        self._asked: set[str] = set()  # keys of the requests that were found
        self.is_silent = False
        self.cluster_arn = ""  # set on HyperPod
        self._agent = SlurmAgent(self.model, now=clock.now, put=self._put, send=self._send_event)
        self._heartbeat_at: datetime | None = None
        self._url: str | None = None
        self._timer: Timer | None = None

    # ---- life ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """The agent starts: it says so, and from then on it works."""
        self._agent.start()
        self._tick()

    def close(self) -> None:
        """Nothing of it happens any more."""
        if self._timer is not None:
            self._timer.cancel()
        for attempt in self.runs:
            self._simulated.cut_off(attempt)

    def submit(self, *, mailbox: str, **more: Any) -> SimJob:
        """sbatch with a comment that asks for protection."""
        return self.model.submit(mailbox=mailbox, **more)

    def _tick(self) -> None:
        self.model.schedule()
        self._ask()
        if not self.is_silent:
            self._take_orders()
            self.model.schedule()
            self._publish()
        self._timer = self._clock.after(TICK, self._tick, label=f"{self.cluster} continues")

    # ---- the agent -------------------------------------------------------------------------------------------------

    def _take_orders(self) -> None:
        sqs = self._client("sqs")
        if self._url is None:
            try:
                self._url = sqs.get_queue_url(QueueName=queue_name(self._stack, self.cluster))["QueueUrl"]
            except ClientError:
                return
        got = sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10, WaitTimeSeconds=0)
        for message in got.get("Messages", ()):
            self._agent.take(message["Body"].encode())
            sqs.delete_message(QueueUrl=self._url, ReceiptHandle=message["ReceiptHandle"])

    def _publish(self) -> None:
        """What has changed, then the heartbeat that says that the rest still holds."""
        now = self._clock.now()
        self._agent.publish()
        if self._heartbeat_at is None or now - self._heartbeat_at >= HEARTBEAT:
            self._heartbeat_at = now
            self._agent.cluster_arn = self.cluster_arn
            self._put(agent_key(self.cluster), self._agent.heartbeat(at=now, read_at=now).to_json())

    def _send_event(self, detail_type: str, detail: dict[str, Any]) -> None:
        self._client("events").put_events(
            Entries=[
                {
                    "Source": "rekindle.agent",
                    "DetailType": detail_type,
                    "Detail": json.dumps(detail),
                    "EventBusName": self._bus,
                }
            ]
        )

    def _put(self, key: str, body: bytes) -> None:
        self._client("s3").put_object(Bucket=self._bucket, Key=key, Body=body)

    # ---- the runs --------------------------------------------------------------------------------------------------

    def enter(self, name: str, phase: Phase, *, failure_reason: str | None = None) -> bool:
        """See Platform: a process that ends by itself ends its Slurm job."""
        job = self._jobs[name]
        if job.attempt != name or job.state is not SlurmState.RUNNING:
            return False
        if phase is Phase.COMPLETED:
            self.model.end(job, SlurmState.COMPLETED, code=0)
        elif phase in TERMINAL:
            self.model.end(job, SlurmState.FAILED, reason="NonZeroExitCode", code=1, detail=failure_reason or "")
        return True

    def freeze(self, attempt: str) -> None:
        """No rank moves any more; its monitor lives, and says so."""
        self._simulated.freeze(attempt)

    def _start(self, job: SimJob) -> None:
        """Where the plan says; without one from the newest checkpoint that lies there."""
        order = AttemptOrder(
            job_id=job.lineage,
            attempt_number=job.restart + 1,
            mailbox=job.mailbox,
            bus=self._bus,
            resume=self._planned(job) or ResumePlan(step=self._newest(Place.parse(job.mailbox))),
        )
        now = self._clock.now()
        request = {"Environment": order.to_env(), "ResourceConfig": {"InstanceCount": job.wants}}
        self._jobs[job.attempt] = job
        self._simulated.launch(
            TrainingJob(name=job.attempt, arn="", request=request, tags={}, created_at=now, modified_at=now)
        )

    def _planned(self, job: SimJob) -> ResumePlan | None:
        """From the mailbox, else from the environment of a copy."""
        try:
            place = Place.parse(job.mailbox)
            found = self._client("s3").get_object(Bucket=place.bucket, Key=place.join(plan_key(job.attempt)).path)
        except ClientError as err:
            if err.response["Error"]["Code"] not in ("NoSuchKey", "404"):
                raise
            return ResumePlan.from_env(job.environment) if ENV_RESUME_STEP in job.environment else None
        return Plan.from_json(found["Body"].read()).order.resume

    def _newest(self, place: Place) -> int | None:
        return max((step for run in self.runs.values() if run.place == place for step in run.saved_steps), default=None)

    def _ask(self) -> None:
        """The monitors look for requests."""
        for place in {run.place for run in self.runs.values() if run.place is not None and run.is_live}:
            prefix = place.join(f"{FOLDER}/requests/").path
            for entry in self._client("s3").list_objects_v2(Bucket=place.bucket, Prefix=prefix).get("Contents", ()):
                if entry["Key"] not in self._asked:
                    self._asked.add(entry["Key"])
                    self._simulated.on_object_created(place.bucket or "", entry["Key"])
