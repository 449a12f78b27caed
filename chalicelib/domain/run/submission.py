"""How a Slurm job is started again: requeued, or resubmitted, whichever keeps more of the run. Pure.

A requeue keeps the job's id, so jobs that depend on it and people who watch it still find it, and its log file; its
time in the queue begins anew (SubmitTime, AccrueTime). But a requeued job has the environment of its submission, so
that only a message in its mailbox can tell it where to resume; Slurm must still know it, and must be allowed to requeue
it (`Requeue=1`).
Source: scontrol, requeue and requeuehold; slurm.conf, MinJobAge and JobRequeue; tried on Slurm 22.05.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import CheckpointView
from chalicelib.domain.model.start_view import StartView, Submission
from chalicelib.domain.resume.resume_point import ResumePoint
from rekindle.protocol.cluster.names import SlurmAttempt, parse_attempt
from rekindle.protocol.cluster.orders import MAX_NODES
from rekindle.protocol.wire import MailboxError

_OURS: Final = re.compile(r"-a[0-9]+(x[0-9]+)?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How to start it again and why; `how` is None where only a person can."""

    how: Submission | None
    rule: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a row judges. `needs_plan`: the new start must resume elsewhere than its script would without a plan."""

    start: StartView
    needs_plan: bool
    requeue_refused: bool = False

    @property
    def can_submit(self) -> bool:
        """A submission would be the same job."""
        return self.start.has_spec and not self.start.cannot_resubmit


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionRow:
    """One reason. `applies` and `how` are data in the table below; the first row that applies speaks."""

    rule: str
    applies: Callable[[Case], bool]
    how: Submission | None
    why: str
    source: str


def _requeueable(case: Case) -> bool:
    return case.start.is_known and case.start.is_requeueable and not case.requeue_refused


ROWS: Final[tuple[SubmissionRow, ...]] = (
    SubmissionRow(
        rule="submission.no_way",
        applies=lambda case: not _requeueable(case) and not case.can_submit,
        how=None,
        why="{cannot_requeue}, and a new submission would not be faithful: {cannot_submit}",
        source="what is kept of a job is written at its registration (docs/hyperpod-slurm.md)",
    ),
    SubmissionRow(
        rule="submission.forgotten",
        applies=lambda case: not case.start.is_known,
        how=Submission.SUBMIT,
        why="submitted again: slurmctld no longer knows job {job}, so it cannot be requeued",
        source="slurm.conf, MinJobAge: an ended job is purged after 300 s",
    ),
    SubmissionRow(
        rule="submission.not_requeueable",
        applies=lambda case: not case.start.is_requeueable,
        how=Submission.SUBMIT,
        why="submitted again: job {job} may not be requeued (--no-requeue or JobRequeue=0)",
        source="sbatch, --no-requeue; `scontrol requeue` refuses such a job",
    ),
    SubmissionRow(
        rule="submission.requeue_refused",
        applies=lambda case: case.requeue_refused,
        how=Submission.SUBMIT,
        why="submitted again: Slurm refused to requeue job {job}",
        source="tried on Slurm 22.05",
    ),
    SubmissionRow(
        rule="submission.needs_plan",
        applies=lambda case: case.needs_plan and not case.start.has_mailbox and case.can_submit,
        how=Submission.SUBMIT,
        why="submitted again: it needs its resume point, and without a mailbox only a new environment can carry that",
        source="sbatch: a requeued job runs with the environment of its submission",
    ),
    SubmissionRow(
        rule="submission.cannot_be_told",
        applies=lambda case: case.needs_plan and not case.start.has_mailbox,
        how=None,
        why="it needs its resume point; it has no mailbox, so only a new submission's environment could carry that, "
        "and that would not be faithful: {cannot_submit}",
        source="sbatch: a requeued job runs with the environment of its submission",
    ),
    SubmissionRow(
        rule="submission.requeue",
        applies=lambda _: True,
        how=Submission.REQUEUE,
        why="requeued: job {job} keeps its id{dependents} and, where it is appended to, its log; its time in the queue "
        "begins anew",
        source="scontrol, requeue: the same job id; tried on Slurm 22.05",
    ),
)


def choose(case: Case) -> Choice:
    """Total: the last row always applies."""
    row = next(row for row in ROWS if row.applies(case))
    count = case.start.dependents
    words = {
        "job": case.start.handle,
        "dependents": f" for the {count} job{'s' if count > 1 else ''} that wait for it" if count else "",
        "cannot_requeue": _cannot_requeue(case),
        "cannot_submit": "; ".join(case.start.cannot_resubmit)[:300] or "its script was not kept",
    }
    return Choice(how=row.how, rule=row.rule, why=row.why.format(**words))


def _cannot_requeue(case: Case) -> str:
    job = case.start.handle
    if not case.start.is_known:
        return f"slurmctld no longer knows job {job}"
    if not case.start.is_requeueable:
        return f"job {job} may not be requeued (--no-requeue or JobRequeue=0)"
    return f"Slurm refused to requeue job {job}"


def needs_plan(incident: Incident, point: ResumePoint | None, checkpoints: tuple[CheckpointView, ...] = ()) -> bool:
    """Whether the script must not resume from the newest checkpoint that it finds, its default.

    Before the resume point is known (`point` None) as far as the Incident alone tells.
    """
    order = incident.order or {}
    if incident.loss.skips or incident.is_poisoned or incident.resubmission.excluded_checkpoints:
        return True
    if isinstance(order.get("from_step"), int) and not incident.resubmission.tries:
        return True
    if point is None or not isinstance(point.step, Known):
        return False
    return point.goes_back or any(item.step > point.step.value for item in checkpoints)


def holds_at_stop(start: StartView | None, incident: Incident) -> bool:
    """The stop shall leave the job in its queue, held, because it will be requeued. One that has not begun is
    cancelled: holding it would not end this start.
    """
    if start is None or start.is_queued:
        return False
    case = Case(start=start, needs_plan=needs_plan(incident, None))
    return choose(case).how is Submission.REQUEUE


def requeued_name(attempt: str, start: StartView) -> str:
    """The name of the next start of the same submission."""
    return parse_attempt(attempt).restarted(start.restart + 1).name


def submitted_name(job_id: str | None, attempt: str, number: int, salt: int) -> str:
    """The name of a new submission, made from the Job's first; `salt` counts names found taken by others."""
    first = _parsed(job_id) or parse_attempt(attempt)
    base = _OURS.sub("", first.base)
    suffix = f"-a{number}" + (f"x{salt}" if salt else "")
    return SlurmAttempt(cluster=first.cluster, base=base + suffix).name


def _parsed(job_id: str | None) -> SlurmAttempt | None:
    try:
        return parse_attempt(job_id or "")
    except MailboxError:
        return None


def excludable(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """As many as an order may name."""
    return nodes[:MAX_NODES]
