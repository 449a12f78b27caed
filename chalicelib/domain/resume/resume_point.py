"""Where a new attempt resumes, and what it is called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from chalicelib.domain.faults.loss import marked_bad
from chalicelib.domain.model.evidence import FORENSIC, newest_before
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.job import Attempt
from chalicelib.domain.model.known import Known, Maybe, Unknown
from chalicelib.domain.model.observation import CheckpointView
from chalicelib.domain.resume.rollback import account_rollback, onset_to_precede, resumed_at_last, rewind_steps
from rekindle.protocol.signals import FaultClass

if TYPE_CHECKING:
    from chalicelib.domain.policy.document import Policy

# The narrowest of the platforms' rules. Source: botocore: [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}
MAX_NAME_CHARS = 63
NEWEST_STRETCHES = 4  # before each of which a resume point is looked for; every one costs a few reads
_ATTEMPT = re.compile(r".*-r(?P<number>[1-9][0-9]{0,5})(?:x(?P<salt>[1-9][0-9]{0,2}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The checkpoint to resume from. `root` is None where the trainer shall find its own (no manifest exists).

    `goes_back`: not the newest there is, on purpose. `key` is what the Incident calls it (`checkpoint_key`).
    """

    step: Maybe[int]
    root: str | None
    manifest: str | None
    rule: str
    text: str
    goes_back: bool = False
    key: str | None = None


def choose_resume_point(
    checkpoints: Sequence[CheckpointView], incident: Incident, policy: Policy
) -> ResumePoint | None:
    """The newest verified checkpoint that the fault allows.

    One that was saved while the loss could not be read is passed over for an earlier one, unless that throws away more
    than a start may without a person (`approvals.max_loss`).
    No manifest at all: the trainer's own habit decides, as it did for the first attempt; but not where it must resume
    before some step, because nothing tells what its own newest checkpoint holds. Then, and where there are manifests
    but none that may be used: None, because resuming from a bad one or from nothing is a person's choice.
    """
    if not checkpoints and _must_lie_before(incident):
        return None
    if not checkpoints:
        return ResumePoint(
            step=Unknown("no checkpoint manifest exists"),
            root=None,
            manifest=None,
            rule="resume.own_habit",
            text="as the job itself does: no checkpoint manifest exists",
        )
    limit, rule = _limit(incident, policy)
    fit = [item for item in checkpoints if _may_be_resumed(item, incident, limit)]
    is_ordered = rule == "resume.ordered"
    if not is_ordered and any(_is_whole(item) and _of_unknown_worth(item, incident) for item in checkpoints):
        # They may all be good. To go back behind them, to an older attempt's, could cost days: a person's choice.
        return None
    if not fit:
        return _own_habit_after_all(checkpoints, incident)
    newest = max(fit, key=_order)
    best = newest if is_ordered else _loss_read(fit, newest, policy.approvals.max_loss) or newest
    told = ""
    if best.loss_unread:
        told = "; its loss could not be read, so that whether its weights are finite is not known"
    elif best is not newest:
        told = f"; that of step {newest.step} was saved while the loss could not be read"
    return ResumePoint(
        step=Known(best.step),
        root=best.root,
        manifest=best.manifest or None,
        rule=rule,
        text=f"at step {best.step} from the verified {best.kind} checkpoint of {best.attempt}{told}",
        goes_back=limit is not None,
        key=checkpoint_key(best),
    )


def _order(item: CheckpointView) -> tuple[int, datetime]:
    return item.step, item.saved_at


def _loss_read(fit: Sequence[CheckpointView], newest: CheckpointView, most: timedelta) -> CheckpointView | None:
    """The newest whose loss was read, saved at most so long before `newest`; 0: however long."""
    near = (item for item in fit if not most or newest.saved_at - item.saved_at <= most)
    return max((item for item in near if not item.loss_unread), key=_order, default=None)


def _is_whole(item: CheckpointView) -> bool:
    return not item.problems and not item.fenced


def _may_be_resumed(item: CheckpointView, incident: Incident, limit: int | None) -> bool:
    """It is verified, not bad as far as is known, and of a step up to `limit`."""
    if not _is_whole(item) or item.kind == FORENSIC or _of_unknown_worth(item, incident):
        return False
    if checkpoint_key(item) in incident.resubmission.excluded_checkpoints or (limit is not None and item.step > limit):
        return False
    return not any(stretch.holds(item.attempt, item.step, item.life) for stretch in incident.loss.stretches)


def _limit(incident: Incident, policy: Policy) -> tuple[int | None, str]:
    limits: list[tuple[int, str]] = []
    order = incident.order or {}
    started = [item for item in incident.resubmission.tries if item.ended]
    if isinstance(order.get("from_step"), int) and not started:
        limits.append((int(order["from_step"]), "resume.ordered"))
    onset = onset_to_precede(incident)
    if incident.is_poisoned and isinstance(onset, Known):
        newest = newest_before(onset.value) if incident.loss.onset_fault is FaultClass.NON_FINITE else onset.value - 1
        limits.append((min(newest, onset.value - rewind_steps(incident, policy)), "resume.before_onset"))
        used = resumed_at_last(incident, policy)
        if used is not None:
            limits.append((used - 1, "resume.before_onset"))
    return min(limits) if limits else (None, "resume.newest")


