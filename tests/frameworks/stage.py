"""A stage for real PyTorch runs: the embedded cloud in real time, the whole service on it, one DDP job under its care.

Nothing here asserts how long something takes: conditions are polled, for minutes if need be, and a wait that ends in
vain raises with the Incidents' timelines and the ranks' logs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from chalicelib import bootstrap
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Attempt
from chalicelib.domain.policy.document import overlaid
from localcloud.aws.clock import RealClock
from localcloud.cloud import STACK, Cloud
from localcloud.platforms.places import take_ports
from localcloud.platforms.processes import Processes
from localcloud.stack import deploy_rekindle
from rekindle.cli.main import main as rekindle
from tests.waiting import ask_until

PROJECT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("ddp_train.py")
LAUNCHER = Path(__file__).with_name("launch.py")
SAVE_EVERY = 40
PACE_S = 0.05
PATIENCE_S = 300.0  # a loaded machine may need a minute for what takes seconds
GRACE = timedelta(seconds=3)  # SIGTERM to SIGKILL, 120 s on SageMaker: a frozen rank never answers
# What takes minutes on a cluster takes seconds here; limits that only a broken run meets stay long.
POLICY: Mapping[str, Any] = {
    "schema": 1,
    "resubmission": {"backoff_s": [0, 1, 2]},
    "timing": {
        "checkpoint_deadline_s": 60,
        "hang_deadline_s": 3,
        "stop_limit_s": 120,
        "start_limit_s": 180,
        "silent_limit_s": 120,
        "tell_open_s": 20,
        "look_max_s": 2,
    },
}
MONITOR = {
    "REKINDLE_HEARTBEAT_S": "1",
    "REKINDLE_POLL_S": "0.5",
    "REKINDLE_AGREE_S": "0.5",
    "REKINDLE_WATCH_S": "0.5",
    "REKINDLE_METRICS_S": "5",
    "REKINDLE_STALL_FLOOR_S": "60",  # a busy machine may stand still for many seconds; tests of hangs ask for less
    "REKINDLE_STALL_STARTUP_S": "180",
}
_PASSED_ON = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step as one rank wrote it down: the exact loss, the data's rows, the weights after it."""

    step: int
    loss: str
    rows: tuple[int, ...]
    weights: str


