"""The HyperPod cluster of a story: what is true of its nodes and Slurm jobs, and what its head node shows of them.

Slurm is `localcloud.slurm.model`, the cluster's API `localcloud.platforms.hyperpod`, the agent
`localcloud.slurm.agent`. Nothing ticks: Slurm's scheduler and the agent work a moment after something has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from localcloud.aws.clock import Clock, Timer
from localcloud.aws.sagemaker import TERMINAL, Phase, Publish
from localcloud.platforms.hyperpod import Clusters
from localcloud.platforms.hyperpod_cluster import Node
from localcloud.slurm.agent import SlurmAgent
from localcloud.slurm.model import ENDED, SimJob, SlurmModel
from rekindle.protocol.cluster.documents import AttemptDoc, EndedBy, NodeFacts, NodesDoc, SlurmState
from rekindle.protocol.cluster.names import agent_key
from rekindle.protocol.cluster.orders import Order, Outcome, Verb
from rekindle.protocol.launch_orders import ENV_ATTEMPT
from rekindle.slurm_agent.reading.jobs import dependencies
from rekindle.slurm_agent.reading.run_identity import NEVER
from simulation.cloud.store import MemoryObjects
from simulation.runs.memory import Watcher
from simulation.runs.monitor import run_mailbox
from simulation.runs.training import Training
from simulation.runs.truth import Attempt, TrueNode, TrueRun
from simulation.slurm.pods import NAME, TIMINGS, WORKERS, cluster_request, name_of
from simulation.slurm.slurm_start import SlurmStart, launch_instructions, plan_of
from simulation.stories.source_faults import SourceFaults
from simulation.stories.story import Story, Trouble

NOTICED: Final = timedelta(seconds=4)  # from a change in Slurm to the agent's next reading
HEARTBEAT: Final = timedelta(seconds=30)  # rekindle.agent's heartbeat
TAKEN: Final = timedelta(seconds=2)  # from a message in the queue to its being carried out
SLURMD_TIMEOUT: Final = timedelta(seconds=90)
HEALTH_SEEN: Final = timedelta(seconds=20)
HYPERPOD_MARKS: Final = timedelta(seconds=40)
SPOT_AHEAD_S: Final = 120.0  # Source: EC2 user guide, Spot interruption notices
AWAY: Final = timedelta(minutes=10)  # from when AWS takes an instance until another one is there
_RETIRES: Final = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
FOR_GOOD_S: Final = 1e6  # beyond any story
_TAKEN_AWAY: Final = frozenset({"suspended", "preempted", "time_limit"})
SICK_FAILS: Final = timedelta(seconds=50)
_Doc = TypeVar("_Doc", AttemptDoc, NodeFacts)
SICK: Final = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


class Cluster:
    """The one of the story. `watcher` sees what the service does to it; `pods` is its API."""

    def __init__(
        self,
        story: Story,
        *,
        clock: Clock,
        source_faults: SourceFaults,
        objects: MemoryObjects,
        training: Training,
        runs: dict[str, TrueRun],
        publish: Publish,
        changed: Callable[[], None],
        watcher: Callable[[], Watcher],
    ) -> None:
        self._clock = clock
        self._source_faults = source_faults
        self._objects = objects
        self._training = training
        self._runs = runs
        self._publish = publish
        self._changed_out = changed
        self._watcher = watcher
        self.pods = Clusters(clock=clock, publish=publish)
        self.pods.timings = TIMINGS
        self.arn = str(self.pods.create_cluster(cluster_request(story))["ClusterArn"])
        workers = [node for node in self.pods.clusters[NAME].nodes.values() if node.group == WORKERS]
        self.nodes = {name_of(node): TrueNode(name=name_of(node), instance_id=node.instance_id) for node in workers}
        self.model = SlurmModel(cluster=NAME, nodes=tuple(self.nodes), now=clock.now)
        for node in workers:
            self._show(name_of(node), instance_id=node.instance_id, group=WORKERS)
        self.model.on_start.append(self._starts)
        self.model.on_end.append(self._is_over)
        self.agent = SlurmAgent(self.model, now=clock.now, put=self._put, send=self._send_event)
        self.agent.cluster_arn = self.arn
        self.pods.on_gone, self.pods.on_reboot, self.pods.on_replace = self._gone, self._rebooted, self._replaced
        self._ours: dict[str, datetime] = {}  # starts that the service ordered, and when
        self._ordering: Order | None = None
        self._waiting: list[bytes] = []  # messages in the queue while the agent is away
        self.repairing = ""  # reboot or replace, while the service's own client asks for it
        self._readings = self._written = 0
        self._written_as_of, self._is_behind = clock.now(), False
        self._pass: Timer | None = None
        self._starts_by_name: dict[str, SlurmStart] = {}

    # ---- life ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Slurm works, and the agent starts."""
        self._objects.living[agent_key(NAME)] = self._heartbeat
        self.agent.start()
        for delay in self._source_faults.head_changes():
            self._clock.after(delay, self._back_at_work, label="what the head node shows changes")
        for delay, node, until in self._source_faults.false_health(tuple(self.nodes)):
            self._clock.after(delay, lambda node=node: self._condemn(node), label="health")  # type: ignore[misc]
            self._clock.after(until, lambda node=node: self._acquit(node), label="health")  # type: ignore[misc]
        for delay, node, ahead_s in self._source_faults.false_notices(tuple(self.nodes)):
            announce = lambda node=node, ahead_s=ahead_s: self._announce(self.nodes[node], ahead_s)  # noqa: E731
            self._clock.after(delay, announce, label="AWS announces an end that does not come")
        self._soon()

    def submit(self, run: TrueRun, *, job_id: str | None = None, is_protected: bool = True) -> None:
        """sbatch by the run's owner: of the whole chain, the first time."""
        is_first = not run.job_ids
        before = self._sbatch(run, job_id=job_id, is_protected=is_protected)
        for _ in range(run.spec.links - 1 if is_first and run.spec.chain not in ("", "within") else 0):
            kind = run.spec.chain
            before = self._sbatch(run, dependency=kind if kind == "singleton" else f"{kind}:{before.slurm_job}")
        self._soon()

    def _sbatch(
        self,
        run: TrueRun,
        *,
        job_id: str | None = None,
        is_protected: bool = True,
        dependency: str = "",
        within: SimJob | None = None,
    ) -> SimJob:
        """within: the job that submits it, whose environment it inherits."""
        job = self.model.submit(
            name=run.name if run.spec.chain else "lm",
            wants=run.spec.instances,
            mailbox=run_mailbox(run) if run.spec.watch == "monitor" else "",
            job_id=job_id,
            is_requeueable=run.spec.requeue,
            has_auto_resume=run.spec.auto_resume,
            is_array_task=run.spec.in_array,
            dependency=dependency,
            environment={"RUN": run.name} | (within.environment if within is not None else {}),
            submitted_on="head" if within is None else within.nodes[0],
        )
        run.job_ids.add(job.base.name)
        if not is_protected:
            self.model.unasked.add(job.slurm_job)
        return job

    def jobs_of(self, run: TrueRun) -> list[SimJob]:
        """Its Slurm jobs that are not over."""
        return [job for job in self.model.jobs.values() if self._run_of(job) is run and job.state not in ENDED]

    def waits_in_vain(self, run: TrueRun) -> list[SimJob]:
        """Its links that wait for the success of a start that has failed."""
        return [job for job in self.jobs_of(run) if job.reason == NEVER]

    def waited_for(self, job: SimJob) -> set[str]:
        """The starts of the jobs that this one waits for."""
        numbers = {number for _, number, _ in dependencies(job.dependency)}
        return {start.name for start in self._starts_by_name.values() if start.slurm_job in numbers}

    def cancel(self, run: TrueRun) -> bool:
        """scancel by the run's owner; whether there was anything to cancel."""
        there = self.jobs_of(run)
        waits = (NEVER, "Dependency")
        if any(job.reason not in waits for job in there):  # a link whose turn has not come is not what trains
            run.owner_stopped_at = self._clock.now()  # before the job's end is seen
        for job in there:
            self.model.cancel_by_user(job)
        self._soon()
        return bool(there)

    def others_act(self, run: TrueRun, what: str) -> None:
        """Another recovery layer, as root: it cancels a job that stands still, or puts a running one back."""
        is_hung = run.ill is not None and run.ill.kind == "hung"
        for job in self.jobs_of(run):
            if job.state is not SlurmState.RUNNING:
                continue
            if what == "requeue" and job.is_requeueable:
                self.model.put_back(job, by=EndedBy.ADMIN)
            elif what == "hang_cancel" and is_hung:
                self.model.end(job, SlurmState.CANCELLED, by=EndedBy.ADMIN)
        self._soon()

    def breaks(self, attempt: Attempt, trouble: Trouble, step: int) -> bool:
        """The first node of the attempt breaks, or Slurm takes all of them from it; no step ends any more."""
        start = self._starts_by_name.get(attempt.name)
        if start is None:
            return False
        if trouble.kind == "node_leaves":
            node, ahead_s = self.nodes[start.nodes[0]], trouble.after_s or 0.0
            self._announce(node, ahead_s)
            self._clock.after(timedelta(seconds=ahead_s), lambda: self._leaves(node), label=f"AWS takes {node.name}")
            return False
        if trouble.kind == "slurmd_dies":
            node = self.nodes[start.nodes[0]]
            node.runs_unseen = True
            self._clock.after(SLURMD_TIMEOUT, lambda: self._loses(node), label=f"Slurm misses {node.name}")
            for_s = timedelta(seconds=trouble.after_s or FOR_GOOD_S)
            self._clock.after(for_s, lambda: self._finds(node), label=f"slurmd of {node.name} is back")
            return False
        if trouble.kind in _TAKEN_AWAY:
            self._training.suspends(attempt, step)
            self._takes_away(attempt, self.model.jobs[start.slurm_job], trouble)
            return True
        node = self.nodes[start.nodes[0]]
        node.breaks(self._clock.now(), is_dead=trouble.kind == "node_dies", cure=trouble.cure)
        if trouble.kind == "node_hangs":
            attempt.mute = frozenset({0})
            self._training.freezes(attempt, step)
        elif node.is_dead:
            self._training.freezes(attempt, step)
            self._clock.after(SLURMD_TIMEOUT, lambda: self._is_lost(node), label=f"Slurm misses {node.name}")
        else:
            self._clock.after(HEALTH_SEEN, lambda: self._is_seen(node), label=f"health of {node.name}")
            if attempt.run.spec.auto_resume:
                self._resumes_by_itself(attempt, node, step)
            else:
                self._training.fails(attempt, SICK)
        return True

    def _resumes_by_itself(self, attempt: Attempt, node: TrueNode, step: int) -> None:
        """srun --auto-resume: the step is gone, the job keeps its nodes; HyperPod replaces the sick one, and runs the
        step again. Source: SageMaker developer guide, sagemaker-hyperpod-resiliency-slurm-auto-resume.
        """
        self._training.loses_processes(attempt, step)

        def resume() -> None:
            if attempt.waits_for_itself and not attempt.job.is_terminal:
                was_condemned = node.condemned
                node.repaired(self._clock.now(), by="replace")
                node.condemned = was_condemned
                self._acquit(node.name)  # the health agent says that what stands there now is well
                self._training.starts_again(attempt)

        self._clock.after(TIMINGS.replace, resume, label=f"{attempt.name} resumes automatically")

    def _announce(self, node: TrueNode, ahead_s: float) -> None:
        """A Spot warning where it is about to happen, else a notice of AWS Health. Which of them names an instance of
        HyperPod's is not documented; both name EC2 instances.
        """
        now = self._clock.now()
        node.announced_at, node.leaves_at = now, now + timedelta(seconds=ahead_s)
        if ahead_s <= SPOT_AHEAD_S:
            detail: dict[str, Any] = {"instance-id": node.instance_id, "instance-action": "terminate"}
            self._publish("aws.ec2", "EC2 Spot Instance Interruption Warning", detail, [])
            return
        arn = f"arn:aws:health:us-west-2::event/EC2/{_RETIRES}/{node.name}-{now:%H%M%S}"
        detail = {
            "eventArn": arn,
            "communicationId": arn.rpartition("/")[2],
            "service": "EC2",
            "eventTypeCode": _RETIRES,
            "eventTypeCategory": "scheduledChange",
            "statusCode": "upcoming",
            "startTime": f"{node.leaves_at:%a, %d %b %Y %H:%M:%S} GMT",
            "eventDescription": [{"language": "en_US", "latestDescription": "The instance will be retired."}],
            "affectedEntities": [{"entityValue": node.instance_id, "status": "PENDING"}],
        }
        self._publish("aws.health", "AWS Health Event", detail, [node.instance_id])

    def _leaves(self, node: TrueNode) -> None:
        """AWS takes the instance, unless it was replaced since; another one is there a while later."""
        now = self._clock.now()
        if node.leaves_at is None or node.leaves_at > now:
            return
        node.announced_at = node.leaves_at = None
        if node.is_broken:
            return
        node.breaks(now, is_dead=True, cure="reboot")
        for run in self._runs.values():
            for attempt in run.live:
                if node in attempt.nodes and attempt.trains_since is not None:
                    self._training.freezes(attempt, attempt.step_at(now))
        self._clock.after(SLURMD_TIMEOUT, lambda: self._is_lost(node), label=f"Slurm misses {node.name}")
        self._clock.after(AWAY, lambda: self._is_back(node), label=f"{node.name} is back")

    def _is_back(self, node: TrueNode) -> None:
        if node.is_dead and not node.in_our_repair:
            node.repaired(self._clock.now(), by="replace")
            self.model.mend_node(node.name)
            self._show(node.name, booted_at=self._clock.now())
            self._soon()

    def times_out(self, run: TrueRun) -> None:
        """Slurm ends its running job at its time limit."""
        for job in self.jobs_of(run):
            if job.state is SlurmState.RUNNING:
                self.model.end(job, SlurmState.TIMEOUT, by=EndedBy.SLURM)
        self._soon()

    def _takes_away(self, attempt: Attempt, job: SimJob, trouble: Trouble) -> None:
        """scontrol suspend; a job of higher priority; the end of its time."""
        for_s = timedelta(seconds=trouble.after_s or FOR_GOOD_S)
        match trouble.kind:
            case "suspended":
                job.state = SlurmState.SUSPENDED
                self._clock.after(for_s, lambda: self._resume(attempt, job), label=f"{attempt.name} resumes")
            case "preempted":
                nodes, attempt.was_preempted = job.nodes, True
                if job.is_requeueable:
                    self.model.put_back(job, by=EndedBy.SLURM)
                else:
                    self.model.end(job, SlurmState.PREEMPTED, by=EndedBy.SLURM)
                for name in nodes:
                    self._show(name, state="allocated")
                self._clock.after(for_s, lambda: self._give_back(nodes), label="the other job is over")
            case _:
                self.model.end(job, SlurmState.TIMEOUT, by=EndedBy.SLURM)
        self._soon()

    def _resume(self, attempt: Attempt, job: SimJob) -> None:
        if job.attempt == attempt.name and job.state is SlurmState.SUSPENDED:
            job.state = SlurmState.RUNNING
            self._training.resumes(attempt)
            self._soon()

    def _give_back(self, nodes: tuple[str, ...]) -> None:
        for name in nodes:
            if self.model.node_facts[name].state == "allocated":
                self._show(name, state="idle")
        self._soon()

    def enter(self, name: str, phase: Phase, *, failure_reason: str | None = None) -> bool:
        start = self._starts_by_name[name]
        if start.is_terminal:
            return False
        if phase not in TERMINAL:
            start.phase = phase
            return True
        self._close(start, phase, failure_reason)
        job = self.model.jobs[start.slurm_job]
        if job.attempt == name and job.state is SlurmState.RUNNING:
            if phase is Phase.COMPLETED:
                crashed = self._training.attempts[name].is_silent_crash
                self.model.end(job, SlurmState.COMPLETED, code=0, step_code=int(crashed))
            else:
                self.model.end(
                    job, SlurmState.FAILED, reason="NonZeroExitCode", code=1, detail=(failure_reason or "")[:300]
                )
        self._soon()
        return True

    # ---- Slurm -----------------------------------------------------------------------------------------------------

    def _run_of(self, job: SimJob) -> TrueRun:
        return next(run for run in self._runs.values() if job.base.name in run.job_ids)

    def _starts(self, job: SimJob) -> None:
        run = self._run_of(job)
        heard = launch_instructions(job, run, self._objects)
        start = SlurmStart(
            name=job.attempt,
            slurm_job=job.slurm_job,
            environment=dict(heard.env),
            nodes=job.nodes,
            created_at=self._clock.now() if job.restart else job.submitted_at,
        )
        self._starts_by_name[start.name] = start
        attempt = Attempt(
            job=start,
            platform=self,
            run=run,
            nodes=tuple(self.nodes[name] for name in job.nodes),
            number=int(heard.env[ENV_ATTEMPT]),
            plan=plan_of(heard, run),
            is_ours=job.attempt in self._ours,
            is_by_hand=job.attempt not in self._ours and job.restart == 0,
            is_tagged=job.slurm_job not in self.model.unasked,
            is_link=bool(job.dependency),
            ordered_at=self._ours.get(job.attempt),
        )
        self._training.starts(attempt)
        if attempt.is_ours:
            self._watcher().submitted(attempt)
        if run.spec.chain == "within" and job.restart == 0 and len(run.job_ids) < run.spec.links:
            self._sbatch(run, dependency=f"afterany:{job.slurm_job}", within=job)
        if any(self.nodes[name].is_broken for name in job.nodes):
            self._clock.after(SICK_FAILS, lambda: self._fails_there(attempt), label=f"{start.name} on a sick node")

    def _fails_there(self, attempt: Attempt) -> None:
        start = self._starts_by_name[attempt.name]
        if any(self.nodes[name].is_broken for name in start.nodes):
            self._training.fails(attempt, SICK)

    def _is_over(self, job: SimJob) -> None:
        """Slurm has ended a start: it failed, or was cancelled or held."""
        start = self._starts_by_name[job.attempt]
        if start.is_terminal:
            return
        attempt = self._training.attempts[start.name]
        order = self._ordering
        if self.repairing or (order is not None and order.verb in (Verb.CANCEL, Verb.HOLD)):
            self._watcher().stops(attempt)
        is_stop = order is not None or job.ended_by is EndedBy.USER
        phase = Phase.STOPPED if is_stop else Phase.FAILED
        self._close(start, phase, None if is_stop else "a node was lost")
        self._training.over(attempt, phase)
        unseen = next((node for node in attempt.nodes if node.runs_unseen), None)
        if unseen is not None and not is_stop:
            self._training.runs_on(attempt, lambda: not unseen.runs_unseen)
        self._soon()

    def _close(self, start: SlurmStart, phase: Phase, reason: str | None) -> None:
        start.phase, start.ended_at, start.failure_reason = phase, self._clock.now(), reason
        self._clock.after(timedelta(0), self._changed_out, label="who is dead")

    def _soon(self) -> None:
        """Slurm's scheduler passes, and the agent reads it, a moment from now."""
        if self._pass is None or not self._pass.is_live:
            self._pass = self._clock.after(NOTICED, self._turn, label="Slurm and its agent")

    def _turn(self) -> None:
        self.model.schedule()
        if self._source_faults.head_is_away():
            return
        docs = {name: doc for name, doc in self.model.docs().items() if doc.slurm_job not in self.model.unasked}
        nodes = self._bent(self.model.nodes_doc())
        off = self._source_faults.slurm_clock()
        if off:
            docs = {name: _later(doc, off, "submitted_at", "started_at", "ended_at") for name, doc in docs.items()}
            nodes = replace(nodes, nodes=tuple(_later(node, off, "booted_at") for node in nodes.nodes))
        self._readings += 1
        number = self._readings
        read_at = self._clock.now()
        self._clock.after(
            self._source_faults.head_late(), lambda: self._write(number, read_at, docs, nodes), label="documents"
        )

    def _write(self, number: int, read_at: datetime, docs: Mapping[str, AttemptDoc], nodes: NodesDoc) -> None:
        """Unless a later reading has been written."""
        if number > self._written:
            self._written, self._written_as_of, self._is_behind = number, read_at, False
            self.agent.publish(docs, nodes)

    # ---- the head node ---------------------------------------------------------------------------------------------

    def _back_at_work(self) -> None:
        if not self._source_faults.head_is_away():
            waiting, self._waiting = self._waiting, []
            for body in waiting:
                self._take(body)
            self._is_behind = True
        self._soon()

    def _heartbeat(self) -> tuple[bytes, datetime] | None:
        now = self._source_faults.head_seen(self._clock.now())
        if now < self.agent.started_at:
            return None
        at = self.agent.started_at + (now - self.agent.started_at) // HEARTBEAT * HEARTBEAT
        # The agent tells of a reading once all of it is delivered (rekindle.slurm_agent.publishing.outbox).
        read_at = self._written_as_of if self._is_behind else at - self._source_faults.head_late()
        return self.agent.heartbeat(at=at, read_at=min(at, read_at)).to_json(), at

    def ordered(self, body: bytes) -> None:
        """A message lies in the cluster's queue."""
        self._clock.after(TAKEN, lambda: self._take(body), label="the agent takes an order")

    def _take(self, body: bytes) -> None:
        if self._source_faults.head_is_away():
            self._waiting.append(body)
            return
        order = self._ordering = Order.from_json(body)
        try:
            run = self._run_named(order)
            answer = self.agent.take(body)
        finally:
            self._ordering = None
        if answer.outcome is Outcome.DONE and run is not None:
            if order.verb in (Verb.SUBMIT, Verb.REQUEUE):
                self._watcher().acts(run, order.issued_at)
                self._ours[order.new_attempt or ""] = order.issued_at
            if order.verb is Verb.SUBMIT:
                run.job_ids.add(order.new_attempt or "")
        self._soon()

    def _run_named(self, order: Order) -> TrueRun | None:
        job = self.model.jobs.get(order.slurm_job or 0)
        return self._run_of(job) if job is not None else None

    def _put(self, key: str, body: bytes) -> None:
        self._objects.put(key, body)

    def _send_event(self, detail_type: str, detail: dict[str, Any]) -> None:
        self._publish("rekindle.agent", detail_type, detail, [])

    def _bent(self, nodes: NodesDoc) -> NodesDoc:
        """The nodes as Slurm shows them: some seem not to answer."""
        hidden = {node.name for node in nodes.nodes if self._source_faults.hides_node(node.name)}
        for node in self.nodes.values():
            if node.unreachable_since is not None and node.name not in hidden:
                node.reachable_since = self._clock.now()
            node.unreachable_since = (node.unreachable_since or self._clock.now()) if node.name in hidden else None
        shown = tuple(
            replace(node, state="down", flags=(*node.flags, "not_responding"), reason=node.reason or "Not responding")
            if node.state in ("idle", "allocated") and node.name in hidden
            else node
            for node in nodes.nodes
        )
        return NodesDoc(cluster=nodes.cluster, seen_at=nodes.seen_at, nodes=shown)

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _is_lost(self, node: TrueNode) -> None:
        """slurmd has not answered for long."""
        if node.is_dead and self.model.node_facts[node.name].state != "down":
            self.model.lose_node(node.name)
            self._soon()

    def _loses(self, node: TrueNode) -> None:
        """Slurm does not reach its slurmd, and takes what runs there for dead."""
        if node.runs_unseen and not node.is_dead:
            self.model.lose_node(node.name)
            self._soon()

    def _finds(self, node: TrueNode) -> None:
        """slurmd answers again, and ends what it finds of jobs that are over."""
        if node.runs_unseen and not node.in_our_repair and not node.is_dead:
            node.runs_unseen = False
            self.model.mend_node(node.name)
            self._soon()

    def _is_seen(self, node: TrueNode) -> None:
        """HyperPod's health agent sees it; its own repair follows where that is switched on."""
        if not node.is_broken:
            return
        self._condemn(node.name, action=node.cure.capitalize())
        if self.pods.clusters[NAME].node_recovery == "Automatic":
            self._clock.after(HYPERPOD_MARKS, lambda: self._mark(node), label=f"HyperPod marks {node.name}")

    def _mark(self, node: TrueNode) -> None:
        if node.is_broken and self.model.node_facts[node.name].state != "down":
            reason = f"Action:{node.cure.capitalize()}"
            self.model.mark_failing(node.name, reason=reason)
            self.pods.slurm_marked(NAME, node.name, reason)
            self._soon()

    def _condemn(self, name: str, *, action: str = "Reboot") -> None:
        node = self.nodes[name]
        node.condemned, node.condemned_until, node.is_acquittal_lost = True, None, False
        self.pods.report_health(NAME, node.instance_id, fault="NvidiaErrorTerminate", action=action)

    def _acquit(self, name: str) -> None:
        node = self.nodes[name]
        if node.condemned and not node.is_broken:
            node.condemned, node.condemned_until = False, self._clock.now() + self._source_faults.event_delay()
            lost = self._source_faults.lost
            self.pods.report_health(NAME, node.instance_id, fault="none", status="Healthy")
            node.is_acquittal_lost = self._source_faults.lost > lost

    def _gone(self, _cluster: str, machine: Node) -> None:
        """It goes down to be rebooted or replaced; a drain stays a drain."""
        name = name_of(machine)
        if self.repairing:
            self._watcher().repairs(self.nodes[name], self.repairing)
            self.nodes[name].in_our_repair = True
        self.nodes[name].runs_unseen = False
        kept = tuple(flag for flag in self.model.node_facts[name].flags if flag == "drain")
        self.model.lose_node(name)
        self._show(name, flags=("not_responding", *kept))
        self._soon()

    def _rebooted(self, _cluster: str, machine: Node) -> None:
        self._back(machine, by="reboot")

    def _replaced(self, _cluster: str, _old: str, _new: str, machine: Node) -> None:
        self.nodes[name_of(machine)].instance_id = machine.instance_id
        self._back(machine, by="replace")

    def _back(self, machine: Node, *, by: str) -> None:
        name = name_of(machine)
        node = self.nodes[name]
        node.repaired(self._clock.now(), by=by)
        if by == "replace":
            node.announced_at = node.leaves_at = None
        node.in_our_repair = False
        facts = self.model.node_facts[name]
        if not node.is_dead:
            drained = tuple(flag for flag in facts.flags if flag == "drain")
            reason = facts.reason if drained else ""
            self._show(name, state="idle", flags=drained, reason=reason, instance_id=machine.instance_id)
            self._show(name, booted_at=self._clock.now())  # slurmd says so with its registration
        else:
            self._show(name, instance_id=machine.instance_id)
        self._soon()

    def _show(self, name: str, **changes: Any) -> None:
        self.model.node_facts[name] = replace(self.model.node_facts[name], **changes)


def _later(doc: _Doc, by: timedelta, *times: str) -> _Doc:
    """The same with these of its times moved."""
    moved = {name: getattr(doc, name) + by for name in times if getattr(doc, name) is not None}
    return replace(doc, **moved)