def _own_habit_after_all(checkpoints: Sequence[CheckpointView], incident: Incident) -> ResumePoint | None:
    """Where no checkpoint has a manifest and all that were found are damaged, nothing more is known than with none.

    Not where one is out for another reason: quarantined, left behind, or one that has killed an attempt already. The
    trainer's own habit would take just that one.
    """
    is_blind = all(not item.manifest and item.problems and not item.fenced for item in checkpoints)
    is_ruled_out = any(
        problem.startswith(("quarantined", "abandoned")) for item in checkpoints for problem in item.problems
    )
    if not is_blind or is_ruled_out or incident.resubmission.excluded_checkpoints or _must_lie_before(incident):
        return None
    return ResumePoint(
        step=Unknown("no usable checkpoint was found"),
        root=None,
        manifest=None,
        rule="resume.own_habit",
        text="as the job itself does: no checkpoint has a manifest, and none that was found is whole",
    )


def left_in_doubt(checkpoints: Sequence[CheckpointView], incident: Incident, most: timedelta) -> int | None:
    """The newest good checkpoint that only an open stretch of an earlier Incident or life rules out, while nothing
    tells of now, and without which more is thrown away than `most`; 0: however much, nothing is in doubt.

    No one saw that loss heal: a process that was started again has forgotten. The run may have been well for days.
    """
    if (
        incident.order is not None
        or incident.resubmission.tries
        or incident.loss.episode is not None
        or incident.is_poisoned
    ):
        return None
    open_ones = [
        stretch
        for stretch in incident.loss.stretches
        if stretch.to_step is None and stretch.attempt == incident.attempt
    ]
    doubtful = [
        item
        for item in checkpoints
        if _is_whole(item)
        and item.kind != FORENSIC
        and any(stretch.holds(item.attempt, item.step, item.life) for stretch in open_ones)
    ]
    newest = max(doubtful, key=_order, default=None)
    fit = max((item for item in checkpoints if _may_be_resumed(item, incident, None)), key=_order, default=None)
    if newest is None or not most or (fit is not None and newest.saved_at - fit.saved_at <= most):
        return None
    return newest.step


def goes_back_to(incident: Incident, policy: Policy) -> tuple[int, ...]:
    """The steps that a resume point may have to lie at or below: now, after one more rollback, and before each stretch
    of steps whose checkpoints are never resumed from, however many were saved since.
    """
    planned = account_rollback(marked_bad(incident), policy)
    limits = {_limit(case, policy)[0] for case in (incident, planned)}
    limits |= {stretch.from_step - 1 for stretch in planned.loss.stretches[-NEWEST_STRETCHES:]}
    return tuple(sorted((limit for limit in limits if limit is not None and limit >= 0), reverse=True))


def checkpoint_key(item: CheckpointView) -> str:
    """What an Incident calls a checkpoint: its manifest, or where it lies if it has none."""
    return item.manifest or item.root


def _must_lie_before(incident: Incident) -> bool:
    """A resume point cannot be left to the trainer: it is poisoned, or an order names a step.

    A resubmission order that names no step leaves the resume point to the trainer.
    """
    if incident.order is not None and not incident.resubmission.tries:
        return isinstance(incident.order.get("from_step"), int)
    return incident.is_poisoned


def _of_unknown_worth(item: CheckpointView, incident: Incident) -> bool:
    """Written by a poisoned attempt whose first bad step is unknown."""
    return incident.is_poisoned and isinstance(incident.loss.onset_step, Unknown) and item.attempt == incident.attempt


def mark_abandoned(checkpoints: Sequence[CheckpointView], attempts: Sequence[Attempt]) -> tuple[CheckpointView, ...]:
    """The same checkpoints, those on a line that a later attempt has left marked with a problem.

    An attempt that resumed at step r has decided that what those before it did beyond r does not count: it was
    poisoned, or an operator went back on purpose. Their checkpoints beyond r stay in the bucket, whole and
    verified; to resume from one of them in a later Incident would undo that rollback.
    """
    marked = []
    numbers = {attempt.name: attempt.number for attempt in attempts}
    for item in checkpoints:
        number = numbers.get(item.attempt)
        left_at = min(
            (
                (attempt.resume_step.value, attempt.name)
                for attempt in attempts
                if number is not None and attempt.number > number and isinstance(attempt.resume_step, Known)
            ),
            default=None,
        )
        if left_at is not None and item.step > left_at[0]:
            problem = f"abandoned: {left_at[1]} went back to step {left_at[0]}"
            item = replace(item, problems=(*item.problems, problem))
        marked.append(item)
    return tuple(marked)


def attempt_name(job_name: str, number: int, salt: int) -> str:
    """The deterministic platform name of attempt `number`; `salt` counts names found taken by others."""
    suffix = f"-r{number}" if not salt else f"-r{number}x{salt}"
    return _base(job_name)[: MAX_NAME_CHARS - len(suffix)].rstrip("-") + suffix


def is_attempt_name(name: str, job_name: str) -> bool:
    """`name` is one that `attempt_name` makes for the Job, or the Job's own."""
    parts = _ATTEMPT.fullmatch(name)
    return name == job_name or (
        parts is not None and name == attempt_name(job_name, int(parts["number"]), int(parts["salt"] or 0))
    )


def _base(job_name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9-]", "-", job_name).strip("-") or "job"


def newest_verified(checkpoints: tuple[CheckpointView, ...], incident: Incident, *, of: str | None = None) -> int:
    """The step of the newest checkpoint that may be resumed from, of one attempt or of any; -1 where there is none."""
    onset = incident.loss.onset_step
    return max(
        (
            item.step
            for item in checkpoints
            if of in (None, item.attempt)
            and not item.problems
            and not item.fenced
            and item.kind != FORENSIC
            and not any(stretch.holds(item.attempt, item.step, item.life) for stretch in incident.loss.stretches)
            and not (
                item.attempt == incident.loss.onset_attempt and isinstance(onset, Known) and item.step >= onset.value
            )
        ),
        default=-1,
    )
