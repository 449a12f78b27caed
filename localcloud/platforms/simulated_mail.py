"""What the monitor of a simulated attempt writes: to its mailbox, and to the event bus."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from localcloud.aws.clock import Clock
from localcloud.platforms.simulated_run import Run
from localcloud.platforms.simulated_trouble import Fault, ranks_reports, reply_to
from rekindle.protocol.keys import fence_key, heartbeat_key, reply_key
from rekindle.protocol.mailbox import CheckpointRequest, Fence, Heartbeat, LossState, ReplyOutcome
from rekindle.protocol.manifests import Manifest, ManifestFile, SaveKind
from rekindle.protocol.reports import ReportKind
from rekindle.protocol.wire import Place

_HEARTBEATS_WITH_IT = (
    "Rekindle Stall",
    "Rekindle Non-Finite Loss",
    "Rekindle Loss Spike",
    "Rekindle Loss Divergence",
    "Rekindle Loss Recovered",
)
_PAYLOAD = b"weights"  # what a simulated checkpoint holds; its size is what a verifier compares


class SimulatedMail:
    """Each document as `rekindle.protocol` has it, through a real S3 client."""

    def __init__(self, *, clock: Clock, s3: Callable[[], Any], events: Callable[[], Any]) -> None:
        self._clock = clock
        self._s3 = s3
        self._events = events

    def save(self, run: Run, kind: SaveKind, request_id: str | None) -> Manifest | None:
        if run.place is None or not run.script.has_monitor or not self.may_write(run):
            return None
        root = run.place.join(f"checkpoints/step-{run.step}-{run.job.name}")
        if run.script.own_folder:
            root = Place.parse(f"s3://{run.bucket}/outputs/{run.job.name}/step-{run.step}")
        manifest = Manifest(
            job_id=run.job_id,
            attempt=run.job.name,
            attempt_number=run.attempt_number,
            step=run.step,
            kind=kind,
            root=root.uri,
            files=(ManifestFile(path="model.bin", bytes=len(_PAYLOAD)),),
            world_size=run.job.instance_count,
            saved_at=self._clock.now(),
            request_id=request_id,
            loss=loss_at(run) if run.loss_state is LossState.FINITE else None,
        )
        self._s3().put_object(Bucket=run.bucket, Key=root.join("model.bin").path, Body=_PAYLOAD)
        self._put(run, manifest.key, manifest.to_json())
        run.saved_steps.append(run.step)
        return manifest

    def reply(
        self,
        run: Run,
        request: CheckpointRequest,
        outcome: ReplyOutcome,
        why: str,
        manifest: Manifest | None = None,
    ) -> None:
        reply = reply_to(
            request,
            outcome,
            why,
            manifest,
            job_id=run.job_id,
            attempt=run.job.name,
            at=self._clock.now(),
            save=run.script.save,
        )
        self._put(run, reply_key(request.request_id), reply.to_json())
        self.push(run, "Rekindle Checkpoint Reply", {"reply": json.loads(reply.to_json())})

    def may_write(self, run: Run) -> bool:
        if run.place is None:
            return False
        try:
            found = self._s3().get_object(Bucket=run.bucket, Key=run.place.join(fence_key()).path)
        except ClientError as err:
            if err.response["Error"]["Code"] == "NoSuchKey":
                return True
            raise
        return Fence.from_json(found["Body"].read()).admits(run.job.name, run.attempt_number)

    def write_heartbeat(self, run: Run) -> None:
        heartbeat = Heartbeat(
            job_id=run.job_id,
            attempt=run.job.name,
            attempt_number=run.attempt_number,
            step=run.step if run.step >= run.first_step else None,
            first_step=run.first_step if run.step >= run.first_step else None,
            loss=loss_at(run) if run.loss_state is LossState.FINITE else None,
            loss_state=run.loss_state,
            phase=run.phase,
            step_s_median=run.script.step.total_seconds(),
            rank=0,
            world_size=run.job.instance_count,
            at=self._clock.now(),
            loss_health=run.judge.health.value,
            onset_step=run.judge.onset_step,
            healed_step=run.judge.healed_step,
            judged_step=run.judge.judged_step,
        )
        self._put(run, heartbeat_key(run.job.name), heartbeat.to_json())

    def report(self, run: Run, kind: ReportKind, fault: Fault, *, silent_s: float | None = None) -> None:
        """What each rank says of itself."""
        if not run.script.has_monitor:
            return
        reported = ranks_reports(
            kind,
            fault,
            job_id=run.job_id,
            attempt=run.job.name,
            hosts=run.hosts,
            step=run.step,
            at=self._clock.now(),
            silent_s=silent_s,
        )
        for report in reported:
            self._put(run, report.key, report.to_json())

    def push(self, run: Run, detail_type: str, more: dict[str, Any]) -> None:
        if run.bus is None or not run.script.has_monitor:
            return
        if detail_type in _HEARTBEATS_WITH_IT and run.is_live:
            self.write_heartbeat(run)  # as the monitor does (rekindle/monitor/mail/mailbox_thread.py, beat_soon)
        detail = {
            "v": 1,
            "job_id": run.job_id,
            "attempt": run.job.name,
            "attempt_number": run.attempt_number,
            "rank": 0,
            "world_size": run.job.instance_count,
            "step": run.step if run.step >= run.first_step else None,
            "at": self._clock.now().isoformat(),
        } | more
        with _aws_may_be_away():
            self._events().put_events(
                Entries=[
                    {
                        "Source": "rekindle.monitor",
                        "DetailType": detail_type,
                        "Detail": json.dumps(detail),
                        "EventBusName": run.bus,
                    }
                ]
            )

    def _put(self, run: Run, key: str, body: bytes) -> None:
        if run.place is not None:
            with _aws_may_be_away():
                self._s3().put_object(Bucket=run.bucket, Key=run.place.join(key).path, Body=body)


def loss_at(run: Run) -> float:
    """A loss that falls with the step and is the same in every attempt."""
    return 1.0 + 10.0 / (1.0 + run.step)


def _aws_may_be_away() -> suppress:
    """Ignore a failed AWS call of the monitor: training continues (rekindle/monitor), and the next heartbeat follows on
    time.
    """
    return suppress(ClientError, BotoCoreError)
