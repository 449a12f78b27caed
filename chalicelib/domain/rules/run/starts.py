"""How the new attempt is started, on whatever platform; and an order to start that is not answered yet. Pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from chalicelib.domain.decision.verdict import Decision, RuleContext, result, span_word, story, why_unknown
from chalicelib.domain.model.action import Done, ResubmitJob, StopJob
from chalicelib.domain.model.incident import Incident, Try
from chalicelib.domain.model.observation import CheckpointView
from chalicelib.domain.model.start_view import Submission
from chalicelib.domain.resume.resume_point import ResumePoint, attempt_name
from chalicelib.domain.rules.run.platform_restart import zombies
from chalicelib.domain.run.bad_nodes import broken_one_of, ordered_exclusion, to_exclude
from chalicelib.domain.run.bisection import half_left_out, unexplained
from chalicelib.domain.run.submission import Case, choose, excludable, needs_plan, requeued_name, submitted_name


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPlan:
    """How the next attempt starts. `leaves`: a held start of the old submission that is cancelled once it is there."""

    name: str
    how: Submission = Submission.CLONE
    exclude: tuple[str, ...] = ()
    leaves: str | None = None
    left_nodes: tuple[str, ...] = ()
    text: str = ""


def old_unseen(context: RuleContext) -> Decision | None:
    """Where a job may be requeued, its own record shows how it can be started again: it must be read first."""
    incident, old = context.incident, context.attempt
    if not context.platform.can_requeue or (old is not None and old.start is not None):
        return None
    reason = f"how {incident.attempt} can be started again is not known: {why_unknown(context.seen.attempt)}"
    since = incident.resubmission.not_before or incident.phase_entered_at
    if old is not None and context.in_state >= context.policy.timing.look_max:
        return context.hand_over("job.gone", f"nothing is known of {incident.attempt} any more. {story(context)}")
    return context.unread("resubmit.old_unseen", "resubmit.old_unseen_limit", reason, context.now - since)


def way_to_start(
    context: RuleContext, number: int, point: ResumePoint, checkpoints: tuple[CheckpointView, ...]
) -> StartPlan | Decision:
    """The way that keeps most; a Decision where only a person can go on. `context.incident` has no try pending."""
    incident, old = context.incident, context.attempt
    exclude, text = _kept_away(context)
    if old is None or old.start is None or not context.platform.can_requeue:
        name = attempt_name(context.seen.job_name, number, incident.resubmission.name_salt)
        return StartPlan(name=name, exclude=exclude, text=text)
    case = Case(
        start=old.start,
        needs_plan=needs_plan(incident, point, checkpoints),
        requeue_refused=incident.resubmission.requeue_refused,
    )
    choice = choose(case)
    if choice.how is None:
        return context.hand_over(choice.rule, f"{story(context)} {choice.why}")
    text = f" {choice.why[0].upper()}{choice.why[1:]}.{text}{zombies(context, old)}"
    left = broken_one_of(incident, old)
    if choice.how is Submission.REQUEUE:
        name = old.successor or requeued_name(old.name, old.start)
        return StartPlan(name=name, how=choice.how, exclude=exclude, left_nodes=left, text=text)
    name = submitted_name(incident.job_id, old.name, number, incident.resubmission.name_salt)
    return StartPlan(name=name, how=choice.how, exclude=exclude, leaves=old.successor, left_nodes=left, text=text)


def _kept_away(context: RuleContext) -> tuple[tuple[str, ...], str]:
    """The nodes that the next attempt must not get, and the words for it."""
    if not context.platform.can_exclude_nodes:
        return (), ""
    exclude, ordered, stated = (
        excludable(to_exclude(context.incident, context.seen)),
        ordered_exclusion(context.incident),
        "",
    )
    if ordered:
        stated += f" Not on {', '.join(ordered[:8])}, as was ordered."
    doubtful = [node for node in exclude if node not in ordered]
    if doubtful:
        stated += f" Not on {', '.join(doubtful)}: whether that is out of service is not known yet."
    half = excludable(tuple(node for node in half_left_out(context) if node not in exclude))
    if half:
        stated += (
            f" Not on {', '.join(half[:8])}: attempts have died of hardware on one set of nodes, none of which is "
            "named, and half of it is left out in turn."
        )
    return (*exclude, *half), stated


def resend_order(context: RuleContext, pending: Try) -> Decision:
    """The very same order once more: it may never have been sent, or its answer is still to come."""
    if context.now - pending.at >= context.policy.timing.stop_limit:
        return context.hand_over(
            "resubmit.unanswered",
            f"the order to start {pending.name} has not been answered for "
            f"{span_word(context.now - pending.at)}; whether "
            "it was carried out is not known, and the order runs out automatically",
        )
    key, root = pending.resume_manifest, pending.resume_root
    order = ResubmitJob(
        clone_of=pending.clone_of,
        number=pending.number,
        name=pending.name,
        resume_step=pending.resume_step,
        resume_root=root,
        resume_manifest=None if key == root else key,
        skips=context.incident.loss.skips,
        why=f"{context.incident.fault}: the same order again",
        goes_back=pending.went_back,
        how=pending.how,
        exclude=pending.exclude,
        left_out=pending.left_out,
        left_nodes=unexplained(context.incident, pending.left_nodes),
    )
    is_pending = result(context, "ResubmitJob", Done.PENDING) is not None
    stated = "is not answered yet" if is_pending else "is given again"
    return context.stay("resubmit.again", f"the order to start {pending.name} {stated}", order)


def requeue_refused(context: RuleContext, text: str) -> Decision:
    """The platform will not put it back. What it shows may lag that answer, so it is read again before anything else is
    done.

    `context.incident` has no try pending.
    """
    if context.incident.resubmission.requeue_refused:
        return context.hand_over("resubmit.refused", f"the platform refused the new attempt: {text}")
    refused = context.stay("resubmit.requeue_refused", f"the requeue was refused ({text}); looking for another way")
    incident = refused.incident.changed(requeue_refused=True, not_before=context.now + context.policy.timing.look_max)
    return dataclasses.replace(refused, incident=incident, look_again_in=context.policy.timing.look_max)


def left_behind(started: Try) -> tuple[StopJob, ...]:
    """The old submission that waits, held, beside a new submission: it must not start as well."""
    if started.leaves is None:
        return ()
    return (StopJob(attempt=started.leaves, why=f"submitted again as {started.name}"),)


def undo_try(incident: Incident) -> Incident:
    """The try on record never started: forget it, so that budgets count real attempts only."""
    undone = incident.resubmission.pending
    if undone is None:
        return incident
    return incident.changed(
        tries=incident.resubmission.tries[:-1], attempt=undone.clone_of, attempt_number=undone.number - 1
    )
