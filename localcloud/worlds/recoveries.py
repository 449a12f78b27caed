"""A whole Rekindle on the embedded cloud in virtual time, with one or more simulated training jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from chalicelib.bootstrap import Service, install
from chalicelib.config import PRODUCTION_LOG_LEVEL
from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.incident import Incident, Phase
from localcloud.cloud import STACK, Cloud
from localcloud.platforms.simulated_run import Script as _Script
from localcloud.platforms.simulated_trouble import Fault
from localcloud.stack import deploy_rekindle

ROLE = "arn:aws:iam::123456789012:role/training"
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/train:1"


# A run brisk enough to be played often.
_BRISK: dict[str, Any] = {
    "checkpoint_every": 10,
    "save": timedelta(seconds=1),
    "starting": timedelta(seconds=6),
    "downloading": timedelta(seconds=4),
    "startup": timedelta(seconds=4),
    "step": timedelta(seconds=2),
    "stopping": timedelta(seconds=6),
    "uploading": timedelta(seconds=2),
    "stall_limit": timedelta(seconds=20),
    "heartbeat": timedelta(seconds=2),
}


def Script(**more: Any) -> _Script:
    """A run that is over soon, but for what is said otherwise."""
    return _Script(**{**_BRISK, **more})


LONG = timedelta(hours=12)
os.environ.setdefault("POWERTOOLS_METRICS_DISABLED", "true")  # a test's output is for its failures


def crash_at(step: int, text: str = "RuntimeError: training failed", **more: Any) -> Fault:
    return Fault(kind="crash", step=step, text=text, **more)


def freeze_at(step: int, **more: Any) -> Fault:
    return Fault(kind="freeze", step=step, **more)


def nan_at(step: int, *, in_data: bool = True, **more: Any) -> Fault:
    return Fault(kind="nan", step=step, in_data=in_data, **more)


def spike_at(step: int, **more: Any) -> Fault:
    """In the data unless told otherwise; lasting unless it `heals_after` steps."""
    given: dict[str, Any] = {"kind": "spike", "step": step, "in_data": True} | more
    return Fault(**given)


@dataclass
class World:
    """What a test or a measurement does in the account, and what it sees there."""

    cloud: Cloud
    service: Service
    submitted: list[str] = field(default_factory=list)

    def submit(
        self, name: str = "lm", *, scripts: tuple[_Script, ...] = (), policy: str = "default", **extra: Any
    ) -> None:
        """Start a run that asks for protection; `scripts` play for its attempts in turn."""
        queue = list(scripts)
        before = self.cloud.simulated.script_for

        def script_for(job: Any) -> _Script:
            if job.name == name or job.name.startswith(f"{name}-r"):
                return queue.pop(0) if queue else Script()
            return before(job)

        self.cloud.simulated.script_for = script_for
        request: dict[str, Any] = {
            "TrainingJobName": name,
            "AlgorithmSpecification": {"TrainingImage": IMAGE, "TrainingInputMode": "File"},
            "RoleArn": ROLE,
            "OutputDataConfig": {"S3OutputPath": f"s3://{STACK}-mailbox/out"},
            "ResourceConfig": {
                "InstanceType": "ml.p5.48xlarge",
                "InstanceCount": 4,
                "VolumeSizeInGB": 500,
                "KeepAlivePeriodInSeconds": 1800,
            },
            "StoppingCondition": {"MaxRuntimeInSeconds": 5 * 86400},
            "CheckpointConfig": {"S3Uri": f"s3://{STACK}-mailbox/jobs/{name}"},
            "Environment": {
                "REKINDLE_MAILBOX": f"s3://{STACK}-mailbox/jobs/{name}",
                "REKINDLE_JOB_ID": name,
                "REKINDLE_BUS": STACK,
            },
            "Tags": [{"Key": "rekindle:policy", "Value": policy}, {"Key": "team", "Value": "lm"}],
        }
        request.update(extra)
        self.cloud.client("sagemaker").create_training_job(**request)
        self.submitted.append(name)

    def run_until(self, predicate: Callable[[], bool], *, limit: timedelta = LONG) -> None:
        assert self.cloud.clock.run_until(predicate, limit=limit), f"not within {limit}: {self.story()}"

    def run_for(self, span: timedelta) -> None:
        """Let virtual time pass."""
        clock: Any = self.cloud.clock  # a SimClock
        clock.run_for(span)

    def incidents(self) -> list[Incident]:
        store = self.service.look.store
        opened = [incident for incident, _ in store.list_open()]
        return opened + list(store.list_closed(limit=100).incidents)

    def closed(self, count: int = 1) -> Callable[[], bool]:
        """Predicate: `count` Incidents are closed and none is open."""
        store, clock, engine = self.service.look.store, self.cloud.clock, self.cloud.engine
        asked_at = clock.now()

        def done() -> bool:
            nonlocal asked_at
            is_due = clock.now() - asked_at >= timedelta(seconds=60)  # asking the table is the dearest part of a test
            played = engine.executions()
            if not is_due and (not played or any(item.current_status().value == "RUNNING" for item in played)):
                return False
            asked_at = clock.now()
            try:
                if any(True for _ in store.list_open()):
                    return False
                return len(store.list_closed(limit=100).incidents) >= count
            except RecoveryError:  # a disturbance meant for the service has hit the test's own question: ask again
                return False

        return done

    def recover(self, *, count: int = 1, limit: timedelta = LONG) -> Incident:
        """Run until `count` Incidents are closed; returns the newest."""
        self.run_until(self.closed(count), limit=limit)
        self.cloud.wire.disturbances.clear()  # what did not strike the service must not strike the test's own reading
        return max(self.incidents(), key=lambda incident: incident.opened_at)

    def story(self) -> str:
        lines = []
        for incident in self.incidents():
            lines.append(f"{incident.incident_id} {incident.phase} {incident.fault}")
            lines += [
                f"  {entry.at:%H:%M:%S} {entry.phase:14} {entry.rule:24} {entry.text} {entry.actions}"
                for entry in self.service.look.store.timeline(incident.incident_id)
            ]
        return "\n".join(lines) or "no Incident"

    def spent(self) -> dict[str, int]:
        """What a recovery costs the run: stops, attempts beside the first, checkpoints asked for."""
        asked = self.cloud.client("s3").list_objects_v2(Bucket=f"{STACK}-mailbox", Prefix="jobs/lm/rekindle/requests/")
        calls = self.cloud.wire.calls
        return {
            "stops": calls["sagemaker.StopTrainingJob"],
            "attempts": len(self.jobs()) - len(self.submitted),
            "requests": asked["KeyCount"],
        }

    def rules(self, incident: Incident) -> list[str]:
        return [entry.rule for entry in self.service.look.store.timeline(incident.incident_id)]

    def jobs(self) -> dict[str, Any]:
        return dict(self.cloud.training.jobs)


@contextmanager
def world(
    *,
    policies: Mapping[str, Mapping[str, Any]] | None = None,
    log_level: str = PRODUCTION_LOG_LEVEL,
    **options: Any,
) -> Iterator[World]:
    with Cloud(**options) as cloud:
        service = deploy_rekindle(cloud, policies=policies, log_level=log_level)
        try:
            yield World(cloud=cloud, service=service)
        finally:
            install(None)


__all__ = ["Fault", "Phase", "Script", "World", "crash_at", "freeze_at", "nan_at", "spike_at", "world"]
