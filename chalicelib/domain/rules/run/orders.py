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

from chalicelib.domain.decision.rule import first_decision, rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, result, span_word, why_unknown
from chalicelib.domain.model.action import Action, AdoptAttempt, Done, RequestCheckpoint, Severity, StopJob
from chalicelib.domain.model.incident import STOPPED_BY_ORDER, CheckpointAsk, Incident, Phase, Try
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.start_view import Submission
from chalicelib.domain.rules.run.platform_restart import PLATFORM_RESTARTED, adopt
from chalicelib.domain.rules.run.queued import not_listed
from chalicelib.domain.rules.run.starts import undo_try
from chalicelib.domain.run.beside import failed_beside
from chalicelib.domain.run.first_response import begin_checkpoint, begin_stop, shadow
from rekindle.protocol.signals import FaultClass

_BEFORE: Final = (Phase.OPEN, Phase.HOLDING, Phase.WATCHING)
_NOT_STARTED: Final = (Done.REFUSED, Done.CAPACITY, Done.NAME_TAKEN, Done.SIBLING, Done.HELD)


def stops_for_good(incident: Incident) -> bool:
    """An order to stop stands."""
    return incident.order is not None and incident.order.get("do") == "stop"


def who_ordered(incident: Incident) -> str:
    """Who gave the order that stands."""
    return str((incident.order or {}).get("who") or "an operator")


# ---- stop ----


@rule()
def stop_ordered(context: RuleContext) -> Decision | RuleContext | None:
    """A person ordered the run to be stopped for good: [a stop that was ordered](#a-stop-that-was-ordered).

    A submission that is under way is settled first: what was sent cannot be called back.
    """
    return first_decision(STOP_ORDERED, context) if stops_for_good(context.incident) else None


@rule("order.stop_unsent", "order.stop_unseen", "order.stop_unseen_limit", "order.stop")
def order_stop_unsent(context: RuleContext) -> Decision | None:
    """A submission that could not be sent, or whose answer is lost, is asked of the platform, and not sent again."""
    pending = _under_way(context)
    if pending is None or not _is_unsent(context, pending):
        return None
    attempt = context.attempt
    reason = (
        f"{who_ordered(context.incident)} ordered a stop; whether {pending.name} was started is asked of the platform"
    )
    if attempt is None:
        return context.unread("order.stop_unseen", "order.stop_unseen_limit", reason, context.unseen_for)
    if not context.has_ended(attempt):
        return context.stay("order.stop_unsent", reason)
    return _nothing_started(context)


@rule("order.stop")
def order_stop_not_started(context: RuleContext) -> Decision | None:
    """The submission was not carried out: closed, the run stays stopped."""
    if _under_way(context) is None or result(context, "ResubmitJob", *_NOT_STARTED) is None:
        return None
    return _nothing_started(context)


@rule("order.stop_unseen", "order.stop_unseen_limit")
def order_stop_unseen(context: RuleContext) -> Decision | None:
    """The run cannot be read: wait; paged at `timing.stop_limit_s`, a person at `resubmission.capacity_limit_s`."""
    if context.attempt is not None or _under_way(context) is not None:
        return None
    unread = f"the attempt cannot be read: {why_unknown(context.seen.attempt)}"
    reason = f"{who_ordered(context.incident)} ordered a stop, and {unread}"
    return context.unread("order.stop_unseen", "order.stop_unseen_limit", reason, context.unseen_for)


@rule(STOPPED_BY_ORDER)
def order_stop(context: RuleContext) -> Decision | None:
    """It has ended: closed, it stays stopped. A start that took its place is the run now, and is stopped as well."""
    attempt = context.attempt
    if attempt is None or _under_way(context) is not None or not context.has_ended(attempt):
        return None
    if attempt.successor is not None:
        adopted = first_decision(PLATFORM_RESTARTED, context)
        return adopted or adopt(context, attempt, attempt.successor)
    return _stopped(context, f"{attempt.name} has ended ({attempt.status})")


