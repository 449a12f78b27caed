"""A Slurm controller that exists only in memory: jobs, nodes, a queue, and an agent's hands on them.

What it does was tried on Slurm 22.05 (a requeue keeps the job's id and counts a restart; `requeuehold` leaves it held;
a node that goes down puts its jobs back, unless they may not be requeued; a slurmd that dies alone leaves its ranks
running; a dependency that was not met once is never met, until it is changed). An order is carried out once per token,
and judged as the real agent judges it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc, CauseDoc, EndedBy, NodeFacts, NodesDoc, SlurmState
from rekindle.protocol.cluster.names import SlurmAttempt, parse_attempt
from rekindle.protocol.cluster.orders import REASON_PREFIX, Order, OrderResult, Outcome, Sibling, Verb
from rekindle.slurm_agent.files import cause
from rekindle.slurm_agent.reading.comment import Comment
from rekindle.slurm_agent.reading.jobs import dependencies, repointed
from rekindle.slurm_agent.reading.run_identity import NEVER, RunFacts, same_run, standing

ARRAY: Final = "it is a task of a job array: one task cannot be submitted again as part of the array"
ENDED: Final = frozenset(
    {
        SlurmState.COMPLETED,
        SlurmState.CANCELLED,
        SlurmState.FAILED,
        SlurmState.TIMEOUT,
        SlurmState.NODE_FAIL,
        SlurmState.PREEMPTED,
        SlurmState.OUT_OF_MEMORY,
    }
)
SPEC: Final = "5" * 64
ON_NODES: Final = frozenset({SlurmState.RUNNING, SlurmState.SUSPENDED})


@functools.lru_cache(maxsize=256)
def _cause_in(printed: str) -> CauseDoc | None:
    """What the agent's own reader finds in what the start printed."""
    return cause.of_text(printed.encode()).cause


@dataclass(slots=True, kw_only=True)
class SimJob:
    """One Slurm job, with the fields of Slurm's own record that squeue and scontrol show (hence their number).

    `lineage` is whose run it is, across submissions.
    """

    slurm_job: int
    base: SlurmAttempt
    lineage: str
    name: str = "lm"
    user: str = "ada"
    dependency: str = ""
    submitted_on: str = "head"
    wants: int = 2
    least: int | None = None  # it was made smaller: so few will do
    min_nodes: int | None = None  # what its comment says
    restart: int = 0
    state: SlurmState = SlurmState.PENDING
    nodes: tuple[str, ...] = ()
    held: bool = False
    exclude: tuple[str, ...] = ()
    is_requeueable: bool = True
    has_auto_resume: bool = False
    is_array_task: bool = False
    is_known: bool = True
    mailbox: str = ""
    job_id: str | None = None
    ended_by: EndedBy = EndedBy.UNKNOWN
    reason: str = ""
    detail: str = ""
    exit_code: int | None = None
    step_code: int | None = None
    submitted_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def attempt(self) -> str:
        """The name of its present start."""
        return self.base.restarted(self.restart).name


class _LivesBeside(Exception):
    """Another start of the run has nodes, or will get them by itself."""

    def __init__(self, sibling: Sibling) -> None:
        super().__init__(f"nothing was started: job {sibling.slurm_job} is of the same run (the same {sibling.tie})")
        self.sibling = sibling


