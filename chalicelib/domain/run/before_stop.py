"""What is waited for, or stands in the way, before a run is stopped. None: nothing does."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.verdict import Decision, RuleContext, span_word, step_word, story, why_unknown
from chalicelib.domain.fault_specs.faults import NODE_FAULTS
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.run.submission import Case, choose, needs_plan

HEARTBEAT_FRESH: Final = timedelta(minutes=2)  # several heartbeats: processes that wrote one so lately live


def before_stop(context: RuleContext) -> Decision | None:
    """The first thing that keeps the attempt under care from being stopped now."""
    if context.incident.attempt is None:
        return None
    if not context.platform.orders_wait:
        return _unseen(context) if context.incident.order is None else None
    return _unseen(context) or _auto_resume_first(context) or _no_way_back(context)


def _unseen(context: RuleContext) -> Decision | None:
    """A run that cannot be looked at may be well again, or be stopped by its owner already. An order to a
    cluster whose agent is silent would also wait there, and be carried out whatever runs by then.
    """
    if context.attempt is not None:
        return None
    reason = (
        f"{context.incident.attempt} cannot be read: {why_unknown(context.seen.attempt)}; it is not stopped blindly"
    )
    return context.unread("stop.blind", "stop.blind_limit", reason, context.unseen_for)


def _no_way_back(context: RuleContext) -> Decision | None:
    """A run that only a person can start again is not stopped."""
    attempt = context.attempt
    if attempt is None or attempt.start is None or not context.platform.can_requeue:
        return None
    if context.policy.loss.stop_without_resume_point:
        return None
    choice = choose(Case(start=attempt.start, needs_plan=needs_plan(context.incident, None)))
    if choice.how is not None:
        return None
    # A person who has just ordered it reads the answer, and the run continues as before.
    is_answer = context.incident.order is not None and not context.incident.resubmission.tries
    severity = Severity.WARNING if is_answer else Severity.PAGE
    reason = f"{story(context)} {attempt.name} is not stopped: {choice.why}"
    return context.hand_over(choice.rule, reason, severity=severity)


def _auto_resume_first(context: RuleContext) -> Decision | None:
    """Its own `srun --auto-resume` may be at work: a step that ended by a hardware cause is run again after the node
    was replaced. It gets its time before anything is stopped; what it did is recorded as its own.

    Source: SageMaker developer guide, sagemaker-hyperpod-resiliency-slurm-auto-resume.
    """
    incident, attempt = context.incident, context.attempt
    if attempt is None or attempt.start is None or not context.platform.job_restarts_itself:
        return None
    if attempt.start.has_auto_resume is not True:
        return None
    if incident.fault not in NODE_FAULTS or incident.order is not None or attempt.start.is_queued:
        return None
    is_alive = attempt.heartbeat_at is not None and context.now - attempt.heartbeat_at < HEARTBEAT_FRESH
    since = incident.resubmission.deferred_since
    if since is None and is_alive:
        return None  # its step runs: what auto-resume waits for, the end of a process, has not come
    since = since or context.now
    limit = context.policy.timing.auto_resume_grace
    if is_alive and context.now - since < limit + context.policy.timing.silent_limit:
        reason = (
            f"the step of {attempt.name} runs again, at step {step_word(attempt.last_step)}: its own auto-resume did it"
        )
    elif context.now - since < limit:
        reason = (
            f"the step of {attempt.name} is gone, and its srun has --auto-resume: it gets {span_word(limit)} to fix it"
        )
    else:
        return None
    until = since + limit
    if incident.phase in (Phase.OPEN, Phase.WATCHING):
        return context.changed(deferred_since=since).move(
            "defer.auto_resume", f"{story(context)} {reason}", Phase.HOLDING
        )
    return context.stay(
        "defer.auto_resume",
        f"{story(context)} {reason}",
        until=max(until, context.now + context.policy.timing.look_min),
        deferred_since=since,
    )
