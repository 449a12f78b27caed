"""From what Slurm shows to an `AttemptDoc`: one start of one job. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from rekindle.protocol.cluster.documents import AttemptDoc, EndedBy, SlurmState
from rekindle.protocol.cluster.names import SlurmAttempt, first_attempt, parse_attempt
from rekindle.protocol.cluster.orders import check_node
from rekindle.protocol.run_places import RunPlaces
from rekindle.protocol.wire import MAX_TEXT_CHARS, WIRE_VERSION, MailboxError
from rekindle.slurm_agent.base.ports import News, NewsType
from rekindle.slurm_agent.reading import text
from rekindle.slurm_agent.reading.comment import Comment
from rekindle.slurm_agent.reading.jobs import ENDED, Job, dependencies
from rekindle.slurm_agent.reading.options import expand
from rekindle.slurm_agent.reading.run import Unreadable
from rekindle.slurm_agent.reading.sizes import asked_min, fewest_nodes, gpus_in

# States in which a start's nodes and times are its own, and not Slurm's estimate.
STARTED: Final = frozenset(
    {SlurmState.RUNNING, SlurmState.SUSPENDED, SlurmState.COMPLETING, SlurmState.STOPPED, SlurmState.CONFIGURING}
)
# Reasons of a CANCELLED job that slurmctld itself cancelled. Source: slurm src/common/job_state_reason.c.
_BY_SLURM: Final = ("DependencyNeverSatisfied", "ReservationDeleted", "InactiveLimit", "DeadLine", "SystemFailure")


def base_of(cluster: str, job: Job, asked: Comment | None, taken: Collection[str] = ()) -> SlurmAttempt:
    """The name of the job's first start: what its comment says, if that is no other job's, else its own id."""
    own = first_attempt(cluster, job.job)
    if asked is None or asked.attempt is None:
        return own
    given = parse_attempt(asked.attempt).restarted(0)
    is_foreign = given.base.isdigit() and given.base != own.base
    if given.cluster != cluster or is_foreign or given.name in taken:
        return own
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob:
    """A job, as squeue and (where it was asked) scontrol show it, with what is known about its script."""

    job: Job
    base: SlurmAttempt
    asked: Comment
    detail: Mapping[str, str]
    has_auto_resume: bool | None = None
    spec: str | None = None
    cannot: tuple[str, ...] = ()
    places: RunPlaces | None = None
    dependents: tuple[int, ...] = ()
    is_ready: bool | None = None

    @property
    def restart(self) -> int:
        """Which start the record is about: while the one before is being taken down, that one."""
        return self.job.restart - 1 if self.job.is_taken_down else self.job.restart

    @property
    def attempt(self) -> SlurmAttempt:
        return self.base.restarted(self.restart)


def doc_of(cluster: str, shown: ShownJob, now: datetime) -> AttemptDoc:
    """The start as it is now. What its past says about it (`began`) is added by `watch`. Raises: Unreadable."""
    job, detail = shown.job, shown.detail
    has_ended = job.state in ENDED
    is_its_own = has_ended or job.state in STARTED
    code, number = text.exit_status(detail.get("ExitCode")) if has_ended else (None, None)
    stdout = expand(job.stdout, job)
    return AttemptDoc(
        attempt=shown.attempt.name,
        cluster=cluster,
        slurm_job=job.job,
        restart=shown.restart,
        state=job.state,
        seen_at=now,
        name=clip(job.name),
        job_id=shown.asked.job,
        policy=shown.asked.policy,
        user=clip(job.user, 255),
        partition=clip(job.partition, 255),
        reason=clip(job.reason),
        nodes=valid_nodes(job.nodes()) if is_its_own else (),
        node_count=min(_count(job, detail), 10**6),
        min_nodes=asked_min(shown.asked),
        gpu_count=gpus_in(detail),
        submitted_at=job.submitted,
        started_at=job.started if is_its_own else None,
        ended_at=job.ends if has_ended else None,
        exit_code=code,
        exit_signal=number,
        ended_by=ended_by(job) if has_ended else EndedBy.UNKNOWN,
        detail=clip(" ".join(shown.asked.problems)),
        held=job.is_held,
        is_requeueable=job.may_requeue and job.is_batch,
        has_auto_resume=shown.has_auto_resume,
        time_limit_s=job.limit_s,
        exclude=valid_nodes(_hosts(detail.get("ExcNodeList"))),
        mailbox=shown.asked.mailbox if len(shown.asked.mailbox) <= 2048 else "",
        checkpoints=shown.asked.checkpoints if len(shown.asked.checkpoints) <= 2048 else "",
        places=shown.places,
        stdout=stdout if len(stdout) <= 4096 else "",
        signal=shown.asked.signal,
        is_ready=shown.is_ready if job.state is SlurmState.RUNNING else None,
        spec=shown.spec,
        cannot_resubmit=shown.cannot,
        dependents=shown.dependents,
    )


def _count(job: Job, detail: Mapping[str, str]) -> int:
    asked = fewest_nodes(detail) if job.state is SlurmState.PENDING else None
    return job.node_count if asked is None else asked


def ended_by(job: Job) -> EndedBy:
    """Who ended it, as far as Slurm's own record says. An order of ours is known from the journal, not here."""
    match job.state:
        case SlurmState.COMPLETED | SlurmState.FAILED | SlurmState.OUT_OF_MEMORY:
            return EndedBy.ITSELF
        case (
            SlurmState.TIMEOUT
            | SlurmState.NODE_FAIL
            | SlurmState.PREEMPTED
            | SlurmState.BOOT_FAIL
            | SlurmState.DEADLINE
            | SlurmState.REVOKED
        ):
            return EndedBy.SLURM
        case SlurmState.CANCELLED:
            return EndedBy.SLURM if job.reason.startswith(_BY_SLURM) else EndedBy.USER
    return EndedBy.UNKNOWN


