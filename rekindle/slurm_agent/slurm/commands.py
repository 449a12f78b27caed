"""Slurm's commands, as the orders need them: those about jobs; about nodes, see `node_commands`."""

from __future__ import annotations

import logging
import pwd
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from rekindle.protocol.cluster.documents import AttemptDoc, JobSpec, SlurmState
from rekindle.protocol.cluster.orders import MAX_NODE_COUNT, MAX_SLURM_JOB, Order, Sibling, Signal, Verb
from rekindle.protocol.cluster.queue_place import QueueLoss
from rekindle.protocol.cluster.same_job import why_different
from rekindle.slurm_agent.base.ports import (
    NotProtected,
    OwnActions,
    QueuePlace,
    Repointed,
    Size,
    SlurmError,
    SlurmRefused,
    SlurmUnavailable,
    UnknownJob,
)
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.copies.rehearsal import Rehearsals
from rekindle.slurm_agent.copies.script_file import never_ran_as
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.files.workers import Hangs
from rekindle.slurm_agent.privileged.changes import Change, ChangeKind
from rekindle.slurm_agent.privileged.gate import Gate
from rekindle.slurm_agent.privileged.remote import RemoteCaptures, RemoteCopies, RemoteGate, RemoteNodeMap
from rekindle.slurm_agent.privileged.submissions import Captures, Copies
from rekindle.slurm_agent.reading import comment, text
from rekindle.slurm_agent.reading.jobs import HELD_BY_ADMIN, Job
from rekindle.slurm_agent.reading.nodemap import NodeMap
from rekindle.slurm_agent.reading.script import read as read_script
from rekindle.slurm_agent.reading.sizes import cpus_for, fewest_nodes
from rekindle.slurm_agent.slurm.node_commands import NodeCommands, node_name
from rekindle.slurm_agent.slurm.pending_jobs import repoint, why_not_without
from rekindle.slurm_agent.slurm.queue_place import losses, noted_priority, noting, place_of, what_to_restore
from rekindle.slurm_agent.slurm.siblings import Siblings
from rekindle.slurm_agent.watching import history
from rekindle.slurm_agent.watching.attempt_docs import ShownJob, base_of
from rekindle.slurm_agent.watching.owners import Owners
from rekindle.slurm_agent.watching.signal_readiness import is_ready
from rekindle.slurm_agent.watching.watcher import Watch

log = logging.getLogger(__name__)

_SETTLES: Final = timedelta(seconds=2)


