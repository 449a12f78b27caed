"""Orders by people that a playbook does not cover: stop a run for good, and move a run off a node, if it can be saved.

A stop is accepted in every phase, because a person must be able to rely on it; a start that is under way is
settled first, and then stopped. What it leaves is stopped for good: the Job is deactivated and `halted_by` says who
ordered that, so that neither the sweep nor a late event starts it again (services.intake, services.look).

A move is asked for by a node's own Incident, for a node that a person has ordered to be repaired. The fault is not the
run's, so it is stopped only once it is saved; a run that cannot be saved continues, and the node waits.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from chalicelib.domain.decision.verdict import Decision, RuleContext, result, span_word, why_unknown
from chalicelib.domain.model.action import Action, AdoptAttempt, Done, RequestCheckpoint, Severity, StopJob
from chalicelib.domain.model.incident import STOPPED_BY_ORDER, CheckpointAsk, Incident, Phase, Try
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.start_view import Submission
from chalicelib.domain.rules.run.platform_restart import adopt_held, platform_restarted
from chalicelib.domain.rules.run.resubmitting import undo_try
from chalicelib.domain.run.first_response import begin_checkpoint, begin_stop, shadow
from rekindle.protocol.signals import FaultClass

_BEFORE: Final = (Phase.OPEN, Phase.HOLDING, Phase.WATCHING)
_NOT_STARTED: Final = (Done.REFUSED, Done.CAPACITY, Done.NAME_TAKEN, Done.SIBLING)


def decide_order(context: RuleContext) -> Decision | None:
    """The next step of an order that stands; None where none does, or where it waits for what is under way."""
    if stops_for_good(context.incident):
        return _stop(context)
    if (context.incident.order or {}).get("do") == "move" and not context.incident.resubmission.tries:
        return _move(context)
    return None


def stops_for_good(incident: Incident) -> bool:
    """An order to stop stands."""
    return incident.order is not None and incident.order.get("do") == "stop"


def who_ordered(incident: Incident) -> str:
    """Who gave the order that stands."""
    return str((incident.order or {}).get("who") or "an operator")


# ---- stop ------------------------------------------------------------------------------------------------------------


def _stop(context: RuleContext) -> Decision | None:
    incident = context.incident
    if incident.phase is Phase.RESUBMITTING and incident.resubmission.pending is not None:
        unsent = _unsent(context, incident.resubmission.pending)
        if unsent is not None:
            return unsent
        if result(context, "ResubmitJob", *_NOT_STARTED) is None:
            return None  # whether it has been started is found out first: what was sent cannot be called back
        context = dataclasses.replace(context, incident=undo_try(incident))
        return _stopped(context, f"{context.incident.attempt} had ended, and nothing was started in its place")
    attempt = context.attempt
    if attempt is None:
        unread = f"the attempt cannot be read: {why_unknown(context.seen.attempt)}"
        reason = f"{who_ordered(incident)} ordered a stop, and {unread}"
        return context.unread("order.stop_unseen", "order.stop_unseen_limit", reason, context.unseen_for)
    if context.has_ended(attempt):
        # Where the platform, or an earlier stop of ours, has put it back, that start is the run now, and is stopped.
        again = (platform_restarted(context) or adopt_held(context, attempt)) if attempt.successor is not None else None
        return again or _stopped(context, f"{attempt.name} has ended ({attempt.status})")
    if attempt.status is AttemptStatus.GONE:
        return context.stay("order.stop_gone", f"the platform does not know {attempt.name}; asking once more")
    return _stop_alive(context, attempt)


def _unsent(context: RuleContext, pending: Try) -> Decision | None:
    """A submission that could not be sent, or whose answer is lost, is not sent again: the platform is asked for it.

    None where it was answered, where it is there, and where an agent starts it: such an order cannot be taken back.
    """
    if pending.how is not Submission.CLONE or context.seen.next_number > pending.number:
        return None
    if result(context, "ResubmitJob", Done.DONE, Done.ALREADY, *_NOT_STARTED) is not None:
        return None
    reason = (
        f"{who_ordered(context.incident)} ordered a stop; whether {pending.name} was started is asked of the platform"
    )
    attempt = context.attempt
    if attempt is None:
        return context.unread("order.stop_unseen", "order.stop_unseen_limit", reason, context.unseen_for)
    if attempt.status is not AttemptStatus.GONE:
        return None
    if not context.has_ended(attempt):
        return context.stay("order.stop_unsent", reason)
    context = dataclasses.replace(context, incident=undo_try(context.incident))
    return _stopped(context, f"{context.incident.attempt} had ended, and nothing was started in its place")


def _stop_alive(context: RuleContext, attempt: AttemptView) -> Decision:
    incident = context.incident
    if incident.phase is Phase.RESUBMITTING:
        return context.move("order.stop_lives", f"{attempt.name} is {attempt.status} after all", Phase.VERIFYING)
    if context.policy.shadow:
        return shadow(context, f"stop {attempt.name}, as {who_ordered(incident)} ordered")
    if incident.phase is Phase.STOPPING:
        return _stopping(context, attempt)
    if (incident.order or {}).get("checkpoint") and _can_save(attempt):
        saving = _saving(context, attempt, "order.stop")
        if isinstance(saving, Decision):
            return saving
        context, text = context.changed(ask=saving), f" {_outcome(saving)}"
    else:
        text = ""
    return _send_stop(context, attempt, f"{who_ordered(incident)} ordered {attempt.name} to be stopped.{text}")


def _can_save(attempt: AttemptView) -> bool:
    """Something of it runs that could."""
    is_queued = attempt.start is not None and attempt.start.is_queued
    return attempt.status is AttemptStatus.RUNNING and not is_queued


def _saving(context: RuleContext, attempt: AttemptView, rule: str) -> Decision | CheckpointAsk:
    """A Decision while the checkpoint is asked for and waited for; then the answered request."""
    ask = context.incident.halt.ask
    if context.incident.phase is not Phase.CHECKPOINTING or ask is None or ask.attempt != attempt.name:
        return begin_checkpoint(context, attempt, f"{rule}_save")
    if ask.outcome is not None:
        return ask
    reply = getattr(context.seen.reply, "value", None)
    if reply is not None and reply.request_id == ask.request_id:
        return dataclasses.replace(ask, outcome=reply.outcome, step=reply.step, why=reply.why[:400])
    refused = result(context, "RequestCheckpoint", Done.REFUSED)
    if refused is not None:
        return dataclasses.replace(ask, outcome="refused", why=refused.detail[:400])
    if context.now >= ask.deadline_at:
        return dataclasses.replace(ask, outcome="late", why="no answer by the deadline")
    again: tuple[Action, ...] = ()
    if result(context, "RequestCheckpoint", Done.UNAVAILABLE) is not None:
        again = (
            RequestCheckpoint(
                request_id=ask.request_id, attempt=ask.attempt, deadline_at=ask.deadline_at, why="ordered"
            ),
        )
    return context.stay(f"{rule}_saving", "waiting for the checkpoint", *again, until=ask.deadline_at)


def _outcome(ask: CheckpointAsk) -> str:
    step = f" at step {ask.step}" if ask.step is not None else ""
    return f"Checkpoint {ask.outcome}{step}{f' ({ask.why})' if ask.why else ''}."


def _send_stop(context: RuleContext, attempt: AttemptView, reason: str) -> Decision:
    """Never held: what stays held in a queue is what a person releases again."""
    actions: tuple[Action, ...] = (StopJob(attempt=attempt.name, why=f"ordered by {who_ordered(context.incident)}"),)
    others = tuple(one for one in context.incident.halt.stopped_attempts if one != attempt.name)
    return context.move(
        "order.stop_now",
        f"{reason} Stopping it.",
        Phase.STOPPING,
        *_registered(context, attempt),
        *actions,
        stop_asked_at=context.now,
        stop_begun_at=context.now,
        stop_hold=False,
        stopped_attempts=(*others, attempt.name),
    )


def _registered(context: RuleContext, attempt: AttemptView) -> tuple[Action, ...]:
    """The platform's own start, where its registration was lost: else a later order would begin with the one before."""
    last = context.incident.resubmission.tries[-1] if context.incident.resubmission.tries else None
    is_known = not context.seen.current or context.seen.current == attempt.name
    if last is None or not last.is_theirs or last.name != attempt.name or is_known:
        return ()
    return (AdoptAttempt(name=last.name, number=last.number, clone_of=last.clone_of, why="not registered yet"),)