class SlurmModel:
    """A Slurm controller modelled on a clock. `now` is the time; `on_start` is called with each start that begins,
    `on_end` with each that ends.
    """

    def __init__(self, *, cluster: str, nodes: tuple[str, ...], now: Callable[[], datetime]) -> None:
        self.cluster = cluster
        self._now = now
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
        job = SimJob(slurm_job=number, base=base, lineage=lineage or base.name, submitted_at=self._now(), **more)  # type: ignore[arg-type]  # a test's own words
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
            job.started_at, job.ended_at = self._now(), None
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
        job.ended_at, job.held, job.step_code = self._now(), False, step_code
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
            job.ended_at, job.ended_by = self._now(), by
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
            seen_at=self._now(),
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
        return NodesDoc(cluster=self.cluster, seen_at=self._now(), nodes=tuple(nodes))

    # ---- orders ----------------------------------------------------------------------------------------------------

    def take(self, order: Order) -> OrderResult:
        """Carry an order out once; the answer of the first time ever after."""
        known = self.answers.get(order.token)
        if known is not None:
            return known
        sibling = None
        try:
            outcome, detail, slurm_job = self._judge(order)
        except _LivesBeside as err:
            outcome, detail, slurm_job, sibling = Outcome.REFUSED, str(err), None, err.sibling
        if outcome is Outcome.DONE:
            self.executed.append(order)
        answer = OrderResult(
            token=order.token,
            verb=order.verb,
            cluster=self.cluster,
            outcome=outcome,
            at=self._now(),
            detail=detail,
            attempt=order.new_attempt or order.attempt,
            slurm_job=slurm_job,
            node=order.node,
            incident_id=order.incident_id,
            sibling=sibling,
        )
        self.answers[order.token] = answer
        return answer

    def _judge(self, order: Order) -> tuple[Outcome, str, int | None]:
        if self._now() > order.expires_at:
            return Outcome.REFUSED, "expired", None
        match order.verb:
            case Verb.CANCEL | Verb.HOLD:
                return self._stop(order)
            case Verb.REQUEUE:
                return self._requeue(order)
            case Verb.SUBMIT:
                return self._submit(order)
            case Verb.SHRINK:
                return self._shrink(order)
            case Verb.EXCLUDE:
                return self._exclude(order)
            case Verb.DRAIN | Verb.RESUME:
                return self._node(order)
            case _:
                return Outcome.REFUSED, f"this controller does not {order.verb}", None

    def _stop(self, order: Order) -> tuple[Outcome, str, int | None]:
        job = self.jobs.get(order.slurm_job or 0)
        if job is None or not job.is_known or job.state in ENDED:
            return Outcome.ALREADY, "it is over", None
        if job.state is SlurmState.PENDING and job.held and order.verb is Verb.HOLD:
            return Outcome.ALREADY, "it waits, held", None
        if job.attempt != order.attempt:
            return Outcome.REFUSED, f"stale: it is {job.attempt}", None
        if order.verb is Verb.CANCEL:
            self.end(job, SlurmState.CANCELLED, by=EndedBy.AGENT)
        elif not job.is_requeueable:
            return Outcome.REFUSED, "requeue is not allowed", None
        elif job.state is SlurmState.PENDING:
            job.held = True
        else:
            self.put_back(job, by=EndedBy.AGENT, held=True)
        return Outcome.DONE, "stopped", job.slurm_job

    def _requeue(self, order: Order) -> tuple[Outcome, str, int | None]:
        job = self.jobs.get(order.slurm_job or 0)
        if job is None or not job.is_known:
            return Outcome.REFUSED, "slurmctld does not know it any more", None
        new = parse_attempt(order.new_attempt or "")
        if job.restart > new.restart:
            return Outcome.REFUSED, f"stale: it is {job.attempt}", None
        if job.restart == new.restart:
            if job.state is not SlurmState.PENDING:
                return Outcome.ALREADY, f"it is {job.state}", job.slurm_job
            was_held = job.held
            if was_held:
                self.check_beside(job)
            self._release(job, order)
            return (Outcome.DONE if was_held else Outcome.ALREADY), "let go", job.slurm_job
        if job.state not in ENDED or not job.is_requeueable:
            return Outcome.REFUSED, f"it is {job.state}", None
        self.check_beside(job)
        self.put_back(job, by=EndedBy.AGENT, held=True)
        self.wait_for(job, in_place_of=job.slurm_job)
        self._release(job, order)
        return Outcome.DONE, "requeued", job.slurm_job

    def check_beside(self, old: SimJob) -> None:
        """As `rekindle.agent` looks for other starts of the run. Raises: _LivesBeside."""
        facts = {job.slurm_job: self._facts(job) for job in self.jobs.values() if job.is_known}
        ours = self._facts(old)
        for other in self.jobs.values():
            if other is old or not other.is_known or other.slurm_job in self.unasked:
                continue
            stands = standing(facts[other.slurm_job], facts)
            tie = same_run(ours, facts[other.slurm_job], str) if stands is not None else None
            if stands is not None and tie is not None:
                raise _LivesBeside(Sibling(slurm_job=other.slurm_job, standing=stands, tie=tie, attempt=other.attempt))

    def _facts(self, job: SimJob) -> RunFacts:
        return RunFacts(
            job=job.slurm_job,
            user=job.user,
            name=job.name,
            says=(Comment(job=job.job_id, mailbox=job.mailbox),),
            job_id=job.job_id or job.base.name,
            state=job.state,
            is_held=job.held,
            is_protected=True,
            is_task=job.is_array_task,
            dependency=job.dependency,
            reason=job.reason,
        )

    def wait_for(self, new: SimJob, *, in_place_of: int) -> None:
        """What waits for the one waits for the other, or again for the same."""
        for job in self.jobs.values():
            expression = repointed(job.dependency, in_place_of, new.slurm_job)
            if expression is not None and job is not new and job.state is SlurmState.PENDING:
                job.dependency, job.reason = expression, "Dependency"

    def _release(self, job: SimJob, order: Order) -> None:
        job.exclude = tuple(dict.fromkeys((*job.exclude, *order.exclude)))
        job.held, job.reason = False, "Resources"
        if order.nodes_min is not None:
            job.least = None

    def _submit(self, order: Order) -> tuple[Outcome, str, int | None]:
        there = next((job for job in self.jobs.values() if job.base.name == order.new_attempt), None)
        if there is not None:
            return Outcome.ALREADY, "it is there", there.slurm_job
        old = self.jobs.get(order.slurm_job or 0)
        if (
            old is not None
            and old.is_known
            and old.state not in ENDED
            and not (old.state is SlurmState.PENDING and old.held)
        ):
            return Outcome.REFUSED, f"job {old.slurm_job} is {old.state}: the run would be there twice", None
        if old is not None:
            self.check_beside(old)
        if old is not None and old.is_array_task:
            return Outcome.REFUSED, ARRAY, None
        template = old or SimJob(
            slurm_job=1, base=parse_attempt(order.attempt or ""), lineage="", submitted_at=self._now()
        )
        job = self.submit(
            attempt=order.new_attempt,
            lineage=template.lineage,
            name=template.name,
            wants=template.wants,
            mailbox=template.mailbox,
            job_id=order.environment.get("REKINDLE_JOB_ID") or template.job_id,
            exclude=order.exclude,
            environment=dict(order.environment),
            is_requeueable=template.is_requeueable,
            has_auto_resume=template.has_auto_resume,  # it stands in the script
        )
        if old is not None:
            self.wait_for(job, in_place_of=old.slurm_job)
        return Outcome.DONE, "submitted", job.slurm_job

    def _shrink(self, order: Order) -> tuple[Outcome, str, int | None]:
        job = self.jobs.get(order.slurm_job or 0)
        if job is None or job.state is not SlurmState.PENDING or job.attempt != order.attempt:
            return Outcome.REFUSED, "only a pending job is made smaller", None
        if job.min_nodes is None or (order.nodes_min or 0) < job.min_nodes:
            return Outcome.REFUSED, "its script cannot", None
        job.least = order.nodes_min
        return Outcome.DONE, "smaller", job.slurm_job

    def _exclude(self, order: Order) -> tuple[Outcome, str, int | None]:
        job = self.jobs.get(order.slurm_job or 0)
        if job is None or job.state is not SlurmState.PENDING:
            return Outcome.REFUSED, "only a pending job's nodes can be excluded", None
        job.exclude = order.exclude
        return Outcome.DONE, "set", job.slurm_job

    def _node(self, order: Order) -> tuple[Outcome, str, int | None]:
        facts = self.node_facts.get(order.node or "")
        if facts is None:
            return Outcome.REFUSED, "no such node", None
        ours = facts.reason.startswith(REASON_PREFIX)
        if order.verb is Verb.RESUME:
            if not ours:
                return Outcome.REFUSED, "not ours", None
            self.node_facts[facts.name] = replace(
                facts, flags=tuple(flag for flag in facts.flags if flag != "drain"), reason=""
            )
            return Outcome.DONE, "resumed", None
        if "drain" in facts.flags:
            return (Outcome.ALREADY, "drained", None) if ours else (Outcome.REFUSED, "someone else drained it", None)
        self.node_facts[facts.name] = replace(
            facts, flags=(*facts.flags, "drain"), reason=f"{REASON_PREFIX}{order.incident_id}"
        )
        return Outcome.DONE, "drained", None