class Commands(NodeCommands):
    """Commands. Each is one argument list with a time limit, and raises SlurmError; none retries.

    Reads ask slurmctld, never a cache. Each command that changes something inherits `AgentContext.guard_fd`, so that an
    agent that is started again can tell that none of its forerunner's still runs. `deliver` brings a job's run its plan
    before it is started again, and raises SlurmUnavailable where it cannot.
    """

    def __init__(
        self,
        *,
        cluster: str,
        reads: CopyReads,
        gate: Gate | RemoteGate,
        node_map: NodeMap | RemoteNodeMap,
        watch: Watch,
        now: Callable[[], datetime],
        owners: Owners,
        was_taken_out: Callable[[Job], None] = lambda _: None,
        deliver: Callable[[int], None] = lambda _: None,
        files: UserFiles,
        captures: Captures | RemoteCaptures,
        copies: Copies | RemoteCopies,
    ) -> None:
        super().__init__(reads, gate, node_map)
        self._files = files
        self._siblings = Siblings(
            cluster=cluster,
            reads=reads,
            watch=watch,
            owners=owners,
            files=files,
            state=captures.state,
        )
        self._copies = copies
        self._rehearsals = Rehearsals(jobs=watch.followed, spec=watch.spec, would_take=self._rehearse, now=now)
        self._deliver = deliver
        self._cluster = cluster
        self._watch = watch
        self._now = now
        self._owners = owners
        self._was_taken_out = was_taken_out

    def job(self, slurm_job: int) -> AttemptDoc | None:
        """The job's present start (after a requeue: the new one). None: slurmctld does not know the job (any more).

        Raises: NotProtected for a job that is none of ours.
        """
        job = self._reads.job(_job(slurm_job))
        return None if job is None else self._doc(job)

    def _doc(self, job: Job) -> AttemptDoc | None:
        asked = self._own(job)
        if asked is None:
            raise NotProtected(f"job {job.job} is not protected by Rekindle")
        try:
            detail = self._reads.detail(job)
        except UnknownJob:
            return None
        if comment.says_out(detail):  # an administrator's word of this moment, which no look has seen yet
            self._was_taken_out(job)
            raise NotProtected(f"job {job.job} was taken out of Rekindle's protection")
        shown = ShownJob(job=job, base=base_of(self._cluster, job, asked), asked=asked, detail=detail)
        if job.state is SlurmState.RUNNING:
            steps = self._reads.steps().get(job.step_key, 0)
            shown = replace(shown, is_ready=self._is_ready(shown, steps))
        return history.now_of(self._cluster, shown, None, OwnActions(), self._now())

    def _is_ready(self, shown: ShownJob, steps: int) -> bool | None:
        try:
            return is_ready(shown, steps, self._files)
        except Hangs:  # the watcher tells it
            return None

    def start(self, attempt: str) -> AttemptDoc | None:
        """What this agent, or one before it, has written down of a start; None: nothing. It tells whose job it was,
        and when it was submitted. Raises: SlurmUnavailable where that is unknown now."""
        return self._watch.start(attempt)

    def _own(self, job: Job) -> comment.Comment | None:
        """What the job says of itself, as far as that is its user's to say. Raises: SlurmUnavailable."""
        asked = self._watch.asked(job)
        return None if asked is None else self._owners.own(asked, job)

    def steps(self, slurm_job: int) -> int:
        """How many steps of the job run, batch and extern not counted; 0 for one that is not known. A batch shell that
        catches the signal, by the job's comment, is one."""
        job = self._reads.job(_job(slurm_job))
        if job is None or job.state is not SlurmState.RUNNING:
            return 0
        asked = self._watch.asked(job)
        return self._reads.steps().get(job.step_key, 0) or int(asked is not None and asked.signal_batch)

    def find_by_attempt(self, attempt: str) -> AttemptDoc | None:
        """The job whose comment carries `attempt=<attempt>`, whatever its state and restart count; None: none known."""
        for job in sorted(self._reads.jobs(), key=lambda job: job.job):
            asked = self._watch.asked(job)
            if asked is None or asked.attempt != attempt or job.is_lump:
                continue
            if self._owners.own(asked, job).attempt == attempt:  # a comment of another user's job may name it, too
                return self._doc(job)
        return None

    def sibling(self, old: AttemptDoc, *, besides: Collection[int]) -> Sibling | None:
        """Another start of the run, of the same user, that has nodes or will get them without us; `besides` are none.

        Raises: SlurmUnavailable where that is unknown now.
        """
        return self._siblings.find(old, besides=besides)

    def is_held_by_admin(self, slurm_job: int) -> bool:
        """An administrator holds the pending job, also where we had held it before: only he may let it go.

        Raises: SlurmError where slurmctld does not tell who holds it.
        """
        return self._reads.why_waiting(_job(slurm_job)) == HELD_BY_ADMIN

    def waiting(self) -> tuple[AttemptDoc, ...]:
        """The protected jobs that wait held, by us or by others."""
        found = []
        for job in sorted(self._reads.jobs(), key=lambda job: job.job):
            if not job.is_held or job.is_lump:
                continue
            try:
                doc = self._doc(job)
            except NotProtected:
                continue
            if doc is not None:
                found.append(doc)
        return tuple(found)

    def held_unprotected(self) -> tuple[int, ...]:
        """The jobs that want no protection any more and wait because we hold them."""
        return self._watch.held_unprotected()

    def late_copies(self) -> tuple[int, ...]:
        """Copies that wait beside the one that an order was answered with: slurmctld made them late."""
        return self._watch.late_copies()

    def refusals_of_copies(self) -> tuple[str, ...]:
        """What would be refused of copies of the jobs that are followed, one line each; asked of sbatch one by one."""
        return self._rehearsals.lines()

    # ---- jobs

    def note(self, slurm_job: int, order: Order, did: Verb | None = None) -> None:
        """Write what is done to the job (the order's verb; `HOLD` while we hold it), and for which Incident, where
        sacct shows it. Not over another's words, and of no effect on the order: raises nothing."""
        try:
            job = self._known(slurm_job)
            asked = self._own(job)
            if asked is None:
                return
            shown = self._reads.detail(job)
            noted = text.value(shown.get("AdminComment"))
            if not noted or comment.parse(noted) is not None:
                verb = did or order.verb
                before = place_of(shown).priority or noted_priority(noted) if verb is Verb.HOLD else None
                noted = comment.text_of(noting(asked, order, verb, before))
                self._job_change(ChangeKind.NOTE, slurm_job, text=noted)
        except SlurmError as err:
            log.info("slurm_job=%d not_noted=%s", slurm_job, err)

    def signal(self, slurm_job: int, signal: Signal) -> None:
        """scancel --signal, to the steps; to the batch shell where only that catches it. Never to both: a step would
        get it twice from a shell that passes it on."""
        is_batch = self._is_for_the_shell(_job(slurm_job), signal)
        self._job_change(ChangeKind.SIGNAL, slurm_job, signal=signal, is_batch=is_batch)

    def _is_for_the_shell(self, slurm_job: int, signal: Signal) -> bool:
        job = self._reads.job(slurm_job)
        asked = self._watch.asked(job) if job is not None else None
        if asked is not None and asked.signal == signal.value:
            return asked.signal_batch
        try:
            facts = read_script(self._reads.script(slurm_job))
        except SlurmError:
            return False
        return facts.warned_batch and signal.value in facts.traps

    def _job_change(self, kind: ChangeKind, slurm_job: int, **how: Any) -> None:
        self._gate.make(Change(kind=kind, job=_job(slurm_job), **how))

    def check(self, order: Order) -> None:
        """Before the first command of an order. Raises: BarredHere where an administrator does not allow it here."""
        self._gate.check(order)

    def barred_here(self) -> tuple[str, ...]:
        """What an administrator does not allow as a whole, one line each, for people."""
        return self._gate.problems()

    def cancel(self, slurm_job: int) -> None:
        self._job_change(ChangeKind.CANCEL, slurm_job)

    def hold(self, slurm_job: int) -> None:
        """scontrol uhold: a pending job. Its user's hold, as requeuehold's is: an administrator's differs from it."""
        self._job_change(ChangeKind.HOLD, slurm_job)

    def requeue_hold(self, slurm_job: int) -> None:
        """scontrol requeuehold: of a running job, or of one that has ended and is still known."""
        self._job_change(ChangeKind.REQUEUE_HELD, slurm_job)

    def release(self, slurm_job: int) -> None:
        self._deliver(_job(slurm_job))
        self._job_change(ChangeKind.RELEASE, slurm_job)

    def queue_place(self, slurm_job: int) -> QueuePlace:
        """Of a job that waits held because of us: with the priority that it had before."""
        shown = self._reads.detail(self._known(slurm_job))
        place = place_of(shown)
        return replace(place, priority=place.priority or noted_priority(text.value(shown.get("AdminComment"))))

    def restore_place(self, slurm_job: int, before: QueuePlace) -> tuple[QueueLoss, ...]:
        """Give a start as much of its place again as Slurm lets an operator give; what it has lost. A priority that age
        and fairshare explain is left to Slurm."""
        job = self._known(slurm_job)
        now, moves = place_of(self._reads.detail(job)), self._watch.current_settings().priority_moves
        changes = [*what_to_restore(before, now, moves)]
        for change in changes if job.state is SlurmState.PENDING else ():
            with suppress(SlurmRefused):
                self._job_change(ChangeKind.PLACE, slurm_job, **change)
        if changes:
            now = place_of(self._reads.detail(self._known(slurm_job)))
        return tuple(losses(before, now))

    def release_unprotected(self, slurm_job: int) -> None:
        """scontrol release of one that is not ours any more."""
        self._job_change(ChangeKind.RELEASE, slurm_job)

    def cancel_copy(self, slurm_job: int) -> None:
        """scancel of a copy of ours that waits and has never run; of no other job."""
        job = self._reads.job(_job(slurm_job))
        if job is not None and never_ran_as(job) is not None and job.state is SlurmState.PENDING:
            self._job_change(ChangeKind.CANCEL_WAITING, slurm_job)

    def start_now(self, slurm_job: int) -> None:
        """scontrol update starttime=now: a requeued job need not wait cred_expire+1 s. Not in the second in which it
        was put back: its nodes would still take it for the start that was ended, and fail it (seen on 24.11: "Job
        credential revoked")."""
        job = self._reads.job(_job(slurm_job))
        is_fresh = job is not None and job.submitted is not None and abs(self._now() - job.submitted) < _SETTLES
        self._job_change(ChangeKind.START, slurm_job, after_s=_SETTLES.seconds if is_fresh else 0)

    def exclude(self, slurm_job: int, nodes: Collection[str]) -> None:
        """scontrol update excnodelist: of a pending job; none lifts it. Names that are nodes no more are left out."""
        names = [node_name(name) for name in nodes]
        there = {node.name for node in self._reads.nodes()} if names else set()  # Slurm refuses a list with any other
        self._job_change(ChangeKind.EXCLUDE, slurm_job, nodes=tuple(name for name in names if name in there))

    def _known(self, slurm_job: int) -> Job:
        """Raises: UnknownJob."""
        job = self._reads.job(_job(slurm_job))
        if job is None:
            raise UnknownJob(f"slurmctld does not know job {slurm_job}")
        return job

    def needs_one_of(self, slurm_job: int, nodes: Collection[str]) -> str:
        """Why a pending job could never start without those nodes; "" where nothing says so. slurmctld takes such a
        list, and the job waits for ever (BadConstraints)."""
        if not nodes:
            return ""
        return why_not_without(self._reads.detail(self._known(slurm_job)), self._reads.nodes(), nodes)

    def size(self, slurm_job: int) -> Size:
        """Of a pending job."""
        job = self._known(slurm_job)
        detail = self._reads.detail(job)
        return Size(low=fewest_nodes(detail) or job.node_count, fixed=self._copies.fixed(job, detail))

    def resize(self, slurm_job: int, low: int, high: int) -> None:
        """scontrol update numnodes: of a pending job."""
        if not 0 < low <= high <= MAX_NODE_COUNT:
            raise SlurmRefused(f"{low} to {high} is no number of nodes")
        job = self._known(slurm_job)
        cpus = cpus_for(self._reads.detail(job), low)
        self._job_change(ChangeKind.RESIZE, slurm_job, low=low, high=high, cpus=cpus)

    def submit(self, spec: JobSpec, order: Order) -> int:
        """sbatch of the spec, held, as its user, with the order's environment, excluded nodes and comment; its id.

        The comment carries `attempt=<order.new_attempt>`: it is how a submission is found again.
        """
        self._check_user(spec, order)
        return self._copies.submit(spec, order, self._old(spec, order))

    def _rehearse(self, spec: JobSpec, order: Order) -> None:
        self._check_user(spec, order)
        self._copies.rehearse(spec, order, self._old(spec, order))

    def differences(self, slurm_job: int, spec: JobSpec, order: Order) -> tuple[str, ...]:
        """In what a copy that was submitted so is not the same job as its original; none: in nothing.

        Raises: SlurmUnavailable where slurmctld has lost the copy, whatever job has its number now.
        """
        copy = self._reads.job(_job(slurm_job))
        asked = self._own(copy) if copy is not None else None
        if copy is None or asked is None or (asked.attempt, copy.user) != (order.new_attempt, spec.user):
            raise SlurmUnavailable(f"slurmctld has lost job {slurm_job}, the copy, before it was released")
        return self._copies.differences(spec, order, copy)

    def other_secrets(self, slurm_job: int, spec: JobSpec, order: Order) -> tuple[str, ...]:
        """The variables that the spec leaves out and that have another value in the copy than in its original."""
        return self._copies.other_secrets(spec, order, _job(slurm_job))

    def _old(self, spec: JobSpec, order: Order) -> int | None:
        """The old job, if slurmctld still knows it: no other's secrets are handed over."""
        if not spec.left_out or order.slurm_job is None:
            return None
        old = self._reads.job(_job(order.slurm_job))
        if old is None or old.user != spec.user:
            return None
        known = self._watch.start(order.attempt) if order.attempt else None
        is_other = known and why_different(known, user=old.user, restart=old.restart, submitted_at=old.submitted)
        return None if is_other else old.job

    def _check_user(self, spec: JobSpec, order: Order) -> None:
        """Only as the user whose job the Job began with. Who can write the cluster state can write a spec of their
        own: for root, what the agent has seen with its own eyes counts, and nothing else."""
        assert order.attempt is not None, "orders.NEEDED"  # noqa: S101
        try:
            is_root = pwd.getpwnam(spec.user).pw_uid == 0
        except (KeyError, ValueError):  # the latter for a name that no file of users can hold
            is_root = False
        owner = self._owners.seen(order.attempt) if is_root else self._owners.of(order.attempt)
        if owner is None and is_root:
            raise SlurmRefused("sbatch: this agent has never seen root's job that it shall submit again")
        if owner != spec.user:
            raise SlurmRefused(f"sbatch: the spec is of user {spec.user!r}, the Job of {owner!r}"[:300])

    def repoint(self, slurm_job: int, new_job: int, *, others: bool) -> Repointed:
        return repoint(self._reads, self._gate, _job(slurm_job), _job(new_job), others=others)


def _job(slurm_job: int) -> int:
    if type(slurm_job) is not int or not 0 < slurm_job <= MAX_SLURM_JOB:
        raise SlurmRefused(f"{slurm_job!r} is no Slurm job's id")
    return slurm_job
