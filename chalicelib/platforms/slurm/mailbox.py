"""Mailboxes of Jobs on Slurm: a run without one is asked for a checkpoint by the signal that its script traps.

A signal has no reply. What acknowledges it is a new complete checkpoint where the run's checkpoints appear; never
scancel's exit status: a signal that is sent before a step exists is lost with status 0, and one that comes before the
handler is installed kills the run (docs/slurm-playbooks.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from chalicelib.domain.faults.slurm_states import status_of
from chalicelib.domain.model.action import ActionResult, Done, QuarantineCheckpoint, RequestCheckpoint, action_name
from chalicelib.domain.model.errors import RecoveryError
from chalicelib.domain.model.job import Attempt, Job
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import AttemptView, CheckpointView, ReplyView
from chalicelib.platforms.slurm.platform import SLURM
from chalicelib.ports.platforms import HeadNodes, Mailbox
from rekindle.protocol.cluster.documents import AttemptDoc, SlurmState
from rekindle.protocol.cluster.names import is_slurm, parse_attempt, relay_prefix
from rekindle.protocol.cluster.orders import Order, Outcome, Signal, Verb
from rekindle.protocol.launch_orders import AttemptOrder
from rekindle.protocol.mailbox import ReplyOutcome

if TYPE_CHECKING:
    from rekindle.protocol.reports import RankReport, ReportKind

_SIGNALS: Final = frozenset(Signal)
MAX_UNHEARD: Final = 8  # starts of one Slurm job; a job that is put back more often within one absence has saved little


class SlurmMailbox:
    """ports.Mailbox over another one; Jobs that are not on Slurm, and those with a mailbox, are the other one's.

    Marks of bad checkpoints need no mailbox: they lie where the agent looks for them, in `bucket`, the stack's own.
    """

    def __init__(self, inner: Mailbox, head_nodes: HeadNodes, *, bucket: str) -> None:
        self._inner = inner
        self._head_nodes = head_nodes
        self._bucket = bucket

    # ---- by signal -------------------------------------------------------------------------------------------------

    def ask(self, job: Job, action: RequestCheckpoint, *, incident_id: str, now: datetime) -> ActionResult:
        """See ports.Mailbox. DONE: the order is given; whether it did anything is `reply`'s answer."""
        if job.mailbox or job.platform != SLURM.name:
            return self._inner.ask(job, action, incident_id=incident_id, now=now)
        name = action_name(action)
        doc = self._head_nodes.attempt(action.attempt)
        if doc is None:
            return ActionResult(action=name, done=Done.REFUSED, detail="Slurm does not know this start")
        if why := _cannot_be_asked(job, doc):
            return ActionResult(action=name, done=Done.REFUSED, detail=why)
        order = Order(
            token=_token(action.request_id),
            verb=Verb.SIGNAL,
            cluster=doc.cluster,
            issued_at=now,
            expires_at=max(action.deadline_at, now),
            attempt=action.attempt,
            slurm_job=doc.slurm_job,
            signal=Signal(doc.signal or Signal.USR1),
            incident_id=incident_id,
        )
        answer = self._head_nodes.order(order)
        if answer is None:
            return ActionResult(action=name, done=Done.DONE, detail=f"SIG{doc.signal} is ordered")
        if answer.outcome is Outcome.REFUSED:
            return ActionResult(action=name, done=Done.REFUSED, detail=f"no signal was sent: {answer.detail}"[:400])
        return ActionResult(action=name, done=Done.ALREADY, detail=f"SIG{doc.signal}: {answer.outcome}")

    def reply(self, job: Job, request_id: str) -> Maybe[ReplyView | None]:
        if job.mailbox or job.platform != SLURM.name:
            return self._inner.reply(job, request_id)
        try:
            order, answer = self._head_nodes.ordered(job.cluster, _token(request_id))
            if order is None:
                return Known(None)
            if answer is not None and answer.outcome is Outcome.REFUSED:
                why = f"no signal was sent: {answer.detail}"[:400]
                return Known(ReplyView(request_id=request_id, outcome=ReplyOutcome.CANNOT.value, step=None, why=why))
            asked = Attempt(
                job_id=job.job_id,
                number=job.attempt_number,
                name=order.attempt or job.current_attempt,
                submitted_at=job.attempt_started_at,
            )
            newest = next(
                (
                    view
                    for view in self.checkpoints(job, [asked]).value
                    if view.saved_at >= order.issued_at and not view.problems and not view.fenced
                ),
                None,
            )
        except RecoveryError as err:
            return Unknown(f"whether the signal was handled is not known: {err}"[:200])
        if newest is None:
            return Known(None)
        text = f"a new complete checkpoint lies at {newest.root}"
        return Known(
            ReplyView(request_id=request_id, outcome=ReplyOutcome.SAVED.value, step=newest.step, why=text[:400])
        )

    # ---- the other one's -------------------------------------------------------------------------------------------

    def heartbeat(self, job: Job, attempt: AttemptView) -> AttemptView:
        return self._inner.heartbeat(job, attempt)

    def heartbeat_times(self, job: Job) -> Mapping[str, datetime]:
        return self._inner.heartbeat_times(job)

    def checkpoints(
        self, job: Job, attempts: Sequence[Attempt], *, near: Sequence[int] = ()
    ) -> Known[tuple[CheckpointView, ...]]:
        attempts = (*attempts, *unheard_starts(attempts))
        return self._inner.checkpoints(self._kept(job) if job.checkpoints else job, attempts, near=near)

    def quarantine(self, job: Job, action: QuarantineCheckpoint, *, by: str, now: datetime) -> ActionResult:
        return self._inner.quarantine(self._kept(job), action, by=by, now=now)

    def reports(self, job: Job, attempt: str, kind: ReportKind, *, life: int = 0) -> Maybe[tuple[RankReport, ...]]:
        return self._inner.reports(job, attempt, kind, life=life)

    def fence(self, job: Job, *, attempt: str, number: int, superseded: Sequence[str], now: datetime) -> None:
        self._inner.fence(job, attempt=attempt, number=number, superseded=superseded, now=now)

    def plan(self, job: Job, attempt: str, order: AttemptOrder, *, now: datetime) -> None:
        self._inner.plan(job, attempt, order, now=now)

    def _kept(self, job: Job) -> Job:
        """With the place of its marks, for a Job on Slurm without a mailbox."""
        if job.mailbox or job.platform != SLURM.name:
            return job
        return replace(job, mailbox=f"s3://{self._bucket}/{relay_prefix(job.cluster, job.job_id)}")