@rule("attempt.not_listed")
def order_stop_gone(context: RuleContext) -> Decision | None:
    """The platform does not list it: asked once more."""
    return first_decision((not_listed,), context) if _to_stop(context) is not None else None


@rule("order.stop_lives")
def order_stop_lives(context: RuleContext) -> Decision | None:
    """It lives, though another was to be started in its place: watched first."""
    attempt = _to_stop(context)
    if attempt is None or context.incident.phase is not Phase.RESUBMITTING:
        return None
    return context.move("order.stop_lives", f"{attempt.name} is {attempt.status} after all", Phase.VERIFYING)


@rule("guard.shadow")
def order_stop_shadow(context: RuleContext) -> Decision | None:
    """Shadow mode: only told."""
    attempt = _to_stop(context)
    if attempt is None or not context.policy.shadow:
        return None
    return shadow(context, f"stop {attempt.name}, as {who_ordered(context.incident)} ordered")


@rule("order.stop_refused")
def order_stop_refused(context: RuleContext) -> Decision | None:
    """The platform refuses to stop it: a person."""
    attempt, refused = _being_stopped(context), result(context, "StopJob", Done.REFUSED)
    if attempt is None or refused is None:
        return None
    if context.platform.orders_wait and context.in_phase < context.policy.timing.look_max:
        return None  # of a start that is over an order is refused as stale, and what is shown may lag that
    return context.hand_over("order.stop_refused", f"the platform refused to stop {attempt.name}: {refused.detail}")


@rule("order.stop_stuck")
def order_stop_stuck(context: RuleContext) -> Decision | None:
    """It has not ended for `timing.stop_limit_s`: a person."""
    attempt = _being_stopped(context)
    if attempt is None or context.in_phase < context.policy.timing.stop_limit:
        return None
    return context.hand_over(
        "order.stop_stuck",
        f"{attempt.name} is still {attempt.status}, {span_word(context.in_phase)} after the stop",
    )


@rule("order.stop_again", "order.stop_waiting")
def order_stop_again(context: RuleContext) -> Decision | None:
    """It is being stopped, and has not ended yet: wait; asked again where the stop may not have arrived."""
    attempt = _being_stopped(context)
    if attempt is None:
        return None
    waited = context.now - (context.incident.halt.stop_asked_at or context.incident.phase_entered_at)
    is_lost = (
        result(context, "StopJob", Done.UNAVAILABLE, Done.PENDING) is not None
        or waited >= context.policy.timing.look_max
    )
    if attempt.status not in (AttemptStatus.STOPPING, AttemptStatus.GONE) and is_lost:
        again = StopJob(attempt=attempt.name, why="not stopping yet")
        return context.stay("order.stop_again", f"{attempt.name} is still {attempt.status}; asking again", again)
    return context.stay("order.stop_waiting", f"{attempt.name} is {attempt.status}")


@rule("order.stop_save", "order.stop_saving")
def order_stop_save(context: RuleContext) -> Decision | RuleContext | None:
    """With a checkpoint, and it can save: asked for one; waited for up to the deadline."""
    attempt = _to_stop(context)
    if attempt is None or context.incident.phase is Phase.STOPPING:
        return None
    if not (context.incident.order or {}).get("checkpoint") or not _can_save(attempt):
        return None
    saving = _saving(context, attempt, "order.stop")
    return saving if isinstance(saving, Decision) else context.changed(ask=saving)


@rule("order.stop_now")
def order_stop_now(context: RuleContext) -> Decision | None:
    """Saved, too late, or no save requested: stopped. Never held in a queue, where a person would release it again."""
    attempt = _to_stop(context)
    if attempt is None:
        return None
    who, ask = who_ordered(context.incident), context.incident.halt.ask
    if context.incident.phase is Phase.STOPPING:
        reason = f"{who} ordered it to be stopped for good."
    else:
        saves = (context.incident.order or {}).get("checkpoint") and _can_save(attempt)
        saved = f" {_outcome(ask)}" if saves and ask is not None else ""
        reason = f"{who} ordered {attempt.name} to be stopped.{saved}"
    others = (name for name in context.incident.halt.stopped_attempts if name != attempt.name)
    return context.move(
        "order.stop_now",
        f"{reason} Stopping it.",
        Phase.STOPPING,
        *_registered(context, attempt),
        StopJob(attempt=attempt.name, why=f"ordered by {who}"),
        stop_asked_at=context.now,
        stop_begun_at=context.now,
        stop_hold=False,
        stopped_attempts=(*others, attempt.name),
    )


