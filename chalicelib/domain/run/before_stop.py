"""What is waited for, or stands in the way, before a run is stopped. None: nothing does."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.claims.bad_nodes import NODE_FAULTS
from chalicelib.domain.decision.verdict import Decision, Look, span_word, step_word, story, why
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.run.submission import Case, choose, must_be_told

BEAT_FRESH: Final = timedelta(minutes=2)  # several heartbeats: processes that wrote one so lately live


def before_stop(look: Look) -> Decision | None:
    """The first thing that keeps the attempt under care from being stopped now."""
    if look.incident.attempt is None:
        return None
    if not look.platform.orders_wait:
        return _unseen(look) if look.incident.order is None else None
    return _unseen(look) or _auto_resume_first(look) or _no_way_back(look)


def _unseen(look: Look) -> Decision | None:
    """A run that cannot be looked at may be well again, or be stopped by its owner already. An order to a
    cluster whose agent is silent would also wait there, and be carried out whatever runs by then.
    """
    if look.attempt is not None:
        return None
    reason = f"{look.incident.attempt} cannot be read: {why(look.seen.attempt)}; it is not stopped blindly"
    return look.unread("stop.blind", "stop.blind_limit", reason, look.unseen_for)


def _no_way_back(look: Look) -> Decision | None:
    """A run that nobody but a person can start again is not stopped."""
    attempt = look.attempt
    if attempt is None or attempt.start is None or not look.platform.can_requeue:
        return None
    if look.policy.loss.stop_without_resume_point:
        return None
    choice = choose(Case(start=attempt.start, must_be_told=must_be_told(look.incident, None)))
    if choice.how is not None:
        return None
    return look.hand_over(choice.rule, f"{story(look)} {attempt.name} is not stopped: {choice.why}")


def _auto_resume_first(look: Look) -> Decision | None:
    """Its own `srun --auto-resume` may be at work: a step that ended by a hardware cause is run again after the node
    was replaced. It gets its time before anything is stopped; what it did is recorded as its own.

    Source: SageMaker developer guide, sagemaker-hyperpod-resiliency-slurm-auto-resume.
    """
    incident, attempt = look.incident, look.attempt
    if attempt is None or attempt.start is None or not look.platform.job_restarts_itself:
        return None
    if attempt.start.has_auto_resume is not True:
        return None
    if incident.fault not in NODE_FAULTS or incident.order is not None or attempt.start.is_queued:
        return None
    is_alive = attempt.beat_at is not None and look.now - attempt.beat_at < BEAT_FRESH
    since = incident.deferred_since
    if since is None and is_alive:
        return None  # its step runs: what auto-resume waits for, the end of a process, has not come
    since = since or look.now
    limit = look.policy.timing.auto_resume_grace
    if is_alive and look.now - since < limit + look.policy.timing.silent_limit:
        reason = (
            f"the step of {attempt.name} runs again, at step {step_word(attempt.last_step)}: its own auto-resume did it"
        )
    elif look.now - since < limit:
        reason = (
            f"the step of {attempt.name} is gone, and its srun has --auto-resume: it gets {span_word(limit)} to mend it"
        )
    else:
        return None
    until = since + limit
    if incident.phase in (Phase.OPEN, Phase.WATCHING):
        return look.changed(deferred_since=since).move("defer.auto_resume", f"{story(look)} {reason}", Phase.HOLDING)
    return look.stay(
        "defer.auto_resume",
        f"{story(look)} {reason}",
        until=max(until, look.now + look.policy.timing.look_min),
        deferred_since=since,
    )
