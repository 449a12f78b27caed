"""The HyperPod cluster of a story: what is true of its Slurm jobs, its nodes (`machines`) and its head node (`head`).

Slurm is `localcloud.slurm.model`, the cluster's API `localcloud.platforms.hyperpod`, the agent
`localcloud.slurm.agent`. Nothing ticks: Slurm's scheduler and the agent work a moment after something has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

from localcloud.aws.sagemaker import TERMINAL, Phase
from localcloud.slurm.job import ENDED, SimJob
from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.cluster.names import agent_key
from rekindle.protocol.cluster.orders import Verb
from rekindle.protocol.launch_orders import ENV_ATTEMPT
from rekindle.slurm_agent.reading.jobs import dependencies
from rekindle.slurm_agent.reading.run_identity import NEVER
from simulation.runs.monitor import run_mailbox
from simulation.runs.truth import Attempt, TrueNode, TrueRun
from simulation.slurm.head import HeadNode
from simulation.slurm.machines import SLURMD_TIMEOUT, Machines
from simulation.slurm.site import NAME, TIMINGS, WORKERS, Site, name_of
from simulation.slurm.slurm_start import SlurmStart, launch_instructions, plan_of
from simulation.stories.story import Story, Trouble

HEALTH_SEEN: Final = timedelta(seconds=20)
FOR_GOOD_S: Final = 1e6  # beyond any story
_TAKEN_AWAY: Final = frozenset({"suspended", "preempted", "time_limit"})
SICK_FAILS: Final = timedelta(seconds=50)
SICK: Final = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


class Cluster(Site):
    """The one of the story. `machines` and `head` are its nodes and its head node."""

    def __init__(self, story: Story, *, changed: Callable[[], None], **shared: Any) -> None:
        """changed: called when it may be seen who is dead. shared: see `Site`."""
        super().__init__(story, **shared)
        self._changed_out = changed
        self.machines = Machines(self)
        for node in self.workers:
            self.machines.show(name_of(node), instance_id=node.instance_id, group=WORKERS)
        self.model.on_start.append(self._starts)
        self.model.on_end.append(self._is_over)
        self.head = HeadNode(self, self.machines)
        self.pods.on_gone = self.machines.gone
        self.pods.on_reboot = self.machines.rebooted
        self.pods.on_replace = self.machines.replaced
        self._starts_by_name: dict[str, SlurmStart] = {}

    # ---- life ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Slurm works, and the agent starts."""
        self.objects.living[agent_key(NAME)] = self.head.heartbeat
        self.head.agent.start()
        for delay in self.source_faults.head_changes():
            self.clock.after(delay, self.head.back_at_work, label="what the head node shows changes")
        for delay, node, until in self.source_faults.false_health(tuple(self.nodes)):
            self.clock.after(delay, lambda node=node: self.machines.condemn(node), label="health")  # type: ignore[misc]
            self.clock.after(until, lambda node=node: self.machines.acquit(node), label="health")  # type: ignore[misc]
        for delay, node, ahead_s in self.source_faults.false_notices(tuple(self.nodes)):
            announce = lambda node=node, ahead_s=ahead_s: self.machines.announce(self.nodes[node], ahead_s)  # noqa: E731
            self.clock.after(delay, announce, label="AWS announces an end that does not come")
        self.head.soon()

    def submit(self, run: TrueRun, *, job_id: str | None = None, is_protected: bool = True) -> None:
        """sbatch by the run's owner: of the whole chain, the first time."""
        is_first = not run.job_ids
        before = self._sbatch(run, job_id=job_id, is_protected=is_protected)
        for _ in range(run.spec.links - 1 if is_first and run.spec.chain not in ("", "within") else 0):
            kind = run.spec.chain
            before = self._sbatch(run, dependency=kind if kind == "singleton" else f"{kind}:{before.slurm_job}")
        self.head.soon()

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
        return [job for job in self.model.jobs.values() if self.run_of(job) is run and job.state not in ENDED]

    def waits_in_vain(self, run: TrueRun) -> list[SimJob]:
        """Its links that wait for the success of a start that has failed."""
        return [job for job in self.jobs_of(run) if job.reason == NEVER]

    def waits_for(self, job: SimJob, name: str) -> bool:
        """Whether it waits for the Slurm job of that start, or for one in place of which ours have been submitted."""
        waited_for = {number for _, number, _ in dependencies(job.dependency)}
        number: int | None = self._starts_by_name[name].slurm_job
        while number is not None and number not in waited_for:
            number = self.head.copy_of.get(number)
        return number is not None

    def cancel(self, run: TrueRun) -> bool:
        """scancel by the run's owner; whether there was anything to cancel."""
        there = self.jobs_of(run)
        waits = (NEVER, "Dependency")
        if any(job.reason not in waits for job in there):  # a link whose turn has not come is not what trains
            run.owner_stopped_at = self.clock.now()  # before the job's end is seen
        for job in there:
            self.model.cancel_by_user(job)
        self.head.soon()
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
        self.head.soon()

    def breaks(self, attempt: Attempt, trouble: Trouble, step: int) -> bool:
        """The first node of the attempt breaks, or Slurm takes all of them from it; no step ends any more."""
        start = self._starts_by_name.get(attempt.name)
        if start is None:
            return False
        if trouble.kind == "node_leaves":
            node, ahead_s = self.nodes[start.nodes[0]], trouble.after_s or 0.0
            self.machines.announce(node, ahead_s)
            self.clock.after(
                timedelta(seconds=ahead_s), lambda: self.machines.leaves(node), label=f"AWS takes {node.name}"
            )
            return False
        if trouble.kind == "slurmd_dies":
            node = self.nodes[start.nodes[0]]
            node.runs_unseen = True
            self.clock.after(SLURMD_TIMEOUT, lambda: self.machines.loses(node), label=f"Slurm misses {node.name}")
            for_s = timedelta(seconds=trouble.after_s or FOR_GOOD_S)
            self.clock.after(for_s, lambda: self.machines.finds(node), label=f"slurmd of {node.name} is back")
            return False
        if trouble.kind in _TAKEN_AWAY:
            self.training.suspends(attempt, step)
            self._takes_away(attempt, self.model.jobs[start.slurm_job], trouble)
            return True
        node = self.nodes[start.nodes[0]]
        node.breaks(self.clock.now(), is_dead=trouble.kind == "node_dies", cure=trouble.cure)
        if trouble.kind == "node_hangs":
            attempt.mute = frozenset({0})
            self.training.freezes(attempt, step)
        elif node.is_dead:
            self.training.freezes(attempt, step)
            self.clock.after(SLURMD_TIMEOUT, lambda: self.machines.is_lost(node), label=f"Slurm misses {node.name}")
        else:
            self.clock.after(HEALTH_SEEN, lambda: self.machines.is_seen(node), label=f"health of {node.name}")
            if attempt.run.spec.auto_resume:
                self._resumes_by_itself(attempt, node, step)
            else:
                self.training.fails(attempt, SICK)
        return True

    def _resumes_by_itself(self, attempt: Attempt, node: TrueNode, step: int) -> None:
        """srun --auto-resume: the step is gone, the job keeps its nodes; HyperPod replaces the sick one, and runs the
        step again. Source: SageMaker developer guide, sagemaker-hyperpod-resiliency-slurm-auto-resume.
        """
        self.training.loses_processes(attempt, step)

        def resume() -> None:
            if attempt.waits_for_itself and not attempt.job.is_terminal:
                was_condemned = node.condemned
                node.repaired(self.clock.now(), by="replace")
                node.condemned = was_condemned
                self.machines.acquit(node.name)  # the health agent says that what stands there now is well
                self.training.starts_again(attempt)

        self.clock.after(TIMINGS.replace, resume, label=f"{attempt.name} resumes automatically")

    def times_out(self, run: TrueRun) -> None:
        """Slurm ends its running job at its time limit."""
        for job in self.jobs_of(run):
            if job.state is SlurmState.RUNNING:
                self.model.end(job, SlurmState.TIMEOUT, by=EndedBy.SLURM)
        self.head.soon()

    def _takes_away(self, attempt: Attempt, job: SimJob, trouble: Trouble) -> None:
        """scontrol suspend; a job of higher priority; the end of its time."""
        for_s = timedelta(seconds=trouble.after_s or FOR_GOOD_S)
        match trouble.kind:
            case "suspended":
                job.state = SlurmState.SUSPENDED
                self.clock.after(for_s, lambda: self._resume(attempt, job), label=f"{attempt.name} resumes")
            case "preempted":
                nodes, attempt.was_preempted = job.nodes, True
                if job.is_requeueable:
                    self.model.put_back(job, by=EndedBy.SLURM)
                else:
                    self.model.end(job, SlurmState.PREEMPTED, by=EndedBy.SLURM)
                for name in nodes:
                    self.machines.show(name, state="allocated")
                self.clock.after(for_s, lambda: self._give_back(nodes), label="the other job is over")
            case _:
                self.model.end(job, SlurmState.TIMEOUT, by=EndedBy.SLURM)
        self.head.soon()

    def _resume(self, attempt: Attempt, job: SimJob) -> None:
        if job.attempt == attempt.name and job.state is SlurmState.SUSPENDED:
            job.state = SlurmState.RUNNING
            self.training.resumes(attempt)
            self.head.soon()

    def _give_back(self, nodes: tuple[str, ...]) -> None:
        for name in nodes:
            if self.model.node_facts[name].state == "allocated":
                self.machines.show(name, state="idle")
        self.head.soon()

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
                crashed = self.training.attempts[name].is_silent_crash
                self.model.end(job, SlurmState.COMPLETED, code=0, step_code=int(crashed))
            else:
                self.model.end(
                    job, SlurmState.FAILED, reason="NonZeroExitCode", code=1, detail=(failure_reason or "")[:300]
                )
        self.head.soon()
        return True

    # ---- Slurm -----------------------------------------------------------------------------------------------------

    def _starts(self, job: SimJob) -> None:
        run = self.run_of(job)
        heard = launch_instructions(job, run, self.objects)
        start = SlurmStart(
            name=job.attempt,
            slurm_job=job.slurm_job,
            environment=dict(heard.env),
            nodes=job.nodes,
            created_at=self.clock.now() if job.restart else job.submitted_at,
        )
        self._starts_by_name[start.name] = start
        attempt = Attempt(
            job=start,
            platform=self,
            run=run,
            nodes=tuple(self.nodes[name] for name in job.nodes),
            number=int(heard.env[ENV_ATTEMPT]),
            plan=plan_of(heard, run),
            is_ours=job.attempt in self.head.ordered_starts,
            is_by_hand=job.attempt not in self.head.ordered_starts and job.restart == 0,
            is_tagged=job.slurm_job not in self.model.unasked,
            is_link=bool(job.dependency),
            ordered_at=self.head.ordered_starts.get(job.attempt),
        )
        self.training.starts(attempt)
        if attempt.is_ours:
            self.watcher().submitted(attempt)
        if run.spec.chain == "within" and job.restart == 0 and len(run.job_ids) < run.spec.links:
            self._sbatch(run, dependency=f"afterany:{job.slurm_job}", within=job)
        if any(self.nodes[name].is_broken for name in job.nodes):
            self.clock.after(SICK_FAILS, lambda: self._fails_there(attempt), label=f"{start.name} on a sick node")

    def _fails_there(self, attempt: Attempt) -> None:
        start = self._starts_by_name[attempt.name]
        if any(self.nodes[name].is_broken for name in start.nodes):
            self.training.fails(attempt, SICK)

    def _is_over(self, job: SimJob) -> None:
        """Slurm has ended a start: it failed, or was cancelled or held."""
        start = self._starts_by_name[job.attempt]
        if start.is_terminal:
            return
        attempt = self.training.attempts[start.name]
        order = self.head.ordering
        if self.repairing or (order is not None and order.verb in (Verb.CANCEL, Verb.HOLD)):
            self.watcher().stops(attempt)
        is_stop = order is not None or job.ended_by is EndedBy.USER
        phase = Phase.STOPPED if is_stop else Phase.FAILED
        self._close(start, phase, None if is_stop else "a node was lost")
        self.training.over(attempt, phase)
        unseen = next((node for node in attempt.nodes if node.runs_unseen), None)
        if unseen is not None and not is_stop:
            self.training.runs_on(attempt, lambda: not unseen.runs_unseen)
        self.head.soon()

    def _close(self, start: SlurmStart, phase: Phase, reason: str | None) -> None:
        start.phase, start.ended_at, start.failure_reason = phase, self.clock.now(), reason
        self.clock.after(timedelta(0), self._changed_out, label="who is dead")
