"""Stopping: an attempt that was asked to stop is seen to end, or found to move again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final

from chalicelib.domain.claims.finishing import completed_poisoned
from chalicelib.domain.claims.liveness import claims_are_over
from chalicelib.domain.claims.movement import new_watch
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
from chalicelib.domain.faults.pace import is_as_fast_as_usual
from chalicelib.domain.faults.signal_facts import signal_step
from chalicelib.domain.faults.stalls import is_past_stall, moves_again_since, newest_sign, stalls_of
from chalicelib.domain.model.action import Done, Severity, StopJob
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import NO_SIBLING, STALLED, AttemptStatus, AttemptView
from chalicelib.domain.model.start_view import STOP_VALID
from chalicelib.domain.rules.run.ended import prepare_resubmit
from rekindle.protocol.cluster.documents import EndedBy
from rekindle.protocol.signals import FaultClass

STALE_AFTER: Final = timedelta(minutes=5)  # a stall that no heartbeat repeats for so long is no reason to stop a run
_UNDER_WAY: Final = timedelta(seconds=10)  # from the decision until the order is written, and dated


def decide_stopping(context: RuleContext) -> Decision:
    """STOPPING."""
    attempt = context.attempt
    if attempt is not None and attempt.status is AttemptStatus.COMPLETED:
        return completed_poisoned(context, attempt) or context.close(
            "stop.completed",
            f"{attempt.name} completed before the stop reached it",
            Phase.RECOVERED,
            severity=Severity.INFO,
        )
    context = _whose_stop(context, attempt)
    if attempt is not None and context.has_ended(attempt):
        return _cancelled_meanwhile(context, attempt) or prepare_resubmit(context)
    refused = result(context, "StopJob", Done.REFUSED)
    if (
        refused is not None
        and attempt is not None
        and context.platform.orders_wait
        and context.in_phase < context.policy.timing.look_max
    ):
        # Of a start that is over an order is refused as stale; what is shown may lag that answer.
        return context.stay("stop.refused_once", f"the stop was refused ({refused.detail}); looking again")
    if refused is not None:
        return context.hand_over("stop.refused", f"the platform refused to stop it: {refused.detail}")
    if attempt is None:
        reason = (
            f"whether it stopped is not known: {why_unknown(context.seen.attempt)}; a second one could double the run"
        )
        return context.unread("stop.unseen", "stop.unseen_limit", reason, context.in_phase)
    if context.in_phase >= context.policy.timing.stop_limit:
        return context.hand_over(
            "stop.stuck",
            f"{attempt.name} is still {attempt.status} after {span_word(context.in_phase)}; a "
            "second copy must not start",
        )
    if attempt.status in (AttemptStatus.STOPPING, AttemptStatus.GONE):
        return context.stay("stop.waiting", f"{attempt.name} is {attempt.status}")
    moves = _moves_meanwhile(context, attempt)
    if moves is not None:
        return moves
    again = StopJob(attempt=attempt.name, why="not stopping yet", hold=context.incident.halt.stop_hold)
    if result(context, "StopJob", Done.PENDING) is not None:  # the same order, until it is answered
        return context.stay(
            "stop.pending", f"{attempt.name} is still {attempt.status}; the stop is not answered yet", again
        )
    if _stop_is_overdue(context):
        if _is_claim_stale(context, attempt):
            reason = f"{attempt.name} is {attempt.status}, and nothing shows any more that it stands still"
            return context.stay("stop.stale", f"{reason}: it is not asked to stop again before its heartbeat is read")
        return context.stay(
            "stop.again", f"{attempt.name} is still {attempt.status}; asking again", again, stop_asked_at=context.now
        )
    return context.stay("stop.waiting", f"{attempt.name} is {attempt.status}")


def _whose_stop(context: RuleContext, attempt: AttemptView | None) -> RuleContext:
    """The look with our stop taken back where the run was being stopped before it: its owner was quicker.

    The platform must say both: that our order found it stopping, and that this began before we decided. A stop of ours
    whose answer was lost is found under way as well, but began later.
    """
    begun_at = context.incident.halt.stop_begun_at
    if attempt is None or begun_at is None or attempt.stopping_since is None or context.incident.order is not None:
        return context
    if result(context, "StopJob", Done.ALREADY) is None or attempt.stopping_since >= begun_at:
        return context
    return context.changed(
        stopped_attempts=tuple(one for one in context.incident.halt.stopped_attempts if one != attempt.name)
    )


def _cancelled_meanwhile(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """Its own user was quicker: a run that was stopped by its user is left alone, whatever we were about to do."""
    start = attempt.start
    if (
        attempt.status is not AttemptStatus.STOPPED
        or attempt.successor is not None
        or context.incident.order is not None
    ):
        return None
    is_by_user = start is not None and start.ended_by is EndedBy.USER
    if not is_by_user and (context.platform.tells_who_ended or stop_is_ours(context, attempt)):
        return None
    return context.close(
        "stop.owner_stopped",
        f"{attempt.name} was stopped by its user before our stop reached it: it is left alone",
        Phase.STOPPED,
        severity=Severity.INFO,
    )


def _moves_meanwhile(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """The stop did not get through, and what it was for is over.

    An order that waits for its agent is not repeated, and has expired before anything else is decided.
    """
    context = replace(context, incident=marked_healed(context.incident))
    incident = context.incident
    why_not = _no_reason_left(context, attempt)
    if not why_not:
        return None
    if context.platform.orders_wait:
        asked_at = context.now if result(context, "StopJob", Done.PENDING) is not None else incident.halt.stop_asked_at
        expires_at = (asked_at or context.now) + STOP_VALID + _UNDER_WAY
        if context.now < expires_at:
            reason = f"{attempt.name} {why_not}: its stop is not repeated"
            return context.stay("stop.expiring", reason, until=expires_at, stop_asked_at=asked_at)
    elif not _stop_is_overdue(context):
        return None
    return context.changed(
        stopped_attempts=tuple(one for one in incident.halt.stopped_attempts if one != attempt.name),
        for_sibling=None,
        **new_watch(),
    ).move(
        "stop.moves_again",
        f"{attempt.name} could not be stopped, and {why_not}. It is left running",
        Phase.VERIFYING if incident.resubmission.tries else Phase.HOLDING,
    )


def _no_reason_left(context: RuleContext, attempt: AttemptView) -> str:
    """How it shows that what the run was to be stopped for is over; empty while it is not, or not known to be."""
    incident = context.incident
    if incident.order is not None or incident.is_poisoned or attempt.status is not AttemptStatus.RUNNING:
        return ""
    if incident.halt.for_sibling is not None:  # while that one lives, ours makes way, whatever it does
        is_alone = context.seen.sibling == NO_SIBLING and attempt.work != STALLED
        return f"has begun, and {incident.halt.for_sibling} is no longer running" if is_alone else ""
    is_hang = incident.fault is FaultClass.HANG
    has_resumed = is_hang and moves_again_since(incident, attempt) is not None
    if attempt.work == STALLED and not has_resumed:
        return ""
    if has_resumed or (is_hang and is_past_stall(incident, attempt)):
        return f"is at step {step_word(attempt.last_step)}, and moves"
    if claims_are_over(context):
        return "runs, and its node is well since"
    bout, begun_at = incident.loss.bout, incident.halt.stop_begun_at
    if incident.fault in LOSS_FAULTS and bout is not None and bout.healed_step is not None:
        return f"has a loss that is well again since step {bout.healed_step}"
    is_news = attempt.heartbeat_at is not None and begun_at is not None and attempt.heartbeat_at > begun_at
    if incident.fault is FaultClass.THROUGHPUT_DROP and is_news and is_as_fast_as_usual(incident, attempt):
        return f"takes {attempt.step_s:.3g} s a step, as usual"
    return ""


def _is_claim_stale(context: RuleContext, attempt: AttemptView) -> bool:
    """The run's own monitor reported the stall long ago, and no heartbeat can be read that repeats it: the run may have
    moved on since. An outage on the way of the order, and one of the mailbox, are no evidence.
    """
    incident = context.incident
    if incident.fault is not FaultClass.HANG or incident.order is not None:
        return False
    # A silence of metrics names no step, and no heartbeat is there to be read.
    sign_at = newest_sign((one for one in stalls_of(incident) if isinstance(signal_step(one), Known)), attempt)
    return sign_at is not None and context.now - sign_at >= STALE_AFTER


def _stop_is_overdue(context: RuleContext) -> bool:
    """The order may never have arrived: it could not be sent, or we died between recording and sending it."""
    if result(context, "StopJob", Done.UNAVAILABLE) is not None:
        return True
    if result(context, "StopJob", Done.DONE, Done.ALREADY) is not None:
        return False
    return (
        context.now - (context.incident.halt.stop_asked_at or context.incident.phase_entered_at)
        >= context.policy.timing.look_max
    )