def _stopping(context: RuleContext, attempt: AttemptView) -> Decision:
    if context.incident.halt.stop_hold or attempt.name not in context.incident.halt.stopped_attempts:
        return _send_stop(context, attempt, f"{who_ordered(context.incident)} ordered it to be stopped for good.")
    refused = result(context, "StopJob", Done.REFUSED)
    may_lag = context.platform.orders_wait and context.in_phase < context.policy.timing.look_max
    if refused is not None and not may_lag:  # of a start that is over an order is refused as stale
        return context.hand_over("order.stop_refused", f"the platform refused to stop {attempt.name}: {refused.detail}")
    if context.in_phase >= context.policy.timing.stop_limit:
        return context.hand_over(
            "order.stop_stuck",
            f"{attempt.name} is still {attempt.status}, {span_word(context.in_phase)} after the stop",
        )
    waited = context.now - (context.incident.halt.stop_asked_at or context.incident.phase_entered_at)
    is_lost = (
        result(context, "StopJob", Done.UNAVAILABLE, Done.PENDING) is not None
        or waited >= context.policy.timing.look_max
    )
    if attempt.status not in (AttemptStatus.STOPPING, AttemptStatus.GONE) and is_lost:
        again = StopJob(attempt=attempt.name, why="not stopping yet")
        return context.stay("order.stop_again", f"{attempt.name} is still {attempt.status}; asking again", again)
    return context.stay("order.stop_waiting", f"{attempt.name} is {attempt.status}")


