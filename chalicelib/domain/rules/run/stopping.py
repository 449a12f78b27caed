"""Stopping: an attempt that was asked to stop is seen to end, or found to move again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import decided_by, rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    result,
    span_word,
    step_word,
    stop_is_ours,
    why_unknown,
)
from chalicelib.domain.fault_specs.faults import LOSS_FAULTS
from chalicelib.domain.faults.loss import marked_healed
from chalicelib.domain.faults.signal_facts import signal_step
from chalicelib.domain.faults.stalls import (
    is_as_fast_as_usual,
    is_past_stall,
    moves_again_since,
    newest_sign,
    stalls_of,
)
from chalicelib.domain.model.action import Done, Severity, StopJob
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import NO_SIBLING, STALLED, AttemptStatus, AttemptView
from chalicelib.domain.model.start_view import STOP_VALID
from chalicelib.domain.rules.run.preparing import BEFORE_ATTEMPT, settle_try
from chalicelib.domain.rules.run.resubmitting import adopt_sibling
from chalicelib.domain.run.finishing import ended_completed_poisoned, ended_unproven_unordered
from chalicelib.domain.run.liveness import began_anew, claims_are_over
from chalicelib.domain.run.movement import new_watch
from rekindle.protocol.cluster.documents import EndedBy
from rekindle.protocol.signals import FaultClass

STALE_AFTER: Final = timedelta(minutes=5)  # a stall that no heartbeat repeats for so long is no reason to stop a run
_UNDER_WAY: Final = timedelta(seconds=10)  # from the decision until the order is written, and dated


@rule("stop.completed")
def stop_completed(context: RuleContext) -> Decision | None:
    """It completed before the stop reached it: recovered."""
    attempt = context.attempt
    if attempt is None or attempt.status is not AttemptStatus.COMPLETED:
        return None
    return context.close(
        "stop.completed",
        f"{attempt.name} completed before the stop reached it",
        Phase.RECOVERED,
        severity=Severity.INFO,
    )


@rule()
def stop_was_theirs(context: RuleContext) -> RuleContext:
    """Our stop found it stopping already, since before we decided: its owner was quicker, which is noted.

    The platform must say both. A stop of ours whose answer was lost is found under way as well, but began later.
    """
    attempt, begun_at = context.attempt, context.incident.halt.stop_begun_at
    if attempt is None or begun_at is None or attempt.stopping_since is None or context.incident.is_ordered:
        return context
    if result(context, "StopJob", Done.ALREADY) is None or attempt.stopping_since >= begun_at:
        return context
    return context.changed(stopped_attempts=_other_stopped(context, attempt))


@rule("stop.owner_stopped")
def stop_owner_stopped(context: RuleContext) -> Decision | None:
    """Its user stopped it first: left alone, whatever was about to be done."""
    attempt = context.attempt
    if attempt is None or not context.has_ended(attempt) or attempt.status is not AttemptStatus.STOPPED:
        return None
    if attempt.successor is not None or context.incident.is_ordered:
        return None
    is_by_user = attempt.start is not None and attempt.start.ended_by is EndedBy.USER
    if not is_by_user and (context.platform.tells_who_ended or stop_is_ours(context, attempt)):
        return None
    return context.close(
        "stop.owner_stopped",
        f"{attempt.name} was stopped by its user before our stop reached it: it is left alone",
        Phase.STOPPED,
        severity=Severity.INFO,
    )


@rule("resubmit.sibling")
def stop_made_way(context: RuleContext) -> Decision | None:
    """Ours has ended to make way for an attempt that lives: that one is watched, whatever the budgets say."""
    attempt, beside = context.attempt, context.seen.sibling
    if context.incident.halt.for_sibling is None or attempt is None or not context.has_ended(attempt):
        return None
    if not isinstance(beside, Known):
        return None
    settled = settle_try(context.incident, attempt, context.seen).changed(for_sibling=None)
    return adopt_sibling(dataclasses.replace(context, incident=settled), beside.value)


@rule()
def stop_ended(context: RuleContext) -> Decision | None:
    """It has ended: [before a new attempt](#before-a-new-attempt)."""
    has_ended = context.attempt is not None and context.has_ended(context.attempt)
    return decided_by(BEFORE_ATTEMPT, context) if has_ended else None


@rule("stop.refused", "stop.refused_once")
def stop_refused(context: RuleContext) -> Decision | None:
    """The platform refuses to stop it: a person. An agent may refuse by an older view: read once more first."""
    refused = result(context, "StopJob", Done.REFUSED)
    if refused is None:
        return None
    may_lag = context.platform.orders_wait and context.in_phase < context.policy.timing.look_max
    if context.attempt is not None and may_lag:
        # Of a start that is over an order is refused as stale; what is shown may lag that answer.
        return context.stay("stop.refused_once", f"the stop was refused ({refused.detail}); looking again")
    return context.hand_over("stop.refused", f"the platform refused to stop it: {refused.detail}")


@rule("stop.unseen", "stop.unseen_limit")
def stop_unseen(context: RuleContext) -> Decision | None:
    """Whether it has ended cannot be read: paged at `timing.stop_limit_s`, a person at the capacity limit."""
    if context.attempt is not None:
        return None
    reason = f"whether it stopped is not known: {why_unknown(context.seen.attempt)}; a second one could double the run"
    return context.unread("stop.unseen", "stop.unseen_limit", reason, context.in_phase)


@rule("stop.stuck")
def stop_stuck(context: RuleContext) -> Decision | None:
    """It has not ended for `timing.stop_limit_s`: a person, because a second copy must not start."""
    if context.in_phase < context.policy.timing.stop_limit:
        return None
    return context.hand_over(
        "stop.stuck",
        f"{context.attempt_seen.name} is still {context.attempt_seen.status} after {span_word(context.in_phase)}; a "
        "second copy must not start",
    )


@rule("stop.waiting")
def stop_under_way(context: RuleContext) -> Decision | None:
    """It is stopping, or not shown any more: wait."""
    is_on = context.attempt_seen.status in (AttemptStatus.STOPPING, AttemptStatus.GONE)
    return _waiting(context) if is_on else None


@rule("stop.moves_again", "stop.expiring")
def stop_moves_again(context: RuleContext) -> Decision | None:
    """The stop did not get through, and what it was for is over: left running.

    An order that waits for its agent is not repeated, and has expired before anything else is decided.
    """
    context = dataclasses.replace(context, incident=marked_healed(context.incident))
    incident, attempt = context.incident, context.attempt_seen
    why_not = _no_reason_left(context, attempt)
    if not why_not:
        return None
    if context.platform.orders_wait:
        asked_at = context.now if result(context, "StopJob", Done.PENDING) is not None else incident.halt.stop_asked_at
        expires_at = (asked_at or context.now) + STOP_VALID + _UNDER_WAY
        if context.now < expires_at:
            reason = f"{attempt.name} {why_not}: its stop is not repeated"
            return context.stay("stop.expiring", reason, until=expires_at, stop_asked_at=asked_at)
    elif not _is_overdue(context):
        return None
    return context.changed(stopped_attempts=_other_stopped(context, attempt), for_sibling=None, **new_watch()).move(
        "stop.moves_again",
        f"{attempt.name} could not be stopped, and {why_not}. It is left running",
        Phase.VERIFYING if incident.resubmission.tries else Phase.HOLDING,
    )


@rule("stop.pending")
def stop_pending(context: RuleContext) -> Decision | None:
    """The stop is not answered: the same order again."""
    if result(context, "StopJob", Done.PENDING) is None:
        return None
    attempt = context.attempt_seen
    reason = f"{attempt.name} is still {attempt.status}; the stop is not answered yet"
    return context.stay("stop.pending", reason, _stop_again(context))


@rule("stop.stale")
def stop_stale(context: RuleContext) -> Decision | None:
    """The stop did not get through, and no heartbeat of 5 minutes repeats the stall: one is waited for.

    The run may have moved on since. An outage on the way of the order, and one of the mailbox, are no evidence.
    """
    incident, attempt = context.incident, context.attempt_seen
    if not _is_overdue(context) or incident.fault is not FaultClass.HANG or incident.is_ordered:
        return None
    # A silence of metrics names no step, and no heartbeat is there to be read.
    sign_at = newest_sign((signal for signal in stalls_of(incident) if isinstance(signal_step(signal), Known)), attempt)
    if sign_at is None or context.now - sign_at < STALE_AFTER:
        return None
    reason = f"{attempt.name} is {attempt.status}, and nothing shows any more that it stands still"
    return context.stay("stop.stale", f"{reason}: it is not asked to stop again before its heartbeat is read")


@rule("stop.again")
def stop_again(context: RuleContext) -> Decision | None:
    """The stop may never have arrived: asked again."""
    if not _is_overdue(context):
        return None
    attempt = context.attempt_seen
    return context.stay(
        "stop.again",
        f"{attempt.name} is still {attempt.status}; asking again",
        _stop_again(context),
        stop_asked_at=context.now,
    )


@rule("stop.waiting")
def stop_waiting(context: RuleContext) -> Decision:
    """It has not ended yet: wait."""
    return _waiting(context)


STOPPING: Final = (
    ended_completed_poisoned,
    ended_unproven_unordered,
    stop_completed,
    stop_was_theirs,
    stop_owner_stopped,
    stop_made_way,
    stop_ended,
    stop_refused,
    stop_unseen,
    stop_stuck,
    stop_under_way,
    stop_moves_again,
    stop_pending,
    stop_stale,
    stop_again,
    stop_waiting,
)


def _waiting(context: RuleContext) -> Decision:
    return context.stay("stop.waiting", f"{context.attempt_seen.name} is {context.attempt_seen.status}")


def _stop_again(context: RuleContext) -> StopJob:
    hold = context.incident.halt.stop_hold
    return StopJob(attempt=context.attempt_seen.name, why="not stopping yet", hold=hold)


def _other_stopped(context: RuleContext, attempt: AttemptView) -> tuple[str, ...]:
    """The attempts that we have stopped, without this one."""
    return tuple(name for name in context.incident.halt.stopped_attempts if name != attempt.name)


def _is_overdue(context: RuleContext) -> bool:
    """The order may never have arrived: it could not be sent, or we died between recording and sending it."""
    if result(context, "StopJob", Done.UNAVAILABLE) is not None:
        return True
    if result(context, "StopJob", Done.DONE, Done.ALREADY) is not None:
        return False
    asked_at = context.incident.halt.stop_asked_at or context.incident.phase_entered_at
    return context.now - asked_at >= context.policy.timing.look_max


# ---- what shows that the reason for a stop is over: words for people, or empty ----


def _no_reason_left(context: RuleContext, attempt: AttemptView) -> str:
    """How it shows that what the run was to be stopped for is over; empty while it is not, or not known to be."""
    incident = context.incident
    if incident.is_ordered or incident.is_poisoned or attempt.status is not AttemptStatus.RUNNING:
        return ""
    if incident.halt.for_sibling is not None:  # while that one lives, ours makes way, whatever it does
        is_alone = context.seen.sibling == NO_SIBLING and attempt.work != STALLED
        return f"has begun, and {incident.halt.for_sibling} is no longer running" if is_alone else ""
    if attempt.work == STALLED and not _is_reported_to_move(context, attempt):
        return ""
    return next((text for shows in _OVER if (text := shows(context, attempt))), "")


def _is_reported_to_move(context: RuleContext, attempt: AttemptView) -> bool:
    incident = context.incident
    return incident.fault is FaultClass.HANG and moves_again_since(incident, attempt) is not None


def _moves(context: RuleContext, attempt: AttemptView) -> str:
    is_past = context.incident.fault is FaultClass.HANG and is_past_stall(context.incident, attempt.last_step)
    moves = is_past or _is_reported_to_move(context, attempt)
    return f"is at step {step_word(attempt.last_step)}, and moves" if moves else ""


def _has_a_good_node(context: RuleContext, _: AttemptView) -> str:
    return "runs, and its node is well since" if claims_are_over(context) else ""


def _has_a_good_loss(context: RuleContext, _: AttemptView) -> str:
    episode = context.incident.loss.episode
    if context.incident.fault not in LOSS_FAULTS or episode is None or episode.healed_step is None:
        return ""
    return f"has a loss that is well again since step {episode.healed_step}"


def _is_fast(context: RuleContext, attempt: AttemptView) -> str:
    incident, begun_at = context.incident, context.incident.halt.stop_begun_at
    is_news = attempt.heartbeat_at is not None and begun_at is not None and attempt.heartbeat_at > begun_at
    is_slow_run = incident.fault is FaultClass.THROUGHPUT_DROP
    if is_slow_run and is_news and is_as_fast_as_usual(incident, attempt):
        return f"takes {attempt.step_s:.3g} s a step, as usual"
    return ""


def _began_anew(context: RuleContext, attempt: AttemptView) -> str:
    return f"was started again in its place (life {attempt.life})" if began_anew(context) else ""


_OVER: Final[tuple[Callable[[RuleContext, AttemptView], str], ...]] = (
    _began_anew,
    _moves,
    _has_a_good_node,
    _has_a_good_loss,
    _is_fast,
)
