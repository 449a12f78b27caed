"""The phase Checkpointing: an attempt was asked to save; wait for its answer, then decide what follows."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.decision.rule import first_decision, rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    result,
    span_word,
)
from chalicelib.domain.faults.heartbeat_claims import FRESH, has_fresh_heartbeat
from chalicelib.domain.model.action import Done, RequestCheckpoint
from chalicelib.domain.model.incident import CheckpointAsk
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.rules.run.cancelled import CANCELLED
from chalicelib.domain.rules.run.checkpoint_answered import (
    asked,
    checkpoint_completed,
    checkpoint_completed_poisoned,
    checkpoint_ended,
    checkpoint_may_heal,
    checkpoint_node_lost,
    checkpoint_order_owner_stopped,
    checkpoint_owner_stopped,
    checkpoint_rolled_back,
    checkpoint_saved,
    heal_saved,
    notice_over,
    order_checkpoint,
    playbook_saved_then_hand_over,
)
from chalicelib.domain.rules.run.checkpoint_needless import NEEDLESS
from chalicelib.domain.rules.run.two_live import two_live_over_meanwhile, two_live_saved
from chalicelib.domain.run.finishing import ended_unproven_unordered
from chalicelib.domain.run.first_response import begin_stop

# A checkpoint on a shared path is polled as often as the agent inspects the path, every ten seconds, but only for some
# minutes: a deadline may be a day away.
SHARED_PATH_POLL: Final = timedelta(seconds=10)
SHARED_PATH_POLLED_FOR: Final = timedelta(minutes=5)


@rule("checkpoint.lost")
def checkpoint_lost(context: RuleContext) -> Decision | None:
    """The request is not on record, which cannot happen by our own transitions: stopped."""
    is_lost = context.incident.halt.ask is None
    return begin_stop(context, "checkpoint.lost", "the request is not on record.") if is_lost else None


@rule("checkpoint.stopping", "checkpoint.stop_stuck")
def checkpoint_stopping(context: RuleContext) -> Decision | None:
    """Its owner, or its own time limit, stops it: wait to see how it ends; a person at `timing.stop_limit_s`.

    How it ends says which, and a stop of ours would hide it.
    """
    attempt = context.attempt
    if attempt is None or attempt.status is not AttemptStatus.STOPPING:
        return None
    if context.in_state >= context.policy.timing.stop_limit:
        return context.hand_over(
            "checkpoint.stop_stuck", f"{attempt.name} has been stopping for {span_word(context.in_state)}"
        )
    return context.stay(
        "checkpoint.stopping", f"{attempt.name} is being stopped, and not by us; waiting to see how it ends"
    )


@rule()
def checkpoint_answer(context: RuleContext) -> RuleContext:
    """It has answered, or has ended before it did: noted."""
    ask, attempt = asked(context), context.attempt
    reply = context.seen.reply.value if isinstance(context.seen.reply, Known) else None
    if ask.outcome is not None:
        return context
    if reply is not None and reply.request_id == ask.request_id:
        return _answered(context, reply.outcome, reply.why, step=reply.step)
    if attempt is not None and context.has_ended(attempt):
        return _answered(context, "late", f"{attempt.name} ended before it answered")
    return context


@rule()
def checkpoint_needless(context: RuleContext) -> Decision | None:
    """The picture has changed meanwhile: [no longer needed](#a-checkpoint-that-is-no-longer-needed).

    What makes way for another attempt is stopped whatever has become of its own trouble.
    """
    attempt = context.attempt
    if attempt is None or context.ordered is not None or context.incident.halt.for_sibling is not None:
        return None
    is_over = asked(context).outcome is not None and attempt.status.has_ended
    return None if is_over else first_decision(NEEDLESS, context)


@rule()
def checkpoint_late(context: RuleContext) -> RuleContext:
    """The request is refused, its deadline has passed, or nothing in the run can answer any more: noted."""
    ask = asked(context)
    if ask.outcome is not None:
        return context
    refused = result(context, "RequestCheckpoint", Done.REFUSED)
    if refused is not None:
        return _answered(context, "refused", refused.detail)
    late = "no answer by the deadline" if context.now >= ask.deadline_at else _nothing_answers(context, ask)
    return _answered(context, "late", late) if late else context


@rule("checkpoint.again")
def checkpoint_again(context: RuleContext) -> Decision | None:
    """The request could not be written: again."""
    ask = asked(context)
    if ask.outcome is not None or result(context, "RequestCheckpoint", Done.UNAVAILABLE) is None:
        return None
    action = RequestCheckpoint(
        request_id=ask.request_id, attempt=ask.attempt, deadline_at=ask.deadline_at, why=f"{context.incident.fault}"
    )
    return context.stay(
        "checkpoint.again", "the request could not be written; trying again", action, until=ask.deadline_at
    )


@rule("checkpoint.waiting")
def checkpoint_waiting(context: RuleContext) -> Decision | None:
    """It has not answered yet: wait, until its deadline."""
    ask = asked(context)
    if ask.outcome is not None:
        return None
    return context.stay("checkpoint.waiting", "waiting for the checkpoint", until=_look_by(context, ask))


CHECKPOINTING: Final = (
    checkpoint_lost,
    checkpoint_stopping,
    checkpoint_answer,
    two_live_over_meanwhile,
    checkpoint_needless,
    checkpoint_late,
    checkpoint_again,
    checkpoint_waiting,
    order_checkpoint,
    checkpoint_order_owner_stopped,
    checkpoint_completed_poisoned,
    ended_unproven_unordered,
    checkpoint_completed,
    *CANCELLED,
    checkpoint_owner_stopped,
    two_live_saved,
    heal_saved,
    notice_over,
    checkpoint_may_heal,
    playbook_saved_then_hand_over,
    checkpoint_ended,
    checkpoint_rolled_back,
    checkpoint_node_lost,
    checkpoint_saved,
)


def _nothing_answers(context: RuleContext, ask: CheckpointAsk) -> str:
    """Why the attempt can no longer answer, whatever the deadline; empty where it still can.

    One thread of the monitor reads requests every 5 s and writes the heartbeat every 15 s. It is not the training
    thread, so it also does so while that one saves or is stuck. Where heartbeats had been written and then none was for
    four of their intervals (by the store's clock) while the request was there, that thread is gone and cannot answer.
    An unreadable heartbeat shows nothing, nor does a run whose heartbeat was never read. A checkpoint that a person
    ordered is awaited until the deadline.
    """
    attempt = context.attempt
    if attempt is None or attempt.status is not AttemptStatus.RUNNING or attempt.heartbeat_at is None:
        return ""
    if context.ordered is not None or context.platform.relays_heartbeats:
        return ""
    if context.now < ask.asked_at + context.policy.timing.hang_deadline:
        return ""
    if has_fresh_heartbeat(attempt, now=context.now):
        return ""
    return f"no heartbeat since {attempt.heartbeat_at:%H:%M:%S}: nothing in it reads requests"


def _look_by(context: RuleContext, ask: CheckpointAsk) -> datetime:
    """When to look next: at the deadline at the latest.

    Earlier where the attempt may be found lifeless before it, and where the attempt has no mailbox: a checkpoint on a
    shared path causes no event, so it is polled.
    """
    attempt = context.attempt
    if attempt is not None and not context.platform.relays_heartbeats and attempt.heartbeat_at is not None:
        judged_at = max(attempt.heartbeat_at + FRESH, ask.asked_at + context.policy.timing.hang_deadline)
        return min(ask.deadline_at, judged_at) if judged_at > context.now else ask.deadline_at
    start = attempt.start if attempt is not None else None
    if start is None or start.has_mailbox or context.in_phase >= SHARED_PATH_POLLED_FOR:
        return ask.deadline_at
    return min(ask.deadline_at, context.now + max(SHARED_PATH_POLL, context.policy.timing.look_min))


def _answered(context: RuleContext, outcome: str, why: str, *, step: int | None = None) -> RuleContext:
    """The context with the outcome of the request recorded in the Incident."""
    return context.changed(ask=dataclasses.replace(asked(context), outcome=outcome, step=step, why=why[:400]))
