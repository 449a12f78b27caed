"""The agent's hands on the Slurm controller that exists only in memory: each order is carried out once per token."""

from __future__ import annotations

from dataclasses import replace

from localcloud.slurm.job import ARRAY, ENDED, SimJob
from localcloud.slurm.model import SlurmModel
from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.cluster.names import parse_attempt
from rekindle.protocol.cluster.orders import REASON_PREFIX, Order, OrderResult, Outcome, Sibling, Verb
from rekindle.slurm_agent.reading.comment import Comment
from rekindle.slurm_agent.reading.jobs import repointed
from rekindle.slurm_agent.reading.run_identity import RunFacts, same_run, standing


class _LivesBeside(Exception):
    """Another start of the run has nodes, or will get them by itself."""

    def __init__(self, sibling: Sibling) -> None:
        super().__init__(f"nothing was started: job {sibling.slurm_job} is of the same run (the same {sibling.tie})")
        self.sibling = sibling


class SlurmOrders:
    """Judges an order as the real agent does, and changes the model."""

    def __init__(self, model: SlurmModel) -> None:
        self._model = model

    def take(self, order: Order) -> OrderResult:
        """Carry an order out once; the answer of the first time ever after."""
        known = self._model.answers.get(order.token)
        if known is not None:
            return known
        sibling = None
        try:
            outcome, detail, slurm_job = self._judge(order)
        except _LivesBeside as err:
            outcome, detail, slurm_job, sibling = Outcome.REFUSED, str(err), None, err.sibling
        if outcome is Outcome.DONE:
            self._model.executed.append(order)
        answer = OrderResult(
            token=order.token,
            verb=order.verb,
            cluster=self._model.cluster,
            outcome=outcome,
            at=self._model.now(),
            detail=detail,
            attempt=order.new_attempt or order.attempt,
            slurm_job=slurm_job,
            node=order.node,
            incident_id=order.incident_id,
            sibling=sibling,
        )
        self._model.answers[order.token] = answer
        return answer

    def _judge(self, order: Order) -> tuple[Outcome, str, int | None]:
        if self._model.now() > order.expires_at:
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
        job = self._model.jobs.get(order.slurm_job or 0)
        if job is None or not job.is_known or job.state in ENDED:
            return Outcome.ALREADY, "it is over", None
        if job.state is SlurmState.PENDING and job.held and order.verb is Verb.HOLD:
            return Outcome.ALREADY, "it waits, held", None
        if job.attempt != order.attempt:
            return Outcome.REFUSED, f"stale: it is {job.attempt}", None
        if order.verb is Verb.CANCEL:
            self._model.end(job, SlurmState.CANCELLED, by=EndedBy.AGENT)
        elif not job.is_requeueable:
            return Outcome.REFUSED, "requeue is not allowed", None
        elif job.state is SlurmState.PENDING:
            job.held = True
        else:
            self._model.put_back(job, by=EndedBy.AGENT, held=True)
        return Outcome.DONE, "stopped", job.slurm_job

    def _requeue(self, order: Order) -> tuple[Outcome, str, int | None]:
        job = self._model.jobs.get(order.slurm_job or 0)
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
        self._model.put_back(job, by=EndedBy.AGENT, held=True)
        self.wait_for(job, in_place_of=job.slurm_job)
        self._release(job, order)
        return Outcome.DONE, "requeued", job.slurm_job

    def check_beside(self, old: SimJob) -> None:
        """As `rekindle.agent` looks for other starts of the run. Raises: _LivesBeside."""
        facts = {job.slurm_job: self._facts(job) for job in self._model.jobs.values() if job.is_known}
        ours = self._facts(old)
        for other in self._model.jobs.values():
            if other is old or not other.is_known or other.slurm_job in self._model.unasked:
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
        for job in self._model.jobs.values():
            expression = repointed(job.dependency, in_place_of, new.slurm_job)
            if expression is not None and job is not new and job.state is SlurmState.PENDING:
                job.dependency, job.reason = expression, "Dependency"

    def _release(self, job: SimJob, order: Order) -> None:
        job.exclude = tuple(dict.fromkeys((*job.exclude, *order.exclude)))
        job.held, job.reason = False, "Resources"
        if order.nodes_min is not None:
            job.least = None

    def _submit(self, order: Order) -> tuple[Outcome, str, int | None]:
        there = next((job for job in self._model.jobs.values() if job.base.name == order.new_attempt), None)
        if there is not None:
            return Outcome.ALREADY, "it is there", there.slurm_job
        old = self._model.jobs.get(order.slurm_job or 0)
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
            slurm_job=1, base=parse_attempt(order.attempt or ""), lineage="", submitted_at=self._model.now()
        )
        job = self._model.submit(
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
        job = self._model.jobs.get(order.slurm_job or 0)
        if job is None or job.state is not SlurmState.PENDING or job.attempt != order.attempt:
            return Outcome.REFUSED, "only a pending job is made smaller", None
        if job.min_nodes is None or (order.nodes_min or 0) < job.min_nodes:
            return Outcome.REFUSED, "its script cannot", None
        job.least = order.nodes_min
        return Outcome.DONE, "smaller", job.slurm_job

    def _exclude(self, order: Order) -> tuple[Outcome, str, int | None]:
        job = self._model.jobs.get(order.slurm_job or 0)
        if job is None or job.state is not SlurmState.PENDING:
            return Outcome.REFUSED, "only a pending job's nodes can be excluded", None
        job.exclude = order.exclude
        return Outcome.DONE, "set", job.slurm_job

    def _node(self, order: Order) -> tuple[Outcome, str, int | None]:
        facts = self._model.node_facts.get(order.node or "")
        if facts is None:
            return Outcome.REFUSED, "no such node", None
        ours = facts.reason.startswith(REASON_PREFIX)
        if order.verb is Verb.RESUME:
            if not ours:
                return Outcome.REFUSED, "not ours", None
            self._model.node_facts[facts.name] = replace(
                facts, flags=tuple(flag for flag in facts.flags if flag != "drain"), reason=""
            )
            return Outcome.DONE, "resumed", None
        if "drain" in facts.flags:
            return (Outcome.ALREADY, "drained", None) if ours else (Outcome.REFUSED, "someone else drained it", None)
        self._model.node_facts[facts.name] = replace(
            facts, flags=(*facts.flags, "drain"), reason=f"{REASON_PREFIX}{order.incident_id}"
        )
        return Outcome.DONE, "drained", None