@dataclass(slots=True, kw_only=True)
class Stage:
    """One run and everything around it. `ranks` is the size of the whole job."""

    cloud: Cloud
    processes: Processes
    service: bootstrap.Service
    job_id: str
    folder: Path
    api_url: str
    ranks: int
    hosts: int

    # ---- what tests do ---------------------------------------------------------------------------------------------

    def rekindle(self, *arguments: str) -> None:
        """Run the operator's command against this service; it must succeed."""
        assert rekindle([*arguments, "--api", self.api_url]) == 0, self.story()

    def truncate(self, uri: str) -> None:
        """Cut an object in S3 in half."""
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        s3 = self.cloud.client("s3")
        body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        s3.put_object(Bucket=bucket, Key=key, Body=body[: len(body) // 2])

    def harm(self) -> int:
        """Have the rank that is to harm itself do so at its next step. Returns that step."""
        (self.folder / "harm").touch()
        done = self.folder / "harmed"
        return int(self.wait(lambda: done.exists() and done.read_text(), "the harm"))

    def finish(self) -> int:
        """Have the run end in order, a little further on. Returns the last step, which the run itself chooses."""
        self.wait_for_step(self.last_step() + 100)
        (self.folder / "end").touch()
        finish = self.folder / "finish"
        self.wait(finish.exists, "the run to name its last step")
        last = int(finish.read_text())
        self.wait(lambda: self.status(self.attempts()[-1].name) == "Completed", f"the run to end at step {last}")
        return last

    # ---- what tests see --------------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], Any], what: str, limit_s: float = PATIENCE_S) -> Any:
        """Ask until the answer is true, and return it. Asking takes a quarter of the time at most."""
        answer = ask_until(condition, limit_s=limit_s, pause_s=0.1, rest=3)
        assert answer, f"waited {limit_s:g} s for {what}"
        return answer

    def wait_for_step(self, step: int) -> None:
        self.wait(lambda: self.last_step() >= step, f"step {step}")

    def wait_for_checkpoints(self, number: int) -> list[dict[str, Any]]:
        """The manifests, once there are so many: whole checkpoints, off the training thread."""
        self.wait(lambda: len(self.checkpoints()) >= number, f"{number} checkpoints")
        return self.checkpoints()

    def wait_recovered(self, *faults: str) -> Incident:
        """The first Incident of these faults that led to another attempt, once it has ended; only as recovered.

        Of these faults is one that was told as such at any of its looks: what befalls the new attempt while it is
        watched (a busy machine makes it slow) has the last word on an Incident's own record.
        """

        def is_of(incident: Incident) -> bool:
            told = (line.text.startswith(faults) for line in self.service.look.store.timeline(incident.incident_id))
            return incident.fault in faults or any(told)

        def ended() -> Incident | None:
            mine = [incident for incident in self.incidents() if not incident.is_open and is_of(incident)]
            wrong = [
                incident
                for incident in mine
                if incident.phase == "handed_over" or (incident.resubmission.tries and incident.phase != "recovered")
            ]
            if wrong:
                raise AssertionError(f"the {wrong[0].fault} Incident ended as {wrong[0].phase}: {wrong[0].outcome}")
            return next((one for one in mine if one.resubmission.tries), None)

        incident: Incident = self.wait(ended, f"the recovery from {faults}")
        return incident

    def attempts(self) -> tuple[Attempt, ...]:
        """In order. The first is registered with the first event about it."""
        try:
            return tuple(self.service.look.registry.attempts(self.job_id))
        except LookupError:
            return ()

    def incidents(self) -> list[Incident]:
        """Oldest first, each as it stands on its own record."""
        store = self.service.look.store
        listed = reversed(store.list_for_job(self.job_id, limit=50))
        return [store.load(incident.incident_id).incident for incident in listed]

    def rules(self, incident: Incident) -> list[str]:
        """The rules that spoke, in order."""
        return [line.rule for line in self.service.look.store.timeline(incident.incident_id)]

    def checkpoints(self) -> list[dict[str, Any]]:
        """The manifests in the mailbox, by step."""
        return self._messages("manifests")

    def replies(self) -> list[dict[str, Any]]:
        """The monitor's answers to requests for a checkpoint."""
        return self._messages("replies")

    def wait_for_reports(self, kind: str) -> None:
        """Until every rank of the first attempt has written a report of this kind."""

        def ranks() -> set[int]:
            return {message["rank"] for message in self._messages(f"reports/{self.job_id}") if message["kind"] == kind}

        self.wait(lambda: len(ranks()) == self.ranks, f"all ranks' {kind} reports")

    def _messages(self, kind: str) -> list[dict[str, Any]]:
        s3, bucket = self.cloud.client("s3"), f"{STACK}-mailbox"
        listed = s3.list_objects_v2(Bucket=bucket, Prefix=f"{self.job_id}/rekindle/{kind}/").get("Contents", [])
        return [json.loads(s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()) for item in listed]

    def status(self, attempt: str) -> str:
        described = self.cloud.client("sagemaker").describe_training_job(TrainingJobName=attempt)
        return str(described["TrainingJobStatus"])

    def steps(self, attempt: str, rank: int = 0) -> list[Step]:
        return read_steps(self.folder, attempt, rank)

    def saves(self, attempt: str, rank: int) -> list[dict[str, Any]]:
        return [json.loads(line) for line in _lines(self.folder / "trace" / f"saves-{attempt}-{rank}.jsonl")]

    def last_step(self) -> int:
        """Of the newest attempt that has made one; 0 before the first."""
        made = [self.steps(attempt.name) for attempt in self.attempts()] or [self.steps(self.job_id)]
        return next((steps[-1].step for steps in reversed(made) if steps), 0)

    def story(self) -> str:
        """Everything that a person needs who wants to know why a test failed."""
        lines = [f"==== {self.job_id}"]
        for attempt in self.attempts():
            made = self.steps(attempt.name)
            reached = f"steps {made[0].step} to {made[-1].step}" if made else "no step"
            lines.append(f"attempt {attempt.name}: {self.status(attempt.name)}, {reached}, skips {attempt.skips}")
        for incident in self.incidents():
            lines.append(f"incident {incident.incident_id}: {incident.fault}, {incident.phase}, {incident.outcome}")
            lines += [
                f"  {entry.at:%H:%M:%S} {entry.phase} {entry.rule}: {entry.text} {list(entry.actions)}"
                for entry in self.service.look.store.timeline(incident.incident_id)
            ]
        for log in sorted((self.folder / "jobs").glob("*/algo-*.log")):
            tail = log.read_text(errors="replace").splitlines()[-40:]
            lines += [f"---- {log.parent.name}/{log.name}", *(f"  {line}" for line in tail)]
        return "\n".join(lines)

    # ---- what tests hold it against ----------------------------------------------------------------------------------

    def assert_as_undisturbed(
        self, last: int, *, skip: Sequence[tuple[int, int]] = (), bad: Sequence[int] = ()
    ) -> None:
        """Every step of every rank of every attempt, and the final weights, are those of an undisturbed run.

        skip: windows left out by the undisturbed run. bad: steps done on harmed data or with a harmed gradient, and
        rolled back; whatever an attempt did from its first bad step on is not compared.
        """
        folder = self.folder / "undisturbed"
        run_undisturbed(folder, ranks=self.ranks, last=last, skip=skip)
        final = self.attempts()[-1].name
        for rank in range(self.ranks):
            expected = {step.step: step for step in read_steps(folder, "undisturbed", rank)}
            for attempt in self.attempts():
                for one in self.steps(attempt.name, rank):
                    if attempt.name != final and one.step in bad:
                        break
                    assert one == expected[one.step], f"{attempt.name} rank {rank} differs at step {one.step}"
            mine = [step.step for step in self.steps(final, rank)]
            assert mine == [step for step in sorted(expected) if step >= mine[0]]
            assert _final(self.folder, final, rank) == _final(folder, "undisturbed", rank)
            assert _final(folder, "undisturbed", rank)["step"] == last


@contextlib.contextmanager
def raised(
    folder: Path,
    *,
    job_id: str,
    ranks: int = 2,
    per_host: int = 1,
    fault: Mapping[str, Any] | None = None,
    policy: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    poison: Sequence[int] = (),
) -> Iterator[Stage]:
    """Raise everything, submit the job; take it all down again. A failure inside carries the whole story.

    poison: batches whose records are broken where they lie, for every attempt.

    per_host: ranks per instance; more than one are launched by torchrun.
    """
    from app import app

    if poison:
        (folder / "poison.json").write_text(json.dumps(list(poison)))
    with (
        (folder / "service.log").open("w", buffering=1) as log,
        contextlib.redirect_stdout(log),  # the app logs to standard output, as on Lambda
        Cloud(http=True, clock=RealClock(), store=folder / "store") as cloud,
    ):
        try:
            service = deploy_rekindle(cloud, policies={"small": overlaid({**POLICY, "name": "small"}, policy or {})})
            stage = Stage(
                cloud=cloud,
                processes=cloud.run_processes(folder / "jobs", grace=GRACE),
                service=service,
                job_id=job_id,
                folder=folder,
                api_url=cloud.serve_api(app),
                ranks=ranks,
                hosts=ranks // per_host,
            )
            request = training_job(stage, per_host=per_host, fault=fault, environment=environment or {})
            cloud.client("sagemaker").create_training_job(**request)
            try:
                yield stage
            except BaseException as err:
                err.add_note(stage.story())
                raise
        finally:
            bootstrap.install(None)


def training_job(
    stage: Stage, *, per_host: int, fault: Mapping[str, Any] | None, environment: Mapping[str, str]
) -> dict[str, Any]:
    """The request for CreateTrainingJob; the tag is what asks for protection."""
    mailbox = f"s3://{STACK}-mailbox/{stage.job_id}"
    command = [str(SCRIPT)] if per_host == 1 else [str(LAUNCHER), str(per_host), str(SCRIPT)]
    return {
        "TrainingJobName": stage.job_id,
        "RoleArn": "arn:aws:iam::123456789012:role/training",
        "AlgorithmSpecification": {
            "TrainingImage": "123456789012.dkr.ecr.us-west-2.amazonaws.com/pytorch:latest",
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3"],
            "ContainerArguments": command,
        },
        "OutputDataConfig": {"S3OutputPath": f"{mailbox}/output"},
        "ResourceConfig": {"InstanceType": "ml.c7i.large", "InstanceCount": stage.hosts, "VolumeSizeInGB": 10},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "Environment": {
            "DDP_FOLDER": str(stage.folder),
            "DDP_CHECKPOINTS": f"{mailbox}/checkpoints",
            "DDP_SAVE_EVERY": str(SAVE_EVERY),
            "DDP_PACE_S": str(PACE_S),
            "DDP_FAULT": json.dumps(fault or {}),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "REKINDLE_MAILBOX": mailbox,
            "REKINDLE_BUS": STACK,
            **MONITOR,
            **environment,
        },
        "Tags": [{"Key": "rekindle:policy", "Value": "small"}],
    }


def run_undisturbed(folder: Path, *, ranks: int, last: int, skip: Sequence[tuple[int, int]]) -> None:
    """The same training without faults, without saving, without the cloud and without the monitor."""
    folder.mkdir(parents=True)
    (folder / "finish").write_text(str(last))
    ports = contextlib.ExitStack()
    env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {
        "PYTHONPATH": str(PROJECT),
        "DDP_FOLDER": str(folder),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(take_ports(1, ports)),
        "REKINDLE_MONITOR": "off",
        "REKINDLE_SKIP": json.dumps([list(window) for window in skip]),
    }
    with ports as stack:
        started = []
        for rank in range(ranks):
            log = stack.enter_context((folder / f"rank-{rank}.log").open("wb"))
            argv = [sys.executable, str(SCRIPT)]
            worker = subprocess.Popen(argv, env={**env, "RANK": str(rank)}, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            started.append(worker)
        codes = [worker.wait(timeout=PATIENCE_S) for worker in started]
    said = "\n".join((folder / f"rank-{rank}.log").read_text() for rank in range(ranks))
    assert codes == [0] * ranks, f"the undisturbed run failed: {said}"


def read_steps(folder: Path, attempt: str, rank: int) -> list[Step]:
    """In the order they were made."""
    return [
        Step(step=line["step"], loss=line["loss"], rows=tuple(line["rows"]), weights=line["weights"])
        for line in map(json.loads, _lines(folder / "trace" / f"steps-{attempt}-{rank}.jsonl"))
    ]


def _final(folder: Path, attempt: str, rank: int) -> dict[str, Any]:
    final: dict[str, Any] = json.loads((folder / "trace" / f"final-{attempt}-{rank}.json").read_text())
    return final


def _lines(path: Path) -> list[str]:
    """Whole lines; the last one may still be half written."""
    try:
        return path.read_text().rpartition("\n")[0].splitlines()
    except FileNotFoundError:
        return []
