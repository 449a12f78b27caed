"""A pretend fleet beside the real run: 32 ml.p5.48xlarge that exist only on the clock, so that GPU-hours
show. Its service, its Incident, and their figures are as real as the other run's.

Its steps take a quarter of a second. Where an instance's log shows a GPU that fell off the bus, the run lives on; the
service has it saved, stops it, and starts it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from chalicelib.bootstrap import Service
from chalicelib.domain.model.errors import UnknownEntity
from localcloud.aws.sagemaker import TrainingBackend, TrainingJob
from localcloud.cloud import STACK, Cloud
from localcloud.platforms.sagemaker_simulated import Simulated
from localcloud.platforms.simulated_run import Script
from rekindle.protocol.mailbox import ReplyOutcome

JOB: Final = "llm-70b-simulated"
INSTANCE_TYPE: Final = "ml.p5.48xlarge"
INSTANCES: Final = 32
LABEL: Final = f"simulated: {INSTANCES} × {INSTANCE_TYPE}"
SAVE_EVERY: Final = 80
INTO_INTERVAL: Final = 10  # steps since a checkpoint: work that the emergency checkpoint keeps
STEP: Final = timedelta(milliseconds=250)
# Source: rekindle/signatures/xids.py, XID 79; the form of the line is the NVIDIA driver's.
XID_LINE: Final = "NVRM: Xid (PCI:0000:53:00): 79, pid=4711, name=python3, GPU has fallen off the bus."
_FAILING: Final = "algo-18"
_SCRIPT: Final = Script(
    starting=timedelta(seconds=1),
    downloading=timedelta(seconds=1),
    startup=timedelta(seconds=1),
    step=STEP,
    checkpoint_every=SAVE_EVERY,
    save=timedelta(seconds=1),
    stopping=timedelta(seconds=1),
    heartbeat=timedelta(seconds=1),
    reply=ReplyOutcome.SAVED,
    reply_after=timedelta(milliseconds=500),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoLedger:
    """The ledger of the fleet's one Incident, as the service's API answers it."""

    ledger: Mapping[str, Any]

    @property
    def phase(self) -> str:
        """Where it stands."""
        return str(self.ledger["phase"])

    @property
    def ok(self) -> bool:
        """Whether it ended as recovered."""
        return self.phase == "recovered"


class FleetBackend:
    """A backend that runs the fleet's attempts on the clock and all others as processes."""

    def __init__(self, processes: TrainingBackend, simulated: Simulated) -> None:
        self._processes = processes
        self._simulated = simulated

    def launch(self, job: TrainingJob) -> None:
        """Begin an attempt."""
        self._of(job).launch(job)

    def stop(self, job: TrainingJob) -> None:
        """End an attempt as StopTrainingJob does."""
        self._of(job).stop(job)

    def _of(self, job: TrainingJob) -> TrainingBackend:
        return self._simulated if job.name.startswith(JOB) else self._processes


class Fleet:
    """The pretend run: submit it, have a GPU fail, see it recover, and end it."""

    def __init__(self, cloud: Cloud, service: Service) -> None:
        self._cloud = cloud
        self._service = service

    def submit(self, processes: TrainingBackend, *, policy: str) -> None:
        """Start it under the policy of that name, beside whatever `processes` runs."""
        self._cloud.simulated.default = _SCRIPT
        self._cloud.training.backend = FleetBackend(processes, self._cloud.simulated)
        self._cloud.client("sagemaker").create_training_job(**_request(policy))
        self._harm_when_it_is_time()

    def seen(self) -> DemoLedger | None:
        """Its Incident, once there is one."""
        with suppress(UnknownEntity):
            for incident in self._service.store.list_for_job(JOB, limit=1):
                return DemoLedger(ledger=self._service.ledgers.incident(incident.incident_id))
        return None

    def stop(self) -> None:
        """End it as its owner would."""
        self._cloud.client("sagemaker").stop_training_job(
            TrainingJobName=self._service.registry.get(JOB).current_attempt
        )

    def has_ended(self) -> bool:
        """The service knows that the run is over, and no Incident of it is open."""
        return has_ended(self._service, JOB)

    def _harm_when_it_is_time(self) -> None:
        """Some steps after a checkpoint, once."""
        run = self._cloud.simulated.runs.get(JOB)
        into = run.step % SAVE_EVERY if run is not None and run.saved_steps else 0
        if not INTO_INTERVAL <= into <= 2 * INTO_INTERVAL:
            self._cloud.clock.after(STEP, self._harm_when_it_is_time, label="the fleet's fault")
            return
        batch = self._cloud.log_batch_event(
            group="/aws/sagemaker/TrainingJobs", stream=f"{JOB}/{_FAILING}-1", messages=[XID_LINE]
        )
        self._cloud.invoke("log_batch", batch)


def has_ended(service: Service, job_id: str) -> bool:
    """The service knows that a run is over, and no Incident of it is open."""
    job = service.registry.get(job_id)
    return not job.active and job.open_incident is None


def _request(policy: str) -> dict[str, Any]:
    """CreateTrainingJob's, as a user of SageMaker writes it."""
    mailbox = f"s3://{STACK}-mailbox/{JOB}"
    return {
        "TrainingJobName": JOB,
        "RoleArn": "arn:aws:iam::123456789012:role/training",
        "AlgorithmSpecification": {
            "TrainingImage": "123456789012.dkr.ecr.us-west-2.amazonaws.com/llm-70b:latest",
            "TrainingInputMode": "File",
        },
        "OutputDataConfig": {"S3OutputPath": f"{mailbox}/output"},
        "ResourceConfig": {"InstanceType": INSTANCE_TYPE, "InstanceCount": INSTANCES, "VolumeSizeInGB": 10},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "CheckpointConfig": {"S3Uri": mailbox},
        "Environment": {"REKINDLE_MAILBOX": mailbox, "REKINDLE_BUS": STACK},
        "Tags": [{"Key": "rekindle:policy", "Value": policy}],
    }