STOP_ORDERED: Final = (
    order_stop_unsent,
    order_stop_not_started,
    order_stop_unseen,
    order_stop,
    order_stop_gone,
    order_stop_lives,
    order_stop_shadow,
    order_stop_refused,
    order_stop_stuck,
    order_stop_again,
    order_stop_save,
    order_stop_now,
)


def _under_way(context: RuleContext) -> Try | None:
    """The submission that is not settled yet."""
    is_resubmitting = context.incident.phase is Phase.RESUBMITTING
    return context.incident.resubmission.pending if is_resubmitting else None


def _is_unsent(context: RuleContext, pending: Try) -> bool:
    """Its answer is lost, or it was never sent. Not where an agent starts it: such an order cannot be taken back."""
    if pending.how is not Submission.CLONE or context.seen.next_number > pending.number:
        return False
    if result(context, "ResubmitJob", Done.DONE, Done.ALREADY, *_NOT_STARTED) is not None:
        return False
    return context.attempt is None or context.attempt.status is AttemptStatus.GONE


def _to_stop(context: RuleContext) -> AttemptView | None:
    """The attempt, where no submission is under way."""
    return context.attempt if _under_way(context) is None else None


def _being_stopped(context: RuleContext) -> AttemptView | None:
    """The attempt, where it has been asked to stop for good already."""
    attempt, halt = _to_stop(context), context.incident.halt
    if attempt is None or context.incident.phase is not Phase.STOPPING:
        return None
    return None if halt.stop_hold or attempt.name not in halt.stopped_attempts else attempt


def _nothing_started(context: RuleContext) -> Decision:
    context = dataclasses.replace(context, incident=undo_try(context.incident))
    return _stopped(context, f"{context.incident.attempt} had ended, and nothing was started in its place")


def _can_save(attempt: AttemptView) -> bool:
    """Something of it runs that could."""
    is_queued = attempt.start is not None and attempt.start.is_queued
    return attempt.status is AttemptStatus.RUNNING and not is_queued


def _saving(context: RuleContext, attempt: AttemptView, name: str) -> Decision | CheckpointAsk:
    """A Decision while the checkpoint is asked for and waited for; then the answered request."""
    ask = context.incident.halt.ask_of(attempt.name)
    if context.incident.phase is not Phase.CHECKPOINTING or ask is None:
        return begin_checkpoint(context, attempt, f"{name}_save")
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
    return context.stay(f"{name}_saving", "waiting for the checkpoint", *again, until=ask.deadline_at)


def _outcome(ask: CheckpointAsk) -> str:
    step = f" at step {ask.step}" if ask.step is not None else ""
    return f"Checkpoint {ask.outcome}{step}{f' ({ask.why})' if ask.why else ''}."


def _registered(context: RuleContext, attempt: AttemptView) -> tuple[Action, ...]:
    """The platform's own start, where its registration was lost: else a later order would begin with the one before."""
    last = context.incident.resubmission.tries[-1] if context.incident.resubmission.tries else None
    is_known = not context.seen.current or context.seen.current == attempt.name
    if last is None or not last.is_theirs or last.name != attempt.name or is_known:
        return ()
    return (AdoptAttempt(name=last.name, number=last.number, clone_of=last.clone_of, why="not registered yet"),)


