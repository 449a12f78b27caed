"""The world of one story: the truth, the sources, and the real service between them, in virtual time."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from chalicelib.domain.model.errors import RecoveryError, Retryable
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.policy.document import Policy
from chalicelib.services.reporting.outcome import Outcome
from localcloud.aws.clock import SimClock
from localcloud.aws.sagemaker import Phase as JobPhase
from localcloud.aws.sagemaker import TrainingJob, TrainingJobs
from localcloud.memory_tables import MemoryJobs
from localcloud.platforms.hyperpod import Clusters
from rekindle.protocol.keys import KeyKind, parse_key
from rekindle.protocol.launch_orders import ENV_JOB_ID, ENV_MAILBOX
from rekindle.protocol.mailbox import LossState
from rekindle.slurm_agent.reading.run_identity import NEVER
from simulation.cloud.platform import MemoryCloudWatch, MemorySageMaker, MemorySqs
from simulation.cloud.store import REFUSED, MemoryObjects, MemoryS3
from simulation.runs.memory import Incidents, NoticeLog, Tables, Watcher
from simulation.runs.monitor import run_mailbox
from simulation.runs.training import Training
from simulation.runs.truth import TrueRun
from simulation.slurm.cluster import Cluster
from simulation.slurm.pods import NAME as SLURM_CLUSTER
from simulation.stages.beside import StageBeside, other_tags, own_stage, own_tags
from simulation.stages.service import ACCOUNT, BUCKET, RealService
from simulation.stories.source_faults import STAGES, SourceFaults
from simulation.stories.story import PersonAction, Run, Story

MINUTE: Final = timedelta(minutes=1)
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
        self.people = NoticeLog(lambda: self.watcher, asked=self._asked)
        jobs = MemoryJobs()
        tables = Tables(Incidents(jobs, check=self.source_faults.check_tables, moved=self.incident_moves), jobs)
        self._stages = kinds = frozenset(source_fault.kind for source_fault in story.source_faults) & STAGES
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
        self._actions: list[PersonAction] = list(story.actions)
        self._points: dict[str, list[tuple[datetime, float, float]]] = {}  # minute, newest step, was it not finite
        self._under_way = 0  # actions of people whose moment has come
        self._quiet_since: datetime | None = None

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
                self._metric, lambda operation, _: self.source_faults.check("cloudwatch", operation)
            ),
        }

    # ---- playing ---------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """The whole story, up to its length or until nothing is left to happen."""
        try:
            if self.cluster is not None:
                self.cluster.open()
            for run in self.story.runs:
                self.submit(run, run.name, tags=self._tags(run))
            for delay in self.source_faults.losses():
                self.sim.after(delay, self._lose_executions, label="executions are lost")
            for delay in self.source_faults.roll_backs():
                self.sim.after(delay, self._roll_back, label="an older version is deployed")
            self.sim.after(MINUTE, self._minute, label="the sweep")
            self._moment("start", None)
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
        if self._quiet_since is None:
            return False
        return self.clock.now() - self._quiet_since > QUIET

    def _minute(self) -> None:
        self.sim.after(MINUTE, self._minute, label="the sweep")
        self._measure()
        if self.source_faults.hold() <= timedelta(0):
            for service in self.services():
                try:
                    service.sweep.run()
                except RecoveryError as err:
                    service.reported(_outcome(err))
        self.watcher.minute()
        is_quiet = not self._is_something_to_come() and not any(True for _ in self.store.list_open())
        self._quiet_since = (self._quiet_since or self.clock.now()) if is_quiet else None

    def _is_something_to_come(self) -> bool:
        now_s = (self.clock.now() - self.began_at).total_seconds()
        if self._under_way or (self._actions and now_s < 600):
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

    def _tags(self, run: Run) -> dict[str, str]:
        own = {"rekindle:loss-metric": "loss", "rekindle:step-metric": "step"} if run.watch == "metrics" else {}
        return {"rekindle:policy": self.policy.name, **own_tags(self._stages), **own}

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
            self.cluster.ordered(body)  # type: ignore[union-attr]
        self.source_faults.lose_answer("SendMessage")

    def _metric(self, name: str, job_id: str, since: datetime, until: datetime) -> list[tuple[datetime, float]]:
        """Step, loss and NonFinite by minute: of a Job by its monitor, or of one attempt by its own definitions."""
        run = self.run_of_job(job_id)
        if run is None:
            return []
        # The newest minute has not arrived yet.
        until = min(until, self.clock.now() - MINUTE - self.source_faults.metric_delay())
        points = self._points.get(run.name, [])
        first = bisect_left(points, since, key=lambda point: point[0])
        found = [point for point in points[first:] if point[0] < until]
        match name:
            case "Step" | "step":
                return [(point[0], point[1]) for point in found]
            case "loss":  # a loss that is no number cannot be sent
                return [(point[0], 2.0) for point in found if not point[2]]
            case _:
                return [(point[0], point[2]) for point in found]

    def longest_hole(self, run: TrueRun) -> timedelta:
        """The longest time between two of the run's data points that arrived; the service derives a silence from that
        rhythm.
        """
        times = [point[0] for point in self._points.get(run.name, ())]
        return max((after - before for before, after in pairwise(times)), default=timedelta(0))

    def _measure(self) -> None:
        """Keep the minute's data points, as far as they ever arrive."""
        now = self.clock.now()
        for run in self.runs.values():
            if self.source_faults.hides_metric(run.name, now - MINUTE):
                continue
            moved = [
                attempt for attempt in run.attempts.values() if attempt.step_at(now) > attempt.step_at(now - MINUTE)
            ]
            if moved:
                newest = moved[-1].at(now)
                is_bad = newest is not None and newest.loss is not LossState.FINITE
                self._points.setdefault(run.name, []).append(
                    (now - MINUTE, float(moved[-1].step_at(now)), float(is_bad))
                )

    # ---- events ----------------------------------------------------------------------------------------------------

    def _written(self, key: str) -> None:
        if "/quarantine/" in key:
            self.watcher.condemned(str(json.loads(self.objects.objects[key].body)["root"]))
        parsed = parse_key(key)
        if parsed is not None and parsed.kind is KeyKind.REQUEST:
            self.training.asked(key, parsed.name or "")

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
            self._moment("incident", self.run_of_job(after.job_id))
        elif before.phase is not after.phase:
            self._moment(after.phase.value, self.run_of_job(after.job_id))

    def _asked(self, job_id: str | None) -> None:
        run = self.run_of_job(job_id)
        if run is not None:
            self._moment("asked", run)

    def waits_in_queue(self, run: TrueRun) -> bool:
        """Whether it is queued in Slurm, which will start it without a request."""
        return self.cluster is not None and any(
            not job.held and job.reason not in (NEVER, "Dependency") for job in self.cluster.jobs_of(run)
        )

    def _deaths(self) -> None:
        for run in self.runs.values():
            if run.attempts and not run.live:
                self._moment("dead", run)

    def _moment(self, when: str, run: TrueRun | None) -> None:
        for action in [
            expected
            for expected in self._actions
            if expected.when == when and (run is None or expected.run == run.name)
        ]:
            self._actions.remove(action)
            self._under_way += 1
            self.sim.after(
                timedelta(seconds=action.delay_s),
                lambda action=action: self._do(action),  # type: ignore[misc]
                label=f"a person: {action.what}",
            )

    def _do(self, action: PersonAction) -> None:  # noqa: C901  one row for each kind
        self._under_way -= 1
        self._quiet_since = None
        run = self.runs.get(action.run)
        if run is None:  # a shrunk story may have lost it
            return
        match action.what:
            case "retry":
                run.owner_took_it, run.owner_stopped_at = True, None
                self.submit(run.spec, f"{run.name}-byhand-{len(run.attempts)}", tags=self._tags(run.spec))
            case "hang_cancel" | "requeue" if self.cluster is not None:
                self.cluster.others_act(run, action.what)
            case "resubmit" if not run.live and not self.waits_in_queue(run):
                tags = {} if action.tagged == "none" else self._tags(run.spec)
                if action.tagged == "job":
                    tags["rekindle:job"] = run.first_name
                if action.tagged == "other_stage":
                    tags |= other_tags(self._stages)
                run.owner_took_it = True
                if action.tagged != "none":
                    run.owner_stopped_at = None  # in our care again, by its tags
                # Only SageMaker's tags tell of stages: a cluster's agent reports to one, whatever a job's comment says.
                is_elsewhere = action.tagged == "other_stage" and run.spec.platform != "slurm"
                run.is_another_stages = is_elsewhere and self.beside is not None
                run.is_unprotected = action.tagged == "none" or (is_elsewhere and self.beside is None)
                self.submit(run.spec, f"{run.name}-byhand-{len(run.attempts)}", tags=tags)
            case "stop":
                self._stop(run)
            case "order_reboot":
                self._order_reboot(action, run)
            case "order_stop" | "order_save_stop" | "order_resubmit":
                with suppress(RecoveryError):  # then the order was not taken, which is what its giver sees
                    self._order(action, run)
            case "pause" | "unpause":
                self.registry.set_paused(action.what == "pause", who="ada", now=self.clock.now())
                self.paused_at = self.clock.now() if action.what == "pause" else None
            case "cancel":
                self._cancel(run)
            case "approve" | "deny":
                self._answer(action, run)
            case "time_limit":
                self._time_is_over(run)

    def _cancel(self, run: TrueRun) -> None:
        for incident, _ in list(self.store.list_open()):
            if self.run_of_job(incident.job_id) is run:
                run.owner_took_it, run.cancelled_at = True, self.clock.now()
                is_stopping = any(attempt.job.phase is JobPhase.STOPPING for attempt in run.live)
                if is_stopping or (run.live and incident.phase is Phase.STOPPING):
                    run.owner_stopped_at = self.clock.now()  # the answer says that it is left stopping, or ordered to
                elif run.live and incident.order is not None:
                    # An order to stop it is taken back before it was carried out.
                    run.owner_stopped_at = run.stop_ordered_at = None
                self.orders.cancel(incident.incident_id, who="ada", key=f"cancel-{incident.incident_id}")

    def _order(self, action: PersonAction, run: TrueRun) -> None:
        key = f"{action.what}-{run.name}-{action.delay_s:g}"
        if action.what in ("order_stop", "order_save_stop"):
            self.orders.stop(self._job_of(run), who="ada", key=key, checkpoint=action.what == "order_save_stop")
            if run.is_another_stages and not any(attempt.is_ours for attempt in run.live):
                return  # that has the run now, and takes no order of this one
            run.owner_stopped_at, run.stop_orders = self.clock.now(), run.stop_orders + 1
            run.stopped_job, run.stop_ordered_at = self._job_of(run), self.clock.now()
            run.is_well_again(self.clock.now())
        else:
            run.stop_orders = 0
            self.orders.resubmit(self._job_of(run), who="ada", key=key, from_step=None, skip=())
            run.stopped_before_order_at, run.resubmission_ordered_at = run.owner_stopped_at, self.clock.now()
            run.owner_stopped_at, run.is_ordered = None, True

    def _answer(self, action: PersonAction, run: TrueRun) -> None:
        """The newest question about the run, whatever has become of it since."""
        about = [
            notice for notice in self.people.notices if notice.approval_id and self.run_of_job(notice.job_id) is run
        ]
        if about:
            newest = about[-1]
            key, incident_id = f"{action.what}-{action.delay_s:g}", newest.incident_id or ""
            with suppress(RecoveryError):  # refused, and why: what its giver reads
                self.approvals.answer(incident_id, newest.approval_id, answer=action.what, who="ada", key=key)
                if action.what == "deny":
                    run.denied_at = self.clock.now()

    def _time_is_over(self, run: TrueRun) -> None:
        """The platform ends what runs, at its time limit."""
        if self.cluster is not None and run.spec.platform == "slurm":
            self.cluster.times_out(run)
            return
        for attempt in run.live:
            if attempt.job.phase is JobPhase.STOPPING and not run.is_stop_ordered:
                run.owner_stopped_at = None  # the limit stops it as well: nothing shows that a person had before
            if self.jobs.enter(attempt.name, JobPhase.MAX_RUNTIME_EXCEEDED):
                self.training.over(attempt, JobPhase.MAX_RUNTIME_EXCEEDED)

    def _order_reboot(self, action: PersonAction, run: TrueRun) -> None:
        """Of the node of the run's first rank; nothing where no attempt of it runs on a node."""
        nodes = [node for attempt in run.live for node in attempt.nodes]
        if not nodes or self.cluster is None:
            return
        with suppress(RecoveryError):
            key = f"{action.what}-{run.name}-{action.delay_s:g}"
            self.orders.repair_node(SLURM_CLUSTER, nodes[0].name, do="reboot", who="ada", key=key)
            nodes[0].is_ordered = True

    def _job_of(self, run: TrueRun) -> str:
        """The Job that the service's own list has for the run: its newest attempt's."""
        owners = (self.registry.job_of_attempt(name) for name in reversed(run.attempts))
        return next((owner for owner in owners if owner is not None), run.first_name)

    def _stop(self, run: TrueRun) -> None:
        """In the console, or with scancel."""
        if self.cluster is not None and run.spec.platform == "slurm":
            self.cluster.cancel(run)
        for attempt in run.live:
            if attempt.job.phase is not JobPhase.STOPPING:  # else the platform does not show who wanted it first
                run.owner_stopped_at = self.clock.now()
                self.jobs.stop_training_job({"TrainingJobName": attempt.name})
        if run.owner_stopped:
            run.is_well_again(self.clock.now())


def _outcome(err: Exception) -> Outcome:
    from chalicelib.services.reporting.outcome import OutcomeKind

    return Outcome(what=OutcomeKind.DROPPED, reason=f"the sweep: {err}"[:200])
