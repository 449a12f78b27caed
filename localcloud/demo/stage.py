"""The demo's stage: the embedded cloud in real time, the app deployed on it, and one training job under its care."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from chalicelib.bootstrap import Service
from localcloud.aws.clock import RealClock
from localcloud.cloud import STACK, Cloud
from localcloud.demo.watch import Trace, Watch
from localcloud.platforms.processes import Processes

PROJECT = Path(__file__).resolve().parents[2]
EXAMPLE = PROJECT / "examples" / "numpy_lm"
WORKERS = 2
SAVE_EVERY = 100
MAX_STEPS = 20_000  # far beyond what the demo needs: it ends when everybody has recovered, not at a step
PACE_S = 0.03  # a step in about 30 ms, whatever the machine: slow enough to be watched
POLICY = "demo"
# What takes minutes on a real cluster takes seconds here, so the policy looks every second or two. The deadline of a
# checkpoint is the patience with two living workers on a busy machine: nothing waits for it where they save at once.
POLICY_DOCUMENT: Mapping[str, Any] = {
    "schema": 1,
    "name": POLICY,
    "resubmission": {"backoff_s": [0, 1, 2]},
    "timing": {
        "checkpoint_deadline_s": 30,
        "hang_deadline_s": 2,
        "stop_limit_s": 60,
        "start_limit_s": 120,
        "silent_limit_s": 60,
        "look_max_s": 2,
    },
    "loss": {
        "skip_margin_steps": 0,
        "skip_steps": 2,
    },
}
# None: dollars of a run that lasts seconds would look like money.
PRICES: Mapping[str, Any] = {"instances": {}, "source": "the demo has no prices"}
# The monitor's rhythm, from its own defaults of 15 s, 5 s and 60 s (rekindle/monitor/base/settings.py) down to this
# run's; metrics by the second are what the console draws its curves from.
MONITOR = {
    "REKINDLE_HEARTBEAT_S": "0.5",
    "REKINDLE_POLL_S": "0.25",
    "REKINDLE_WATCH_S": "0.25",
    "REKINDLE_AGREE_S": "0.25",
    "REKINDLE_METRICS_S": "1",
    "REKINDLE_STALL_FLOOR_S": "4",
    "REKINDLE_STALL_STARTUP_S": "30",
}
# Where nothing is frozen, nothing is a hang that a busy machine makes of a step.
PATIENT_MONITOR = {**MONITOR, "REKINDLE_STALL_FLOOR_S": "60", "REKINDLE_STALL_STARTUP_S": "180"}
# Source: rekindle/signatures/xids.py, XID 79; the form of the line is the NVIDIA driver's.
XID_LINE = "NVRM: Xid (PCI:0000:53:00): 79, pid=4711, name=python3, GPU has fallen off the bus."
# SIGTERM to SIGKILL takes 120 s on SageMaker. Enough for the save at a stop; a frozen worker uses all of it.
STOP_GRACE = timedelta(seconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Everything the director needs. `is_settled`: the service knows that the run is over, and no Incident is open."""

    cloud: Cloud
    processes: Processes
    watch: Watch
    job_id: str
    data: Path
    api_url: str
    is_settled: Callable[[], bool]

    def poison(self, step: int) -> None:
        """Break one batch's record in the dataset: NaN in place of its weight, for every attempt that reads it."""
        self.weigh(step, [math.nan])

    def mend(self, step: int) -> None:
        """Give one batch's record its weight again."""
        self.weigh(step, [1.0])

    def weigh(self, step: int, weights: Sequence[float]) -> None:
        """Give the records from `step` on these weights, for every attempt that reads them."""
        with (self.data / "weights.f32").open("r+b") as file:
            file.seek(4 * step)
            file.write(struct.pack(f"={len(weights)}f", *weights))

    def fail_gpu(self, attempt: str) -> None:
        """Have the second instance's log say that its GPU has failed. The worker there trains on."""
        batch = self.cloud.log_batch_event(
            group="/aws/sagemaker/TrainingJobs", stream=f"{attempt}/algo-2-1", messages=[XID_LINE]
        )
        self.cloud.invoke("log_batch", batch)

    def stop_job(self, attempt: str) -> None:
        """Stop the run as its owner would."""
        self.cloud.client("sagemaker").stop_training_job(TrainingJobName=attempt)