def _stopped(context: RuleContext, what: str) -> Decision:
    incident, others = context.incident, failed_beside(context.incident)
    reason = (
        f"{what}; {who_ordered(incident)} ordered it stopped, and it stays so: nothing starts it again but an order "
        f"(`rekindle resubmit {incident.job_id or ''}`)."
    )
    if incident.halt.ask is not None and incident.halt.ask.outcome is not None:
        reason += f" {_outcome(incident.halt.ask)}"
    if others:
        reason += f" {', '.join(others)}, which others have started, failed after the order came, and is left so."
    severity = Severity.WARNING if others else Severity.INFO
    return context.close(STOPPED_BY_ORDER, reason, Phase.STOPPED, severity=severity)


# ---- move ----


@rule()
def move_ordered(context: RuleContext) -> Decision | RuleContext | None:
    """A person ordered a node under the run to be repaired: [a move that was ordered](#a-move-that-was-ordered)."""
    is_ordered = (context.incident.order or {}).get("do") == "move" and not context.incident.resubmission.tries
    if not is_ordered or context.attempt is None or context.incident.phase not in (*_BEFORE, Phase.CHECKPOINTING):
        return None
    return first_decision(MOVE_ORDERED, context)


@rule("order.move_over")
def order_move_over(context: RuleContext) -> Decision | None:
    """It ended meanwhile, for reasons of its own: the order is over, and its end is looked into as any other."""
    attempt = context.attempt_seen
    if not attempt.status.has_ended and attempt.successor is None:
        return None
    reason = (
        f"{attempt.name} has left {_node(context)} without an order ({attempt.status}): the order to move it is over"
    )
    over = context.changed(order=None, fault=FaultClass.UNCLEAR, fault_rule="", ask=None)
    if context.incident.phase is Phase.CHECKPOINTING:
        reason += "; what it was asked to save is not waited for"
        return over.move("order.move_over", reason, Phase.HOLDING)
    return over.stay("order.move_over", reason)


@rule("guard.shadow")
def order_move_shadow(context: RuleContext) -> Decision | None:
    """Shadow mode: only told."""
    if not context.policy.shadow:
        return None
    name, who = context.attempt_seen.name, who_ordered(context.incident)
    return shadow(context, f"save {name} and move it off {_node(context)}, as {who} ordered")


@rule("order.move_save", "order.move_saving")
def order_move_save(context: RuleContext) -> Decision | RuleContext | None:
    """It is asked to save; waited for up to the deadline."""
    attempt = context.attempt_seen
    if not _can_save(attempt):
        return None
    saving = _saving(context, attempt, "order.move")
    return saving if isinstance(saving, Decision) else context.changed(ask=saving)


@rule("order.move_unsaved")
def order_move_unsaved(context: RuleContext) -> Decision | None:
    """It could not save, or does not run: left running; the node waits for it."""
    attempt, ask = context.attempt_seen, context.incident.halt.ask
    if not _can_save(attempt):
        text = f"it is {attempt.status}, and cannot save now"
    elif ask is not None and ask.outcome != "saved":
        text = _outcome(ask)
    else:
        return None
    return context.close(
        "order.move_unsaved",
        f"{who_ordered(context.incident)} ordered {_node(context)} to be repaired, and {attempt.name} "
        f"runs on it. {text} It is left "
        "running, for nothing is wrong with it; the node waits until it has ended",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


@rule("order.move_saved")
def order_move_saved(context: RuleContext) -> Decision | None:
    """It has saved: [stopped](#before-a-stop), and started on other nodes."""
    ask = context.incident.halt.ask
    saved = f"{_outcome(ask)} " if ask is not None else ""
    who = who_ordered(context.incident)
    reason = f"{who} ordered {_node(context)} to be repaired. {saved}It continues on other nodes."
    return begin_stop(context, "order.move_saved", reason)


MOVE_ORDERED: Final = (order_move_over, order_move_shadow, order_move_save, order_move_unsaved, order_move_saved)


def _node(context: RuleContext) -> str:
    return str((context.incident.order or {}).get("move"))


# Asked in every phase, before its own rules.
ORDERED: Final = (stop_ordered, move_ordered)