def cancelled(doc: AttemptDoc, uid: int | None, slurm_uid: int | None) -> AttemptDoc:
    """The document of a start that was cancelled, with who did: root and Slurm's own user are not its owner.

    HyperPod's hung-job detection and other recovery layers cancel as root; an owner's own retry logic does not, unless
    the job is root's own.
    """
    is_owner = uid == 0 and doc.user == "root"
    by = EndedBy.ADMIN if uid is not None and uid in (0, slurm_uid) and not is_owner else EndedBy.USER
    return replace(doc, cancelled_by=uid, ended_by=by)


def waiting_for(jobs: Iterable[Job]) -> dict[int, list[int]]:
    """For each job that another names in its dependency, the pending jobs that do."""
    found: dict[int, list[int]] = {}
    for job in sorted(jobs, key=lambda job: job.job):
        if job.state is SlurmState.PENDING and job.dependency:
            for number in {number for _, number, _ in dependencies(job.dependency) if number}:
                found.setdefault(number, []).append(job.job)
    return found


def valid_nodes(names: Iterable[str]) -> tuple[str, ...]:
    """Those that can be nodes' names: a document with any other is refused by its reader."""
    found = []
    for name in names:
        try:
            found.append(check_node(name))
        except MailboxError:
            continue
    return tuple(found[:10_000])


def _hosts(written: str | None) -> tuple[str, ...]:
    try:
        return text.hosts(written)
    except Unreadable:
        return ()


def clip(found: str, limit: int = MAX_TEXT_CHARS) -> str:
    """At most that many characters."""
    return found if len(found) <= limit else found[: limit - 1] + "…"


def job_news(doc: AttemptDoc, at: datetime) -> News:
    """How a start stands, for the bus."""
    detail: dict[str, Any] = {"v": WIRE_VERSION} | doc.to_wire() | {"at": at.isoformat()}
    return News(type=NewsType.JOB, at=at, detail=detail)