def _stopped(context: RuleContext, what: str) -> Decision:
    ask = context.incident.halt.ask
    saved = f" {_outcome(ask)}" if ask is not None and ask.outcome is not None else ""
    job = context.incident.job_id or ""
    return context.close(
        STOPPED_BY_ORDER,
        f"{what}; {who_ordered(context.incident)} ordered it stopped, and it stays so: nothing starts it again but an "
        f"order (`rekindle resubmit {job}`).{saved}",
        Phase.STOPPED,
        severity=Severity.INFO,
    )


# ---- move ------------------------------------------------------------------------------------------------------------


def _move(context: RuleContext) -> Decision | None:
    incident, attempt = context.incident, context.attempt
    if attempt is None or incident.phase not in (*_BEFORE, Phase.CHECKPOINTING):
        return None
    node = str((incident.order or {}).get("move"))
    if attempt.status.has_ended or attempt.successor is not None:
        # Its end has its own reasons, and they are looked into as if nobody had asked for anything.
        reason = f"{attempt.name} has left {node} without an order ({attempt.status}): the order to move it is over"
        if incident.phase is Phase.CHECKPOINTING:
            reason += "; what it was asked to save is not waited for"
        over = context.changed(order=None, fault=FaultClass.UNCLEAR, fault_rule="", ask=None)
        if incident.phase is Phase.CHECKPOINTING:
            return over.move("order.move_over", reason, Phase.HOLDING)
        return over.stay("order.move_over", reason)
    if context.policy.shadow:
        return shadow(context, f"save {attempt.name} and move it off {node}, as {who_ordered(incident)} ordered")
    if not _can_save(attempt):
        return _left_running(context, attempt, f"it is {attempt.status}, and cannot save now")
    saving = _saving(context, attempt, "order.move")
    if isinstance(saving, Decision):
        return saving
    context = context.changed(ask=saving)
    if saving.outcome != "saved":
        return _left_running(context, attempt, _outcome(saving))
    reason = f"{who_ordered(incident)} ordered {node} to be repaired. {_outcome(saving)} It continues on other nodes."
    return begin_stop(context, "order.move_saved", reason)


def _left_running(context: RuleContext, attempt: AttemptView, text: str) -> Decision:
    node = (context.incident.order or {}).get("move")
    return context.close(
        "order.move_unsaved",
        f"{who_ordered(context.incident)} ordered {node} to be repaired, and {attempt.name} "
        f"runs on it. {text} It is left "
        "running, for nothing is wrong with it; the node waits until it has ended",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )
