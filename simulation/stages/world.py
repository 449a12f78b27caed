"""The world of one story: the truth, the sources, and the real service between them, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.domain.model.errors import RecoveryError, Retryable
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.policy.document import Policy
from chalicelib.services.reporting.outcome import Outcome
from localcloud.aws.clock import SimClock
from localcloud.aws.sagemaker import TrainingJob, TrainingJobs
from localcloud.memory_tables import MemoryJobs
from localcloud.platforms.hyperpod import Clusters
from rekindle.protocol.keys import KeyKind, parse_key
from rekindle.protocol.launch_orders import ENV_JOB_ID, ENV_MAILBOX
from rekindle.slurm_agent.reading.run_identity import NEVER
from simulation.cloud.platform import MemoryCloudWatch, MemorySageMaker, MemorySqs
from simulation.cloud.store import REFUSED, MemoryObjects, MemoryS3
from simulation.runs.memory import Incidents, NoticeLog, Tables, Watcher
from simulation.runs.monitor import run_mailbox
from simulation.runs.strikes import Strikes
from simulation.runs.training import Training
from simulation.runs.truth import TrueRun
from simulation.slurm.cluster import Cluster
from simulation.stages.beside import StageBeside, own_stage, own_tags
from simulation.stages.points import MINUTE, Points
from simulation.stages.service import ACCOUNT, BUCKET, RealService
from simulation.stories.source_faults import STAGES, SourceFaults
from simulation.stories.story import Run, Story

QUIET: Final = timedelta(minutes=6)  # after this long with nothing open and nothing to come a story is over
_REDELIVERED_AFTER: Final = (timedelta(seconds=60), timedelta(seconds=120))  # Lambda's two asynchronous retries
_IMAGE: Final = f"{ACCOUNT}.dkr.ecr.us-west-2.amazonaws.com/train:1"


class World(RealService):
    """One story's world. `watcher` is the judge. A test breaks a part by replacing it before `play`."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.watcher = Watcher()
        sim = self.sim = SimClock()
        self.clock = sim
        self._handed = 0
        self.began_at = sim.now()
        self.source_faults = SourceFaults(story, sim)
        self.objects = MemoryObjects(sim, BUCKET, on_put=self._written)
        self.jobs = TrainingJobs(clock=sim, publish=self._publish)
        self.runs = {run.name: TrueRun(spec=run) for run in story.runs}
        self.training = Training(
            clock=sim,
            jobs=self.jobs,
            objects=self.objects,
            push=lambda kind, detail: self._publish("rekindle.monitor", kind, detail, []),
            run_of=self.run_of,
            seen_at=self.source_faults.seen_at,
            lost=self.source_faults.loses_report,
            torn=self.source_faults.tears_heartbeat,
        )
        Strikes(self.training)
        self.jobs.backend = self.training
        self.cluster: Cluster | None = None
        if any(run.platform == "slurm" for run in story.runs):
            self.cluster = Cluster(
                story,
                clock=sim,
                source_faults=self.source_faults,
                objects=self.objects,
                training=self.training,
                runs=self.runs,
                publish=self._publish,
                changed=self._deaths,
                watcher=lambda: self.watcher,
            )
            self.training.breaks_node = self.cluster.breaks
        # What people do at a story's moments, and whether they have something to do yet (`persons`).
        self.moment: Callable[[str, TrueRun | None], None] = lambda when, run: None  # noqa: ARG005
        self.are_people_busy: Callable[[float], bool] = lambda now_s: False  # noqa: ARG005
        self.points = Points(sim, self.source_faults, self.runs)
        self.people = NoticeLog(lambda: self.watcher, asked=self._asked)
        jobs = MemoryJobs()
        tables = Tables(Incidents(jobs, check=self.source_faults.check_tables, moved=self.incident_moves), jobs)
        self.stages = kinds = frozenset(source_fault.kind for source_fault in story.source_faults) & STAGES
        super().__init__(
            clock=sim,
            source_faults=self.source_faults,
            clients=self.aws_clients(),
            tables=tables,
            people=self.people,
            policy=Policy.from_wire({"name": "default", **story.policy}),
            stage=own_stage(kinds),
        )
        self.beside = self._second_stage(kinds) if kinds else None
        self.paused_at: datetime | None = None  # a person has paused the service, and it is so still
        self.defects: list[str] = []
        self.quiet_since: datetime | None = None

    def _second_stage(self, kinds: frozenset[str]) -> StageBeside:
        return StageBeside(
            kinds,
            clock=self.sim,
            source_faults=self.source_faults,
            clients=self.aws_clients(),
            people=self.people,
            policy=self.policy,
            recorded=lambda before, after: self.watcher.recorded(before, after),
        )

    def aws_clients(self) -> dict[str, Any]:
        """A service's clients of AWS."""
        sagemaker = MemorySageMaker(
            self.jobs,
            self.cluster.pods if self.cluster is not None else Clusters(clock=self.sim, publish=self._publish),
            check=lambda operation, _name: self.source_faults.check("sagemaker", operation),
            changing=self._service_changes,
        )
        return {
            "s3": MemoryS3(self.objects, lambda operation, _key: self.source_faults.check("s3", operation)),
            "sqs": MemorySqs(self._ordered),
            "sagemaker": sagemaker,
            "cloudwatch": MemoryCloudWatch(
                lambda name, job_id, since, until: self.points.metric(name, self.run_of_job(job_id), since, until),
                lambda operation, _: self.source_faults.check("cloudwatch", operation),
            ),
        }

    # ---- playing ---------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """The whole story, up to its length or until nothing is left to happen."""
        try:
            if self.cluster is not None:
                self.cluster.open()
            for run in self.story.runs:
                self.submit(run, run.name, tags=self.tags(run))
            for delay in self.source_faults.losses():
                self.sim.after(delay, self._lose_executions, label="executions are lost")
            for delay in self.source_faults.roll_backs():
                self.sim.after(delay, self._roll_back, label="an older version is deployed")
            self.sim.after(MINUTE, self._minute, label="the sweep")
            self.moment("start", None)
            self.sim.run_until(self._is_over, limit=timedelta(seconds=self.story.length_s))
            self.defects += [
                f"{execution.name}: {type(execution.failed).__name__}: {execution.failed}"
                for service in self.services()
                for execution in service.executions.all.values()
                if execution.failed is not None and not isinstance(execution.failed, RecoveryError)
            ]
            kept = [raw for service in self.services() for raw in service.kept_aside.kept]
            # What a right that was taken away kept from being read waits for a person, who gives the right back first.
            self.defects += [raw for raw in kept if REFUSED not in raw]
        finally:
            for service in self.services():
                service.executions.close()
            self.sim.close()

    def services(self) -> tuple[RealService, ...]:
        """Ours first."""
        return (self,) if self.beside is None else (self, self.beside)

    def is_unheard(self, run: TrueRun, operation: str) -> bool:
        """No event of its newest attempt could be taken in, and SageMaker refuses the call that would tell of it."""
        newest = next(reversed(run.attempts), None)
        if newest is None or run.spec.platform == "slurm":
            return False
        is_registered = any(service.registry.job_of_attempt(newest) is not None for service in self.services())
        return not is_registered and self.source_faults.refuses("sagemaker", operation)

    def _is_over(self) -> bool:
        """Every trouble and source fault is behind, nothing is open, and all has been quiet for a while."""
        if self.quiet_since is None:
            return False
        return self.clock.now() - self.quiet_since > QUIET

    def _minute(self) -> None:
        self.sim.after(MINUTE, self._minute, label="the sweep")
        self.points.measure()
        if self.source_faults.hold() <= timedelta(0):
            for service in self.services():
                try:
                    service.sweep.run()
                except RecoveryError as err:
                    service.reported(_outcome(err))
        self.watcher.minute()
        is_quiet = not self._is_something_to_come() and not any(True for _ in self.store.list_open())
        self.quiet_since = (self.quiet_since or self.clock.now()) if is_quiet else None

    def _is_something_to_come(self) -> bool:
        now_s = (self.clock.now() - self.began_at).total_seconds()
        if self.are_people_busy(now_s):
            return True
        if any(
            now_s < min(source_fault.to_s, self.story.length_s) and source_fault.to_s < 1e8
            for source_fault in self.story.source_faults
        ):
            return True
        return any(self._is_unfinished(run) for run in self.runs.values())

    def _is_unfinished(self, run: TrueRun) -> bool:
        """Something is still wrong with it or will go wrong, or it comes to its last step."""
        if run.owner_stopped or run.is_finished:
            return False
        is_ill = run.ill is not None and not run.ill.is_counted and not run.ill.is_notified
        if is_ill or any(attempt.suspended_at is not None for attempt in run.live):
            return True
        if not run.live:
            return False
        reached = min(attempt.step_at(self.clock.now()) for attempt in run.live)
        return run.spec.steps is not None or any(
            trouble.step >= reached and run.struck.get(trouble, 0) < (trouble.hits if trouble.hits < 50 else 1)
            for trouble in run.spec.troubles
        )

    def _roll_back(self) -> None:
        self._lose_executions()
        self.store.roll_back()

    def _lose_executions(self) -> None:
        for execution in self.executions.all.values():
            execution.kill()

    # ---- the platform ----------------------------------------------------------------------------------------------

    def submit(self, run: Run, name: str, *, tags: Mapping[str, str]) -> None:
        """A person submits a job of the run."""
        if self.cluster is not None and run.platform == "slurm":
            is_protected, of_job = bool(tags), tags.get("rekindle:job")
            self.cluster.submit(self.runs[run.name], job_id=of_job, is_protected=is_protected)
            return
        mailbox = run_mailbox(self.runs[run.name])
        environment = {ENV_MAILBOX: mailbox} if run.watch == "monitor" else {}
        if environment and not any(other.place for other in self.story.runs):  # a sweep's trials differ by their names
            environment[ENV_JOB_ID] = run.name
        self.jobs.create_training_job(
            {
                "TrainingJobName": name,
                "AlgorithmSpecification": {"TrainingImage": _IMAGE, "TrainingInputMode": "File"},
                "RoleArn": f"arn:aws:iam::{ACCOUNT}:role/training",
                "OutputDataConfig": {"S3OutputPath": "s3://mail/out"},
                "ResourceConfig": {
                    "InstanceType": "ml.p5.48xlarge",
                    "InstanceCount": run.instances,
                    "VolumeSizeInGB": 500,
                    "KeepAlivePeriodInSeconds": 1800,
                },
                "StoppingCondition": {"MaxRuntimeInSeconds": 5 * 86400},
                "CheckpointConfig": {"S3Uri": mailbox},
                "HyperParameters": {"run": run.name},
                "Environment": environment,
                "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            }
        )

    def tags(self, run: Run) -> dict[str, str]:
        own = {"rekindle:loss-metric": "loss", "rekindle:step-metric": "step"} if run.watch == "metrics" else {}
        return {"rekindle:policy": self.policy.name, **own_tags(self.stages), **own}

    def run_of(self, job: TrainingJob) -> TrueRun | None:
        return self.runs.get((job.request.get("HyperParameters") or {}).get("run", ""))

    def run_of_job(self, job_id: str | None) -> TrueRun | None:
        """The run that one of the service's Jobs is about."""
        attempt = self.training.attempts.get(job_id or "")
        if attempt is not None:
            return attempt.run
        by_slurm = (run for run in self.runs.values() if job_id in run.job_ids)
        return self.runs.get(job_id or "") or next(by_slurm, None)

    @contextmanager
    def _service_changes(self, operation: str, request: dict[str, Any]) -> Iterator[None]:
        """Around a call of the service's that changes the world. Raises: ClientError, where its answer is lost."""
        attempt = self.training.attempts.get(str(request.get("TrainingJobName", "")))
        if operation == "CreateTrainingJob":
            self.training.is_ours = True
        elif operation == "StopTrainingJob":
            if attempt is not None:
                self.watcher.stops(attempt)
        elif self.cluster is not None:
            self.cluster.repairing = "reboot" if "Reboot" in operation else "replace"
        try:
            yield
        finally:
            self.training.is_ours = False
            if self.cluster is not None:
                self.cluster.repairing = ""
        submitted = self.training.attempts.get(str(request.get("TrainingJobName", "")))
        if operation == "CreateTrainingJob" and submitted is not None:
            self.watcher.submitted(submitted)
        self.source_faults.lose_answer(operation)

    def _ordered(self, body: bytes) -> None:
        """An order to the head node's agent."""
        for _ in range(self.source_faults.order_copies() if self.cluster is not None else 0):
            self.cluster.head.ordered(body)  # type: ignore[union-attr]
        self.source_faults.lose_answer("SendMessage")

    # ---- events ----------------------------------------------------------------------------------------------------

    def _written(self, key: str) -> None:
        if "/quarantine/" in key:
            self.watcher.condemned(str(json.loads(self.objects.objects[key].body)["root"]))
        parsed = parse_key(key)
        if parsed is not None and parsed.kind is KeyKind.REQUEST:
            self.training.requests.asked(key, parsed.name or "")

    def _publish(self, source: str, detail_type: str, detail: dict[str, Any], resources: list[str]) -> None:
        event = {
            "version": "0",
            "id": f"{self._handed:08x}",
            "detail-type": detail_type,
            "source": source,
            "account": ACCOUNT,
            "time": self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            "region": "us-west-2",
            "resources": resources,
            "detail": detail,
        }
        self._handed += 1
        for delay in self.source_faults.arrivals(event):
            self.sim.after(delay, lambda: self._deliver(event, 0), label=detail_type)
        if source == "aws.sagemaker":
            self.sim.after(timedelta(0), self._deaths, label="who is dead")

    def _deliver(self, event: dict[str, Any], tried: int) -> None:
        hold = self.source_faults.hold()
        if hold > timedelta(0):
            self.sim.after(hold + timedelta(seconds=5), lambda: self._deliver(event, tried), label="after throttling")
            return
        try:
            self.ingress.take("event", event)
            if self.beside is not None:
                self.beside.take(event)
        except Retryable:
            if tried < len(_REDELIVERED_AFTER):
                self.sim.after(_REDELIVERED_AFTER[tried], lambda: self._deliver(event, tried + 1), label="again")

    # ---- people ----------------------------------------------------------------------------------------------------

    def incident_moves(self, before: Incident | None, after: Incident) -> None:
        """Called by the table."""
        self.watcher.recorded(before, after)
        if before is None:
            self.moment("incident", self.run_of_job(after.job_id))
        elif before.phase is not after.phase:
            self.moment(after.phase.value, self.run_of_job(after.job_id))

    def _asked(self, job_id: str | None) -> None:
        run = self.run_of_job(job_id)
        if run is not None:
            self.moment("asked", run)

    def waits_in_queue(self, run: TrueRun) -> bool:
        """Whether it is queued in Slurm, which will start it without a request."""
        return self.cluster is not None and any(
            not job.held and job.reason not in (NEVER, "Dependency") for job in self.cluster.jobs_of(run)
        )

    def _deaths(self) -> None:
        for run in self.runs.values():
            if run.attempts and not run.live:
                self.moment("dead", run)


def _outcome(err: Exception) -> Outcome:
    from chalicelib.services.reporting.outcome import OutcomeKind

    return Outcome(what=OutcomeKind.DROPPED, reason=f"the sweep: {err}"[:200])