def _cannot_be_asked(job: Job, doc: AttemptDoc) -> str:
    """Why no signal is sent; empty where one is."""
    if doc.signal is None:
        return "the run has no mailbox, and its script is not known to trap a signal"
    if doc.signal not in _SIGNALS:
        return f"its script traps SIG{doc.signal[:16]}, which is none of {', '.join(sorted(_SIGNALS))}"
    if not job.checkpoints:
        return "where its checkpoints appear is not known, so that none could be an answer"
    if doc.state not in (SlurmState.RUNNING, SlurmState.SUSPENDED):
        return f"it is {status_of(doc.state)}, so no process would receive a signal"
    if doc.is_ready is False:
        return "its processes do not trap the signal yet: it would be lost, or kill them"
    return ""


def _token(request_id: str) -> str:
    return f"signal.{request_id}"[:128]


def unheard_starts(attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """Earlier starts of the same Slurm jobs that no event named, as while the agent was away: what they saved is the
    run's, up to when the first start that is known was submitted.

    None before a start that was ordered to resume somewhere: what lies beyond was left on purpose.
    """
    first: dict[tuple[str, str], tuple[int, Attempt]] = {}
    for attempt in attempts:
        if is_slurm(attempt.name):
            parts = parse_attempt(attempt.name)
            known = first.get((parts.cluster, parts.base))
            if known is None or parts.restart < known[0]:
                first[parts.cluster, parts.base] = parts.restart, attempt
    return tuple(
        Attempt(
            job_id=known.job_id,
            number=known.number,
            name=parse_attempt(known.name).restarted(restart).name,
            submitted_at=known.submitted_at,
            superseded_at=known.submitted_at,
        )
        for count, known in first.values()
        if not isinstance(known.resume_step, Known)
        for restart in range(max(count - MAX_UNHEARD, 0), count)
    )