@contextmanager
def raised(
    *,
    out: Path,
    data: Path,
    seed: int,
    workers: int = WORKERS,
    policy: Mapping[str, Any] = POLICY_DOCUMENT,
    monitor: Mapping[str, str] = MONITOR,
) -> Iterator[Stage]:
    """Raise the cloud, deploy Rekindle, submit the job; take all down again, processes first."""
    if str(PROJECT) not in sys.path:  # app.py stands in no package: found from wherever the demo is called
        sys.path.insert(0, str(PROJECT))
    # The app reads nothing at import, but imports everything: only a demo that really runs shall pay for it.
    from app import app
    from chalicelib import bootstrap
    from localcloud.stack import deploy_rekindle

    with Cloud(http=True, clock=RealClock(), store=out) as cloud:
        try:
            service = deploy_rekindle(cloud, policies={POLICY: policy})
            cloud.client("ssm").put_parameter(
                Name=f"{service.settings.settings_prefix}/prices", Value=json.dumps(PRICES), Type="String"
            )
            api_url = cloud.serve_api(app)
            processes = cloud.run_processes(out / "jobs", grace=STOP_GRACE)
            job_id = f"numpy-lm-{seed}"
            cloud.client("sagemaker").create_training_job(
                **training_job(job_id, data=data, trace=out / "trace", seed=seed, workers=workers, monitor=monitor)
            )
            watch = Watch(
                job_id=job_id,
                store=service.look.store,
                registry=service.look.registry,
                trace=Trace(out / "trace"),
                now=cloud.clock.now,
                status_of=lambda attempt: status_of(cloud, attempt),
                workers_of=lambda attempt: workers_of(processes, attempt),
            )
            yield Stage(
                cloud=cloud,
                processes=processes,
                watch=watch,
                job_id=job_id,
                data=data,
                api_url=api_url,
                is_settled=lambda: _has_ended(service, job_id),
            )
        finally:
            bootstrap.install(None)


def _has_ended(service: Service, job_id: str) -> bool:
    job = service.registry.get(job_id)
    return not job.active and job.open_incident is None


def write_dataset(data: Path) -> None:
    """Have the example write its own dataset, by its own code, which lives outside every package."""
    code = "import pathlib, sys, corpus; corpus.write_dataset(pathlib.Path(sys.argv[1]), batches=int(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", code, str(data), str(MAX_STEPS)], cwd=EXAMPLE, check=True)


def training_job(
    name: str, *, data: Path, trace: Path, seed: int, workers: int, monitor: Mapping[str, str] = MONITOR
) -> dict[str, Any]:
    """The request for CreateTrainingJob, as a user of SageMaker writes it; the tag is what asks for protection."""
    mailbox = f"s3://{STACK}-mailbox/{name}"
    return {
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::123456789012:role/training",
        "AlgorithmSpecification": {
            "TrainingImage": "123456789012.dkr.ecr.us-west-2.amazonaws.com/numpy-lm:latest",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3"],
            "ContainerArguments": [str(EXAMPLE / "train.py")],
        },
        "OutputDataConfig": {"S3OutputPath": f"{mailbox}/output"},
        "ResourceConfig": {"InstanceType": "ml.g5.2xlarge", "InstanceCount": workers, "VolumeSizeInGB": 10},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "CheckpointConfig": {"S3Uri": mailbox},
        "Environment": {
            "NUMPY_LM_DATA": str(data),
            "NUMPY_LM_TRACE": str(trace),
            "NUMPY_LM_STEPS": str(MAX_STEPS),
            "NUMPY_LM_SAVE_EVERY": str(SAVE_EVERY),
            "NUMPY_LM_SEED": str(seed),
            "NUMPY_LM_PACE_S": str(PACE_S),
            "REKINDLE_MAILBOX": mailbox,
            "REKINDLE_BUS": STACK,
            **monitor,
        },
        "Tags": [{"Key": "rekindle:policy", "Value": POLICY}],
    }


def status_of(cloud: Cloud, attempt: str) -> str:
    """SageMaker's word for an attempt's state; "Unknown" where it does not know the attempt."""
    try:
        return str(cloud.client("sagemaker").describe_training_job(TrainingJobName=attempt)["TrainingJobStatus"])
    except ClientError:
        return "Unknown"


def workers_of(processes: Processes, attempt: str) -> dict[int, int]:
    """Process ids by rank; empty before the workers have begun."""
    try:
        return processes.pids(attempt)
    except KeyError:
        return {}
