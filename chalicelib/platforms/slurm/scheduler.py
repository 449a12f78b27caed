"""Slurm jobs, by what their head node's agent writes down and by orders to it. Facts: docs/slurm.md.

Nothing here reaches Slurm. A stop or a start is an order that the agent takes when it can: until it has answered the
result is PENDING, and asking again sends the same order, because its token is made from what it is about.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from chalicelib.domain.faults.slurm_states import status_of
from chalicelib.domain.model.action import ActionResult, Done, ResubmitJob
from chalicelib.domain.model.errors import DependencyUnavailable, NotOurs
from chalicelib.domain.model.job import Job
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.start_view import STOP_VALID, Submission
from chalicelib.platforms.slurm.found import found_of
from chalicelib.platforms.slurm.platform import SLURM
from chalicelib.platforms.slurm.view import view_of
from chalicelib.ports.clock import Clock
from chalicelib.ports.platforms import DiscoveredJob, HeadNodes, Mailbox
from chalicelib.services.perform.cluster_orders import ANSWER_LATE, DONE, MAX_TRIES, give
from rekindle.protocol.cluster.documents import AttemptDoc, SlurmState
from rekindle.protocol.cluster.names import ENV_CLUSTER, ENV_SLURM_ATTEMPT, is_slurm, parse_attempt
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Standing, Verb
from rekindle.protocol.launch_orders import (
    ENV_INCIDENT,
    ENV_RESUME_MANIFEST,
    ENV_RESUME_STEP,
    ENV_RESUME_URI,
    AttemptOrder,
    ResumePlan,
    SkipWindow,
)
from rekindle.protocol.run_places import RunPlaces
from rekindle.protocol.wire import MailboxError, is_id

if TYPE_CHECKING:
    from chalicelib.domain.policy.document import Policy

# How long an order to start may wait for its agent (a stop: domain/model/start_view.py). One that is carried out later
# could meet a run that a person has started meanwhile; it is decided, and ordered, anew.
START_VALID: Final = timedelta(minutes=10)
OLD: Final = timedelta(seconds=60)  # what the cluster state shows; its agent tells of a new reading every 30 s
MAX_EARLIER_STARTS: Final = 16  # of a submission, in which its Job is looked for; each costs one read of a table
MAX_SIBLINGS: Final = 8  # starts of a cluster that were written of last; each costs two GETs
# What an earlier resubmission of ours left in the environment that the new one starts from, and must not speak again.
_STALE: Final = (ENV_RESUME_STEP, ENV_RESUME_URI, ENV_RESUME_MANIFEST, ENV_INCIDENT)

_GOES_ON: Final = {
    Standing.HAS_NODES: "another start of the same run, which has nodes",
    Standing.WILL_RUN: "another start of the same run, which Slurm will start by itself",
}


class SlurmScheduler:
    """ports.Scheduler for attempts on Slurm.

    `bucket` is the stack's own, where mailboxes on shared paths are copied to; `bus` is passed to new submissions.
    """

    def __init__(
        self, head_nodes: HeadNodes, mailbox: Mailbox, *, clock: Clock, bucket: str, bus: str | None = None
    ) -> None:
        self.platform: Final = SLURM
        self._head_nodes = head_nodes
        self._mailbox = mailbox
        self._clock = clock
        self._bucket = bucket
        self._bus = bus

    # ---- names -----------------------------------------------------------------------------------------------------

    def owns(self, attempt: str) -> bool:
        return is_slurm(attempt)

    def restarts_between(self, earlier: str, later: str) -> int | None:
        if not (is_slurm(earlier) and is_slurm(later)):
            return None
        before, after = parse_attempt(earlier), parse_attempt(later)
        if (before.cluster, before.base) != (after.cluster, after.base):
            return None
        return after.restart - before.restart

    def earlier_starts(self, attempt: str) -> tuple[str, ...]:
        if not is_slurm(attempt):
            return ()
        parts = parse_attempt(attempt)
        oldest = max(0, parts.restart - MAX_EARLIER_STARTS)
        return tuple(parts.restarted(number).name for number in reversed(range(oldest, parts.restart)))

    # ---- reading ---------------------------------------------------------------------------------------------------

    def describe(self, attempt: str) -> AttemptView:
        """See ports.Scheduler: 2 GETs, and those of its orders where what is shown is old.

        A start that we have ordered and that the cluster state does not show yet is STARTING, never gone: the agent
        answers an order before it has read Slurm again. For the same reason one that is shown as running, and whose
        stop has been carried out since Slurm was read, is STOPPING.
        """
        doc = self._head_nodes.attempt(attempt)
        if doc is not None:
            view = view_of(doc)
            if view.status is AttemptStatus.RUNNING and self._is_stopped_since(doc):
                detail = "its stop has been carried out; Slurm does not show it yet"
                return dataclasses.replace(view, status=AttemptStatus.STOPPING, detail=detail)
            return view
        cluster = parse_attempt(attempt).cluster
        order, answer = self._newest(cluster, _stem("start", attempt))
        if order is not None and self._is_on_its_way(order, answer):
            return AttemptView(
                name=attempt, status=AttemptStatus.STARTING, detail="ordered; Slurm does not show it yet"
            )
        return AttemptView(name=attempt, status=AttemptStatus.GONE, detail="Slurm does not know this start")

    def _is_stopped_since(self, doc: AttemptDoc) -> bool:
        """An order of ours has stopped it after `seen_at`. Not asked of what is new: then the next reading shows it."""
        if self._clock.now() - doc.seen_at <= OLD:
            return False
        for verb in (Verb.HOLD, Verb.CANCEL):
            _, answer = self._newest(doc.cluster, _stem(verb.value, doc.attempt))
            if answer is not None and answer.outcome is Outcome.DONE and answer.at > doc.seen_at:
                return True
        return False

    def _is_on_its_way(self, order: Order, answer: OrderResult | None) -> bool:
        now = self._clock.now()
        if answer is None:
            return now <= order.expires_at + ANSWER_LATE
        return answer.outcome in (Outcome.DONE, Outcome.ALREADY) and now <= answer.at + ANSWER_LATE

    def discover(self, attempt: str) -> DiscoveredJob | None:
        """See ports.Scheduler: the agent writes of jobs that ask for protection, and of no others.

        Raises:
            NotOurs: no agent of the cluster has ever written anything: the event is made up.
        """
        try:
            return self.find(attempt)
        except DependencyUnavailable:
            if parse_attempt(attempt).cluster not in self._head_nodes.clusters():
                raise NotOurs("no agent of this cluster has written anything") from None
            raise

    def find(self, attempt: str) -> DiscoveredJob | None:
        doc = self._head_nodes.attempt(attempt)
        if doc is None:
            return None
        agent = self._head_nodes.agent(doc.cluster)
        losses = agent.value.queue_losses if isinstance(agent, Known) else ()
        return found_of(doc, bucket=self._bucket, queue_losses=losses)

    # ---- stopping --------------------------------------------------------------------------------------------------

    def stop(self, attempt: str, *, hold: bool = False, incident_id: str | None = None) -> ActionResult:
        """See ports.Scheduler.

        A job that still waits in the queue is cancelled, held or not: holding it would not end this start. Slurm
        requeues a cancelled job as well as a held one, while it knows it.
        """
        doc = self._head_nodes.attempt(attempt)
        if doc is None:
            return _result("StopJob", Done.ALREADY, "Slurm does not know this start")
        status = status_of(doc.state)
        if status.has_ended or status is AttemptStatus.STOPPING:
            return _result("StopJob", Done.ALREADY, f"{attempt} is {doc.state}")
        verb = Verb.HOLD if hold and doc.state is not SlurmState.PENDING else Verb.CANCEL

        def make(token: str, now: datetime) -> Order:
            return Order(
                token=token,
                verb=verb,
                cluster=doc.cluster,
                issued_at=now,
                expires_at=now + STOP_VALID,
                attempt=attempt,
                slurm_job=doc.slurm_job,
                incident_id=incident_id,
            )

        return self._answered("StopJob", self._give(_stem(verb.value, attempt), make))

    def siblings(self, job: Job, *, besides: Collection[str], reported: Sequence[str] = ()) -> tuple[str, ...]:  # noqa: ARG002 - the cluster state holds what was reported
        """See ports.Scheduler: the newest starts in the cluster state whose comment names the Job, and those
        that have begun in its mailbox and whose comment names none.

        Runs of other Jobs in the same mailbox are links of a chain: services/observe/shared_mailbox.py.
        """
        cluster = parse_attempt(job.current_attempt).cluster
        ours = {parse_attempt(name).base for name in (job.current_attempt, *besides) if is_slurm(name)}
        own = self._head_nodes.attempt(job.current_attempt)
        places = places_of(own) if own is not None else RunPlaces.of(job.mailbox, job.checkpoints)
        found = []
        for name in self._head_nodes.newest_attempts(cluster, limit=MAX_SIBLINGS):
            if parse_attempt(name).base in ours:
                continue  # another start of the same Slurm job: its own documents tell of each other
            doc = self._head_nodes.attempt(name)
            if doc is not None and not doc.held and is_of(doc, job.job_id, places) and is_newer(doc, own):
                found.append(name)
        return tuple(found)

    def missed(self, job: Job, *, besides: Collection[str]) -> str | None:
        """See ports.Scheduler. Of what the cluster state still shows; the agent keeps what has ended for a day."""
        cluster, own = parse_attempt(job.current_attempt).cluster, self._head_nodes.attempt(job.current_attempt)
        ours = {parse_attempt(name).base for name in {*besides, job.current_attempt} if is_slurm(name)}
        places = places_of(own) if own is not None else RunPlaces.of(job.mailbox, job.checkpoints)
        for name in self._head_nodes.newest_attempts(cluster, limit=MAX_SIBLINGS):
            doc = self._head_nodes.attempt(name) if parse_attempt(name).base not in ours else None
            if doc is None or own is None or not status_of(doc.state).has_ended or not is_newer(doc, own):
                continue
            is_there = places_of(doc).is_shared_with(places)
            # A link of a chain that never began has trained nothing.
            if doc.job_id == job.job_id or (is_there and (doc.job_id is None or doc.started_at is not None)):
                return name
        return None

    # ---- starting --------------------------------------------------------------------------------------------------

    def resubmit(self, action: ResubmitJob, *, job: Job, policy: Policy, incident_id: str) -> ActionResult:
        """See ports.Scheduler. The plan is in the mailbox before anything can start that would read it."""
        there = self._head_nodes.attempt(action.name)
        if there is not None and not waits_for_us(there):
            if there.job_id not in (None, job.job_id):
                return _result("ResubmitJob", Done.NAME_TAKEN, f"{action.name} belongs to {there.job_id}")
            if there.state is SlurmState.PENDING:  # a person has released it: it still must be told where to resume
                order = self._attempt_order(action, there, job, incident_id)
                self._mailbox.plan(job, action.name, order, now=self._clock.now())
            _, answer = self._newest(there.cluster, _stem("start", action.name))
            result = _result("ResubmitJob", Done.ALREADY, f"{action.name} is {there.state}")
            return dataclasses.replace(result, queue_losses=answer.queue_losses if answer is not None else ())
        old = self._head_nodes.attempt(action.clone_of)
        if old is None:
            return _result("ResubmitJob", Done.REFUSED, f"the agent knows nothing of {action.clone_of} any more")
        if why := _cannot(old, action):
            return _result("ResubmitJob", Done.REFUSED, why)
        order = self._attempt_order(action, old, job, incident_id)
        try:
            environment = _environment(order, action.name, old.cluster) if action.how is Submission.SUBMIT else {}
        except MailboxError as err:
            return _result("ResubmitJob", Done.REFUSED, f"the new attempt cannot be given its resume step: {err}")
        self._mailbox.plan(job, action.name, order, now=self._clock.now())
        verb = Verb.SUBMIT if action.how is Submission.SUBMIT else Verb.REQUEUE
        whole = self._whole_again(old, job)

        def make(token: str, now: datetime) -> Order:
            return Order(
                token=token,
                verb=verb,
                cluster=old.cluster,
                issued_at=now,
                expires_at=now + START_VALID,
                attempt=action.clone_of,
                slurm_job=old.slurm_job,
                new_attempt=action.name,
                spec=old.spec if verb is Verb.SUBMIT else None,
                environment=environment,
                exclude=action.exclude,
                nodes_min=whole,
                nodes_max=whole,
                repoint_others=policy.resubmission.repoint_others,
                incident_id=incident_id,
            )

        return self._answered("ResubmitJob", self._give(_stem("start", action.name), make))

    def _whole_again(self, old: AttemptDoc, job: Job) -> int | None:
        """The number of nodes to ask for again, where the start before was made smaller than the first one was."""
        if old.min_nodes is None or job.job_id == old.attempt:
            return None
        first = self._head_nodes.attempt(job.job_id) if is_slurm(job.job_id) else None
        return first.node_count if first is not None and old.node_count < first.node_count else None

    def _attempt_order(self, action: ResubmitJob, old: AttemptDoc, job: Job, incident_id: str) -> AttemptOrder:
        """The resume plan for the run. Its mailbox is named as the run itself sees it, not by our copy of it."""
        return AttemptOrder(
            job_id=job.job_id,
            attempt_number=action.number,
            mailbox=old.mailbox or None,
            bus=self._bus,
            incident_id=incident_id,
            resume=ResumePlan(
                step=action.resume_step.value if isinstance(action.resume_step, Known) else None,
                uri=action.resume_root,
                manifest_uri=action.resume_manifest or None,
                skip=tuple(SkipWindow(from_step=item.from_step, to_step=item.to_step) for item in action.skips),
            ),
        )

    # ---- orders ----------------------------------------------------------------------------------------------------

    def _give(self, stem: str, make: Callable[[str, datetime], Order]) -> OrderResult | None:
        now = self._clock.now()
        return give(self._head_nodes, lambda turn: make(f"{stem}.{turn}", now), now=now)

    def _newest(self, cluster: str, stem: str) -> tuple[Order | None, OrderResult | None]:
        newest: tuple[Order | None, OrderResult | None] = (None, None)
        for turn in range(MAX_TRIES):
            found = self._head_nodes.ordered(cluster, f"{stem}.{turn}")
            if found[0] is None:
                break
            newest = found
        return newest

    def _answered(self, action: str, answer: OrderResult | None) -> ActionResult:
        if answer is None:
            return _result(action, Done.PENDING, "ordered; the agent has not answered yet")
        if answer.sibling is not None:
            detail = f"it goes on in job {answer.sibling.slurm_job}: {_GOES_ON[answer.sibling.standing]}"
            return ActionResult(action=action, done=Done.SIBLING, detail=detail, attempt=answer.sibling.attempt or "")
        job = f" (Slurm job {answer.slurm_job})" if answer.slurm_job else ""
        done = Done.HELD if answer.is_held_by_user else DONE[answer.outcome]
        result = _result(action, done, f"{answer.verb}{job}: {answer.detail or answer.outcome}")
        return dataclasses.replace(result, queue_losses=answer.queue_losses)


def _cannot(old: AttemptDoc, action: ResubmitJob) -> str:
    """Why the start cannot be ordered in the wanted way; empty where it can."""
    match action.how:
        case Submission.SUBMIT if old.spec is None:
            why = "; ".join(old.cannot_resubmit) or "its script could not be read"
            return f"{action.clone_of} cannot be submitted again: {why}"
        case Submission.REQUEUE if not old.is_known:
            return f"Slurm no longer knows job {old.slurm_job}, so it cannot be requeued"
        case Submission.CLONE:
            return "a Slurm job is requeued or submitted again, not cloned"
        case _:
            return ""


def _environment(order: AttemptOrder, name: str, cluster: str) -> dict[str, str]:
    """Raises: MailboxError for a value that does not fit.

    A submission starts from the environment that is kept of an earlier one: variables of ours that this order does not
    set are set to nothing.
    """
    env = order.to_env() | {ENV_SLURM_ATTEMPT: name, ENV_CLUSTER: cluster}
    return {name: "" for name in _STALE} | env


def _stem(what: str, attempt: str) -> str:
    """The prefix of a token. Deterministic: the same action on the same start is the same order."""
    stem = f"{what}.{attempt}"
    if is_id(stem) and len(stem) <= 120:
        return stem
    return f"{what}.{hashlib.sha256(attempt.encode()).hexdigest()[:40]}"


def _result(action: str, done: Done, detail: str) -> ActionResult:
    return ActionResult(action=action, done=done, detail=detail[:800])


def waits_for_us(doc: AttemptDoc) -> bool:
    """It is the queue's next start of the job, and is held until we let it go."""
    return doc.held and doc.state is SlurmState.PENDING


def is_newer(doc: AttemptDoc, own: AttemptDoc | None) -> bool:
    """Submitted after the Job's own newest; True where that is unknown."""
    if own is None or own.submitted_at is None or doc.submitted_at is None:
        return True
    return doc.submitted_at >= own.submitted_at


def places_of(doc: AttemptDoc) -> RunPlaces:
    """Where it trains: as its agent has resolved it, else as its script names it."""
    return doc.places or RunPlaces.of(doc.mailbox, doc.checkpoints)


def is_of(doc: AttemptDoc, job_id: str, places: RunPlaces) -> bool:
    """It lives, or has come to its end, and is the Job's by its comment; or trains where the Job's own script does."""
    status = status_of(doc.state)
    if doc.job_id is not None:
        return doc.job_id == job_id and (status is AttemptStatus.COMPLETED or not status.has_ended)
    if status.has_ended:
        return False
    has_begun = status is not AttemptStatus.STARTING
    return has_begun and places_of(doc).is_shared_with(places)
