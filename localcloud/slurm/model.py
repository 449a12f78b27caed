"""A Slurm controller that exists only in memory: jobs, nodes and a queue. The agent's hands on them: `orders`.

What it does was tried on Slurm 22.05 (a requeue keeps the job's id and counts a restart; `requeuehold` leaves it held;
a node that goes down puts its jobs back, unless they may not be requeued; a slurmd that dies alone leaves its ranks
running; a dependency that was not met once is never met, until it is changed).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final

from localcloud.slurm.job import ARRAY, ENDED, ON_NODES, SimJob
from rekindle.protocol.cluster.documents import AttemptDoc, CauseDoc, EndedBy, NodeFacts, NodesDoc, SlurmState
from rekindle.protocol.cluster.names import SlurmAttempt, parse_attempt
from rekindle.protocol.cluster.orders import Order, OrderResult
from rekindle.slurm_agent.files import cause
from rekindle.slurm_agent.reading.jobs import dependencies
from rekindle.slurm_agent.reading.run_identity import NEVER

SPEC: Final = "5" * 64


@functools.lru_cache(maxsize=256)
def _cause_in(printed: str) -> CauseDoc | None:
    """What the agent's own reader finds in what the start printed."""
    return cause.of_text(printed.encode()).cause


class SlurmModel:
    """A Slurm controller modelled on a clock. `now` is the time; `on_start` is called with each start that begins,
    `on_end` with each that ends.
    """

    def __init__(self, *, cluster: str, nodes: tuple[str, ...], now: Callable[[], datetime]) -> None:
        self.cluster = cluster
        self.now = now
        self.jobs: dict[int, SimJob] = {}
        self.unasked: set[int] = set()  # those that ask for no protection: the agent does not see them
        self.past: dict[str, AttemptDoc] = {}  # starts that are over because the job was put back
        self.answers: dict[str, OrderResult] = {}
        self.executed: list[Order] = []
        self.node_facts = {
            name: NodeFacts(name=name, state="idle", instance_id=f"i-{index:017x}") for index, name in enumerate(nodes)
        }
        self.on_start: list[Callable[[SimJob], None]] = []
        self.on_end: list[Callable[[SimJob], None]] = []
        self._next = 1

    # ---- what users and machines do --------------------------------------------------------------------------------

    def submit(self, *, attempt: str | None = None, lineage: str | None = None, **more: object) -> SimJob:
        """sbatch: a job in the queue."""
        number, self._next = self._next, self._next + 1
        base = parse_attempt(attempt) if attempt else SlurmAttempt(cluster=self.cluster, base=str(number))
        job = SimJob(slurm_job=number, base=base, lineage=lineage or base.name, submitted_at=self.now(), **more)  # type: ignore[arg-type]  # a test's own words
        self.jobs[number] = job
        return job

    def schedule(self) -> None:
        """One pass of the scheduler: what waits, is not held and fits, starts."""
        for job in tuple(self.jobs.values()):  # one that starts may submit another
            if job.state is not SlurmState.PENDING or job.held or job.reason == NEVER:
                continue
            if (waits := self._waits_for_jobs(job)) is not None:
                job.reason = waits
                continue
            free = [name for name in self.node_facts if self._is_free(name) and name not in job.exclude]
            count = job.least or job.wants  # Slurm takes the fewest of a range that was set later
            if len(free) < count:
                job.reason = "Resources"
                continue
            job.nodes, job.state, job.reason = tuple(free[:count]), SlurmState.RUNNING, ""
            job.started_at, job.ended_at = self.now(), None
            for reported in self.on_start:
                reported(job)

    def _waits_for_jobs(self, job: SimJob) -> str | None:
        """Slurm's word for it, where its dependencies are not met."""
        for kind, number, _ in dependencies(job.dependency):
            if kind == "singleton":
                # One that runs holds it back also where it was submitted later (seen on Slurm 22.05 and 26.05).
                named = [other for other in self.jobs.values() if (other.name, other.user) == (job.name, job.user)]
                earlier = [other for other in named if other.slurm_job < job.slurm_job and other.state not in ENDED]
                if earlier or any(other.state in ON_NODES for other in named):
                    return "Dependency"
                continue
            before = self.jobs.get(number or 0)
            if before is None or not before.is_known:
                continue
            if before.state not in ENDED:
                return "Dependency"
            if kind in ("afterok", "afternotok") and (kind == "afterok") is not (before.state is SlurmState.COMPLETED):
                return NEVER
        return None

    def _is_free(self, name: str) -> bool:
        facts = self.node_facts[name]
        busy = any(name in job.nodes for job in self.jobs.values() if job.state in ON_NODES)
        return facts.state == "idle" and not facts.flags and not busy

    def end(
        self,
        job: SimJob,
        state: SlurmState,
        *,
        by: EndedBy = EndedBy.ITSELF,
        reason: str = "",
        code: int | None = None,
        step_code: int | None = None,
        detail: str = "",
    ) -> None:
        """The start is over, and the job with it."""
        was_running = job.state in ON_NODES
        job.state, job.ended_by, job.reason, job.exit_code, job.detail = state, by, reason, code, detail
        job.ended_at, job.held, job.step_code = self.now(), False, step_code
        if was_running:
            for reported in self.on_end:
                reported(job)

    def cancel_by_user(self, job: SimJob) -> None:
        """scancel by the job's owner."""
        if job.state not in ENDED:
            self.end(job, SlurmState.CANCELLED, by=EndedBy.USER)

    def put_back(self, job: SimJob, *, by: EndedBy, held: bool = False, lost: tuple[str, ...] = ()) -> None:
        """The job goes back into the queue: this start is over, the next one has its name already."""
        if job.state in ON_NODES:
            for reported in self.on_end:
                reported(job)
        if job.state not in ENDED:
            job.ended_at, job.ended_by = self.now(), by
        job.state = SlurmState.REQUEUED
        over = self.doc(job)
        job.restart += 1
        after = job.attempt
        self.past[over.attempt] = replace(over, successor=after, requeued_by=by, lost_nodes=lost)
        job.state, job.nodes, job.held, job.ended_by = SlurmState.PENDING, (), held, EndedBy.UNKNOWN
        job.reason = "JobHeldUser" if held else "BeginTime"
        job.started_at = job.ended_at = job.exit_code = job.step_code = None
        job.detail = ""

    def lose_node(self, name: str) -> None:
        """The node goes down. Its jobs are put back, or end."""
        facts = self.node_facts[name]
        self.node_facts[name] = replace(
            facts, state="down", flags=("not_responding",), reason=facts.reason or "Not responding"
        )
        for job in self.jobs.values():
            if job.state in ON_NODES and name in job.nodes:
                if job.is_requeueable:
                    self.put_back(job, by=EndedBy.SLURM, lost=(name,))
                else:
                    self.end(job, SlurmState.NODE_FAIL, by=EndedBy.SLURM, reason="NodeDown")

    def mark_failing(self, name: str, *, reason: str = "Action:Replace") -> None:
        """An administrator marks the node for repair: its running job continues, and no new job is placed on it."""
        self.node_facts[name] = replace(self.node_facts[name], flags=("fail",), reason=reason)

    def mend_node(self, name: str, *, instance_id: str | None = None) -> None:
        """The node is back, as another machine where `instance_id` says so."""
        facts = self.node_facts[name]
        self.node_facts[name] = replace(
            facts, state="idle", flags=(), reason="", instance_id=instance_id or facts.instance_id
        )

    def forget(self, job: SimJob) -> None:
        """MinJobAge has passed: slurmctld no longer knows it."""
        if job.state in ENDED:
            job.is_known = False

    # ---- what the agent writes -------------------------------------------------------------------------------------

    def doc(self, job: SimJob) -> AttemptDoc:
        """The document of the job's present start."""
        return AttemptDoc(
            attempt=job.attempt,
            cluster=self.cluster,
            slurm_job=job.slurm_job,
            restart=job.restart,
            state=job.state,
            seen_at=self.now(),
            name=job.name,
            job_id=job.job_id,
            user=job.user,
            partition="main",
            reason=job.reason,
            nodes=job.nodes,
            node_count=len(job.nodes) or job.least or job.wants,
            min_nodes=job.min_nodes,
            submitted_at=job.submitted_at,
            started_at=job.started_at,
            ended_at=job.ended_at,
            exit_code=job.exit_code,
            step_exit_code=job.step_code,
            ended_by=job.ended_by,
            detail=job.detail,
            cause=_cause_in(job.detail) if job.state is SlurmState.FAILED else None,
            held=job.held,
            is_requeueable=job.is_requeueable,
            is_known=job.is_known,
            has_auto_resume=job.has_auto_resume,
            cannot_resubmit=(ARRAY,) if job.is_array_task else (),
            exclude=job.exclude,
            mailbox=job.mailbox,
            spec=SPEC,
        )

    def docs(self) -> dict[str, AttemptDoc]:
        """Every start that the agent has ever seen."""
        return self.past | {job.attempt: self.doc(job) for job in self.jobs.values()}

    def nodes_doc(self) -> NodesDoc:
        busy = {name: job.slurm_job for job in self.jobs.values() if job.state in ON_NODES for name in job.nodes}
        nodes = [
            replace(
                facts,
                state="allocated" if name in busy and facts.state == "idle" else facts.state,
                jobs=(busy[name],) if name in busy else (),
            )
            for name, facts in self.node_facts.items()
        ]
        return NodesDoc(cluster=self.cluster, seen_at=self.now(), nodes=tuple(nodes))
