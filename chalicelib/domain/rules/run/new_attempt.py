"""A new attempt is submitted: from which checkpoint, and how.

`resent` is the try whose order may have been sent before; None for a fresh one.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from chalicelib.domain.decision.rule import Rule, rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, result, story, subject, why_unknown
from chalicelib.domain.model.action import Done, Notify, QuarantineCheckpoint, ResubmitJob, Severity
from chalicelib.domain.model.incident import Incident, Phase, Try
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import CheckpointView
from chalicelib.domain.resume.passed_over import PassedOver, passed_over
from chalicelib.domain.resume.resume_point import ResumePoint, choose_resume_point, left_in_doubt
from chalicelib.domain.rules.run.budgets import (
    BUDGET_NAMES,
    fruitless_of_job,
    over_budget,
    restarts_word,
    thin_progress,
)
from chalicelib.domain.rules.run.starts import (
    StartPlan,
    old_unseen,
    way_to_start,
)
from chalicelib.domain.run.bisection import unexplained, unnamed
from chalicelib.domain.run.movement import new_watch
from rekindle.protocol.signals import FaultClass

_HARDWARE: Final = (FaultClass.NODE_HARDWARE, FaultClass.NODE_LOST)


@rule("resubmit.old_lives")
def resubmit_old_lives(context: RuleContext, _: Try | None) -> Decision | None:
    """The old attempt lives after all: it is watched, because a second copy must not start."""
    old = context.attempt
    if old is None or old.name != context.incident.attempt or old.status.has_ended:
        return None
    return context.changed(**new_watch()).move(
        "resubmit.old_lives",
        f"{old.name} is {old.status} after all: a second copy must not start",
        Phase.VERIFYING,
    )


@rule("resubmit.old_unseen", "resubmit.old_unseen_limit", "job.gone")
def resubmit_old_unseen(context: RuleContext, _: Try | None) -> Decision | None:
    """The old job, and so how it can be started again, cannot be read: paged; a person at the capacity limit."""
    return old_unseen(context)


@rule("resume.unseen", "resume.unseen_limit")
def resume_unseen(context: RuleContext, resent: Try | None) -> Decision | None:
    """The checkpoints cannot be read: paged at `timing.stop_limit_s`, a person at `resubmission.capacity_limit_s`."""
    if isinstance(context.seen.checkpoints, Known):
        return None
    reason = f"the checkpoints cannot be read: {why_unknown(context.seen.checkpoints)}"
    # `not_before` is when the last back-off ended: waiting for capacity is no failure to read.
    since = resent.at if resent else context.incident.resubmission.not_before or context.incident.phase_entered_at
    if resent is not None:  # it stays on record: under this name it may have started
        tries = (*context.incident.resubmission.tries, resent)
        context = context.changed(tries=tries, attempt=resent.name, attempt_number=resent.number)
    return context.unread(
        "resume.unseen",
        "resume.unseen_limit",
        f"{reason}; starting from step 0 is for a person to choose",
        context.now - since,
    )


@rule(*BUDGET_NAMES)
def resubmit_over_budget(context: RuleContext, resent: Try | None) -> Decision | RuleContext | None:
    """By the checkpoints, now that they are read, the attempts before gained nothing: a [budget](#budgets) is spent."""
    if resent is not None or context.incident.resubmission.tries or context.incident.order is not None:
        return None
    spent = max(context.incident.resubmission.fruitless_before, fruitless_of_job(context))
    context = context.changed(fruitless_before=spent)
    return over_budget(context) or context


@rule("resume.gone")
def resume_gone(context: RuleContext, _: Try | None) -> Decision | None:
    """Known checkpoints are gone: a person, unless one has just ordered it to be resubmitted."""
    is_fresh_order = context.incident.order is not None and not context.incident.resubmission.tries
    if _checkpoints(context) or not context.seen.record.had_checkpoints or is_fresh_order:
        return None
    return context.hand_over(
        "resume.gone",
        f"{story(context)} There were checkpoints, and none is found any more: it would begin at step 0. What "
        "has become of them, and whether to begin again, is for a person to decide; an order to resubmit begins "
        "again",
    )


@rule("resume.none_fit")
def resume_none_fit(context: RuleContext, _: Try | None) -> Decision | None:
    """No checkpoint is verified and allowed, or no manifest tells which there are: a person."""
    if _point(context) is not None:
        return None
    count = len(_checkpoints(context))
    if count:
        reason = f"{count} checkpoint(s) exist, but none is verified and allowed for {context.incident.fault}"
    else:
        reason = (
            f"{story(context)} No checkpoint manifest exists, so nothing tells from before which "
            "step the trainer's own newest checkpoint is"
        )
    return context.hand_over("resume.none_fit", f"{reason}; what to resume from is for a person to choose")


@rule("resume.in_doubt")
def resume_in_doubt(context: RuleContext, resent: Try | None) -> Decision | None:
    """Whether an earlier bad loss healed is unknown, and going back before it costs more than `approvals.max_loss_s`:
    a person chooses the checkpoint."""
    most = context.policy.approvals.max_loss
    doubtful = left_in_doubt(_checkpoints(context), context.incident, most) if resent is None else None
    point = _point(context)
    if doubtful is None or point is None:
        return None
    return context.hand_over(
        "resume.in_doubt",
        f"{story(context)} The loss of {context.incident.attempt} had gone bad before, and nothing tells whether it "
        f"healed: its newest checkpoint is of step {doubtful}, the newest from before that loss is "
        f"{point.text}. Which of them to take is for a person to choose; an order to resubmit takes the older",
    )


@rule("submission.no_way", "submission.cannot_be_told")
def submission_no_way(context: RuleContext, resent: Try | None) -> Decision | None:
    """The platform has no faithful way to start it again from there: a person."""
    way = _way(context, resent)
    return way if isinstance(way, Decision) else None


@rule("resubmit.now")
def resubmit_now(context: RuleContext, resent: Try | None) -> Decision | None:
    """The new attempt is submitted, or its order is sent again under the same name. A warning names what is lost where
    that is more than what lies between two saves.
    """
    point, way = _point(context), _way(context, resent)
    if point is None or isinstance(way, Decision):
        return None
    incident = context.incident
    number = _number(context, resent)
    name = resent.name if resent else way.name
    clone_of = incident.attempt or ""
    action = ResubmitJob(
        clone_of=clone_of,
        number=number,
        name=name,
        resume_step=point.step,
        resume_root=point.root,
        resume_manifest=point.manifest,
        skips=incident.loss.skips,
        why=f"{incident.fault}: {point.rule}",
        goes_back=point.goes_back,
        how=way.how,
        exclude=way.exclude,
        left_out=unnamed(incident, way.exclude),
        left_nodes=unexplained(incident, way.left_nodes),
        checks_hardware=_checks_hardware(context),
    )
    attempt = Try(
        number=number,
        name=name,
        clone_of=clone_of,
        at=resent.at if resent else context.now,
        resume_step=point.step,
        resume_manifest=point.key,
        resume_root=point.root,
        went_back=point.goes_back,
        how=way.how,
        exclude=way.exclude,
        left_out=action.left_out,
        leaves=way.leaves,
        left_nodes=way.left_nodes,
    )
    lost = _unusual_loss(context, point) if resent is None else None
    told = (
        (Notify(severity=Severity.WARNING, title=f"{subject(context)}: {name} goes far back", text=lost.text),)
        if lost is not None
        else ()
    )
    skipping = "".join(f" Skipping the data of steps {w.from_step}-{w.to_step - 1}." for w in incident.loss.skips)
    return context.move(
        "resubmit.now",
        f"{name} resumes {point.text}.{skipping}{way.text}{f' {lost.text}' if lost is not None else ''}",
        Phase.RESUBMITTING,
        *_quarantine_again(context),
        *told,
        *_many_restarts(context, resent),
        action,
        at_once=True,
        tries=(*_by_what_they_left(incident.resubmission.tries, attempt), attempt),
        attempt=name,
        attempt_number=number,
        not_before=None,
    )


NEW_ATTEMPT: Final[tuple[Rule[[Try | None]], ...]] = (
    resubmit_old_lives,
    resubmit_old_unseen,
    resume_unseen,
    resubmit_over_budget,
    resume_gone,
    resume_none_fit,
    resume_in_doubt,
    submission_no_way,
    resubmit_now,
)


def _checkpoints(context: RuleContext) -> tuple[CheckpointView, ...]:
    """Those that were read, for rules that stand below `resume_unseen`."""
    return context.seen.checkpoints.value if isinstance(context.seen.checkpoints, Known) else ()


def _point(context: RuleContext) -> ResumePoint | None:
    return choose_resume_point(_checkpoints(context), context.incident, context.policy)


def _number(context: RuleContext, resent: Try | None) -> int:
    return resent.number if resent else max(context.seen.next_number, context.incident.attempt_number + 1)


def _way(context: RuleContext, resent: Try | None) -> StartPlan | Decision:
    point = _point(context)
    if point is None:
        raise ValueError("there is no checkpoint to resume from: a rule above has decided that")
    return way_to_start(context, _number(context, resent), point, _checkpoints(context))


def _many_restarts(context: RuleContext, resent: Try | None) -> tuple[Notify, ...]:
    """A warning, with the history, on the way to a budget over all Incidents."""
    found = thin_progress(context) if resent is None else ()
    if not found:
        return ()
    text = " ".join((*found, restarts_word(context)))
    return (Notify(severity=Severity.WARNING, title=f"{subject(context)}: it restarts often", text=text),)


def _unusual_loss(context: RuleContext, point: ResumePoint) -> PassedOver | None:
    """What is lost beyond a usual interval of saves, and not on purpose; told once for each resume point."""
    if point.goes_back or context.incident.is_ordered or not isinstance(point.step, Known):
        return None
    if any(item.resume_step == point.step for item in context.incident.resubmission.tries):
        return None
    lost = passed_over(context.incident, context.seen, point.step)
    return lost.value if isinstance(lost, Known) and lost.value.is_unusual else None


def _checks_hardware(context: RuleContext) -> bool:
    """By policy, where it is suspected, and no person has ordered the start; nodes of a cluster for so long at most."""
    incident, limit = context.incident, context.policy.nodes.deep_health_check
    if not limit or incident.is_ordered or not _suspects_hardware(incident):
        return False
    since = incident.resubmission.capacity_since or context.now
    return context.now - since < limit or not context.platform.can_exclude_nodes


def _suspects_hardware(incident: Incident) -> bool:
    """It is about hardware, or the ranks of the attempt that it replaces have named some of themselves."""
    named = (item for item in incident.evidence.suspicions if item.attempt == incident.attempt and item.ranks)
    return incident.fault in _HARDWARE or any(named)


def _by_what_they_left(tries: tuple[Try, ...], following: Try) -> tuple[Try, ...]:
    """A step further on is no gain where the next start resumes no further on: nothing was saved that it could use."""
    last = tries[-1] if tries else None
    if last is None or not last.gained or following.went_back:
        return tries
    kept, before = following.resume_step, last.resume_step
    if not isinstance(kept, Known) or not isinstance(before, Known) or kept.value > before.value:
        return tries
    return (*tries[:-1], dataclasses.replace(last, gained=False))


def _quarantine_again(context: RuleContext) -> tuple[QuarantineCheckpoint, ...]:
    """The mark could not be written. It is tried once more; this Incident does not resume from there in any case."""
    if result(context, "QuarantineCheckpoint", Done.UNAVAILABLE) is None:
        return ()
    bad = next(
        (item for item in reversed(context.incident.resubmission.tries) if item.died_at_load and item.resume_root), None
    )
    if bad is None or bad.resume_root is None:
        return ()
    return (QuarantineCheckpoint(root=bad.resume_root, why=f"{bad.name} died on it before it had made a step"),)
