"""A head node that exists only on the clock: a modelled Slurm with its agent, and runs whose monitors answer.

Orders come from the cluster's real queue; documents and answers go to the cluster state and the bus; heartbeats,
manifests and replies go to the mailbox. All use the shared wire formats, so the service under test reads exactly what a
cluster would write.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from botocore.exceptions import ClientError

from localcloud.aws.clock import Clock, Timer
from localcloud.slurm.agent import SlurmAgent
from localcloud.slurm.model import SimJob, SlurmModel
from rekindle.protocol.cluster.documents import SlurmState
from rekindle.protocol.cluster.names import agent_key, queue_name
from rekindle.protocol.mailbox import (
    FOLDER,
    CheckpointReply,
    CheckpointRequest,
    Fence,
    Heartbeat,
    LossState,
    Manifest,
    ManifestFile,
    Place,
    Plan,
    ReplyOutcome,
    RunPhase,
    SaveKind,
    fence_key,
    heartbeat_key,
    plan_key,
    reply_key,
)

TICK: Final = timedelta(seconds=10)
HEARTBEAT: Final = timedelta(seconds=30)
STEP_S: Final = 2
SAVE_EVERY: Final = 10
_PAYLOAD: Final = b"weights"


@dataclass(slots=True, kw_only=True)
class SimRun:
    """The training process of one start. `frozen`: it lives and sends heartbeats, but makes no step."""

    job: SimJob
    attempt: str
    place: Place
    step: int = 0
    first: int = 0
    began_at: datetime
    frozen: bool = False
    answered: set[str] = field(default_factory=set)


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
        self.model.on_end.append(self._end)
        self.runs: dict[str, SimRun] = {}
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

    def submit(self, *, mailbox: str, **more: Any) -> SimJob:
        """sbatch with a comment that asks for protection."""
        return self.model.submit(mailbox=mailbox, **more)

    def _tick(self) -> None:
        self.model.schedule()
        for run in list(self.runs.values()):
            self._train(run)
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

    def _start(self, job: SimJob) -> None:
        """Where the plan says; without one from the newest checkpoint that lies there."""
        place = Place.parse(job.mailbox)
        raw = self._get(place, plan_key(job.attempt))
        planned = Plan.from_json(raw).order.resume.step if raw is not None else None
        resumed = job.environment.get("REKINDLE_RESUME_STEP")
        first = planned if planned is not None else int(resumed) if resumed else self._newest(place)
        self.runs[job.attempt] = SimRun(
            job=job, attempt=job.attempt, place=place, step=first, first=first, began_at=self._clock.now()
        )

    def _newest(self, place: Place) -> int:
        return max((run.step // SAVE_EVERY * SAVE_EVERY for run in self.runs.values() if run.place == place), default=0)

    def _end(self, job: SimJob) -> None:
        run = self.runs.pop(job.attempt, None)
        if run is not None:
            self.runs[f"{job.attempt} (over)"] = run

    def _train(self, run: SimRun) -> None:
        is_on = run.job.state is SlurmState.RUNNING and self.runs.get(run.attempt) is run
        if not is_on:
            return
        if not run.frozen:
            for step in range(run.step + 1, run.step + 1 + int(TICK.total_seconds() // STEP_S)):
                run.step = step
                if step % SAVE_EVERY == 0:
                    self._save(run, SaveKind.PERIODIC, None)
        self._heartbeat(run)
        self._answer(run)

    def freeze(self, attempt: str) -> None:
        """No rank moves any more; its monitor lives, and says so."""
        run = self.runs[attempt]
        run.frozen = True
        self._say_stalled(run)

    def _say_stalled(self, run: SimRun) -> None:
        attempt = run.attempt
        self._heartbeat(run)  # as the monitor does with what it tells
        self._client("events").put_events(
            Entries=[
                {
                    "Source": "rekindle.monitor",
                    "DetailType": "Rekindle Stall",
                    "EventBusName": self._bus,
                    "Detail": json.dumps(
                        {
                            "v": 1,
                            "job_id": run.job.lineage,
                            "attempt": attempt,
                            "attempt_number": run.job.restart + 1,
                            "rank": 0,
                            "world_size": run.job.wants,
                            "step": run.step,
                            "at": self._clock.now().isoformat(),
                            "phase": RunPhase.TRAINING.value,
                            "silent_s": 60.0,
                            "limit_s": 60.0,
                            "stacks": {"0": 'File "train.py", line 1, in barrier'},
                        }
                    ),
                }
            ]
        )

    def _heartbeat(self, run: SimRun) -> None:
        moved = run.step > run.first
        heartbeat = Heartbeat(
            job_id=run.job.lineage,
            attempt=run.attempt,
            attempt_number=run.job.restart + 1,
            step=run.step if moved else None,
            first_step=run.first + 1 if moved else None,
            loss=1.0,
            loss_state=LossState.FINITE,
            phase=RunPhase.STALLED if run.frozen else RunPhase.TRAINING,
            step_s_median=float(STEP_S),
            rank=0,
            world_size=run.job.wants,
            at=self._clock.now(),
        )
        self._post(run, heartbeat_key(run.attempt), heartbeat.to_json())

    def _answer(self, run: SimRun) -> None:
        prefix = run.place.join(f"{FOLDER}/requests/").path
        listed = self._client("s3").list_objects_v2(Bucket=run.place.bucket, Prefix=prefix)
        for entry in listed.get("Contents", ()):
            if entry["Key"] in run.answered:
                continue
            run.answered.add(entry["Key"])
            body = self._client("s3").get_object(Bucket=run.place.bucket, Key=entry["Key"])["Body"].read()
            request = CheckpointRequest.from_json(body)
            if request.attempt != run.attempt:
                continue
            manifest = None if run.frozen else self._save(run, SaveKind.EMERGENCY, request.request_id)
            reply = CheckpointReply(
                request_id=request.request_id,
                job_id=run.job.lineage,
                attempt=run.attempt,
                outcome=ReplyOutcome.SAVED if manifest is not None else ReplyOutcome.CANNOT,
                why="" if manifest is not None else "the training thread is stuck",
                replied_at=self._clock.now(),
                step=manifest.step if manifest else None,
                manifest=manifest.key if manifest else None,
                bytes=manifest.total_bytes if manifest else None,
                took_s=1.0 if manifest else None,
            )
            self._post(run, reply_key(request.request_id), reply.to_json())

    def _save(self, run: SimRun, kind: SaveKind, request_id: str | None) -> Manifest | None:
        fence = self._get(run.place, fence_key())
        if fence is not None and not Fence.from_json(fence).admits(run.attempt, run.job.restart + 1):
            return None
        root = run.place.join(f"checkpoints/step-{run.step}-{run.attempt}")
        manifest = Manifest(
            job_id=run.job.lineage,
            attempt=run.attempt,
            attempt_number=run.job.restart + 1,
            step=run.step,
            kind=kind,
            root=root.uri,
            files=(ManifestFile(path="model.bin", bytes=len(_PAYLOAD)),),
            world_size=run.job.wants,
            saved_at=self._clock.now(),
            request_id=request_id,
            loss=1.0,
        )
        self._client("s3").put_object(Bucket=run.place.bucket, Key=root.join("model.bin").path, Body=_PAYLOAD)
        self._post(run, manifest.key, manifest.to_json())
        return manifest

    def _post(self, run: SimRun, key: str, body: bytes) -> None:
        self._client("s3").put_object(Bucket=run.place.bucket, Key=run.place.join(key).path, Body=body)

    def _get(self, place: Place, key: str) -> bytes | None:
        try:
            answer = self._client("s3").get_object(Bucket=place.bucket, Key=place.join(key).path)
        except ClientError as err:
            if err.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise
        body: bytes = answer["Body"].read()
        return body
