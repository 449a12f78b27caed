"""Checkpointing: what is awaited of an attempt that was asked to save, and what is done with its answer."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.claims.finishing import completed_poisoned, decide_finishing
from chalicelib.domain.claims.liveness import claims_are_over, has_outlived_claim, weigh_claim
from chalicelib.domain.claims.movement import new_watch
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    result,
    span_word,
    step_word,
    stop_is_ours,
    stopped_after_order,
    story,
    subject,
)
from chalicelib.domain.fault_specs.faults import LOSS_FAULTS
from chalicelib.domain.faults.loss import BadLossState, bad_fault, marked_healed, turn_of
from chalicelib.domain.faults.stalls import STALLED_HEARTBEAT, is_past_stall, stalled_at, stalls_of
from chalicelib.domain.model.action import Done, Notify, RequestCheckpoint, Severity
from chalicelib.domain.model.incident import CheckpointAsk, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import STALLED, TRAINING, AttemptStatus, AttemptView
from chalicelib.domain.policy.playbooks import ROLL_BACKS, Response
from chalicelib.domain.rules.run.ended import attempt_died, prepare_resubmit
from chalicelib.domain.rules.run.loss import close_healed, roll_back, watch_loss
from chalicelib.domain.rules.run.opening import recovered_itself
from chalicelib.domain.run.first_response import begin_stop
from rekindle.protocol.signals import FaultClass

# The agent judges a shared path every ten seconds. Looks that near have an end: a deadline may be a day away.
NEAR: Final = timedelta(seconds=10)
NEAR_FOR: Final = timedelta(minutes=5)
WHOLE_SECOND: Final = timedelta(seconds=1)
LIFELESS: Final = timedelta(seconds=60)  # four heartbeats (rekindle/monitor/base/settings.py, heartbeat_s)


def decide_checkpointing(context: RuleContext) -> Decision:
    """CHECKPOINTING."""
    ask = context.incident.halt.ask
    attempt = context.attempt
    if ask is None:  # cannot happen from our own transitions; never trust it to stay so
        return begin_stop(context, "checkpoint.lost", "the request is not on record.")
    if attempt is not None and attempt.status is AttemptStatus.STOPPING:
        return _someone_stops(context, attempt)
    if ask.outcome is not None:
        return _already_answered(context, ask)
    from_reply = _reply(context, ask)
    if from_reply is not None:
        return from_reply
    if attempt is not None and context.has_ended(attempt):
        return _after_ask(context, _answered(ask, "late", None, f"{attempt.name} ended before it answered"))
    if attempt is not None and context.ordered is None:
        changed = _no_longer_needed(context, attempt)
        if changed is not None:
            return changed
    refused = result(context, "RequestCheckpoint", Done.REFUSED)
    if refused is not None:
        return _after_ask(context, _answered(ask, "refused", None, refused.detail))
    late = "no answer by the deadline" if context.now >= ask.deadline_at else _nothing_answers(context, ask)
    if late:
        return _after_ask(context, _answered(ask, "late", None, late))
    if result(context, "RequestCheckpoint", Done.UNAVAILABLE) is not None:
        action = RequestCheckpoint(
            request_id=ask.request_id, attempt=ask.attempt, deadline_at=ask.deadline_at, why=f"{context.incident.fault}"
        )
        return context.stay(
            "checkpoint.again", "the request could not be written; trying again", action, until=ask.deadline_at
        )
    return context.stay("checkpoint.waiting", "waiting for the checkpoint", until=_look_by(context, ask))


def _nothing_answers(context: RuleContext, ask: CheckpointAsk) -> str:
    """Why no answer can come from it, whatever the deadline; empty where one still can.

    One thread of the monitor reads requests every 5 s and writes the heartbeat every 15 s, beside the training thread
    and also while that one saves or is stuck. The run's heartbeats were there, and none has been written for four of
    their intervals (by the store's clock), through all of which the request lay there: that thread is gone, and with
    it the answer. A heartbeat that cannot be read says nothing, nor does a run of which none has ever been read. A
    person who has ordered the checkpoint waits for all of the deadline.
    """
    attempt = context.attempt
    if (
        attempt is None
        or context.ordered is not None
        or context.now < ask.asked_at + context.policy.timing.hang_deadline
    ):
        return ""
    if (
        attempt.status is not AttemptStatus.RUNNING
        or attempt.heartbeat_at is None
        or context.platform.relays_heartbeats
    ):
        return ""
    if context.now - attempt.heartbeat_at < LIFELESS:
        return ""
    return f"no heartbeat since {attempt.heartbeat_at:%H:%M:%S}: nothing in it reads requests"


def _look_by(context: RuleContext, ask: CheckpointAsk) -> datetime:
    """No event reports the answer to a signal: a checkpoint on a shared path wakes no Incident."""
    attempt = context.attempt
    if attempt is not None and not context.platform.relays_heartbeats and attempt.heartbeat_at is not None:
        judged_at = max(attempt.heartbeat_at + LIFELESS, ask.asked_at + context.policy.timing.hang_deadline)
        return min(ask.deadline_at, judged_at) if judged_at > context.now else ask.deadline_at
    start = attempt.start if attempt is not None else None
    if start is None or start.has_mailbox or context.in_phase >= NEAR_FOR:
        return ask.deadline_at
    return min(ask.deadline_at, context.now + max(NEAR, context.policy.timing.look_min))


def _already_answered(context: RuleContext, ask: CheckpointAsk) -> Decision:
    """What its ranks report, or a place to go back to, is waited for; meanwhile the picture may change."""
    attempt = context.attempt
    if attempt is not None and not attempt.status.has_ended and context.ordered is None:
        changed = _no_longer_needed(context, attempt)
        if changed is not None:
            return changed
    return _after_ask(context, ask)


def _reply(context: RuleContext, ask: CheckpointAsk) -> Decision | None:
    reply = getattr(context.seen.reply, "value", None)
    if reply is None or reply.request_id != ask.request_id:
        return None
    return _after_ask(context, _answered(ask, reply.outcome, reply.step, reply.why))


def _someone_stops(context: RuleContext, attempt: AttemptView) -> Decision:
    """Its owner, or its own time limit: how it ends says which, and a stop of ours would hide it."""
    if context.in_state >= context.policy.timing.stop_limit:
        return context.hand_over(
            "checkpoint.stop_stuck", f"{attempt.name} has been stopping for {span_word(context.in_state)}"
        )
    return context.stay(
        "checkpoint.stopping", f"{attempt.name} is being stopped, and not by us; waiting to see how it ends"
    )


def _no_longer_needed(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """The picture has changed while the run was asked to save."""
    incident = context.incident
    bout = incident.loss.bout
    if (
        incident.fault is FaultClass.NON_FINITE
        and incident.is_poisoned
        and context.policy.playbook(incident.fault).response in ROLL_BACKS
    ):
        reason = f"{story(context)} What it would save could not be resumed from."
        return roll_back(context, attempt, "checkpoint.poisoned", reason)
    if incident.fault in LOSS_FAULTS and bout is not None and bout.healed_step is not None:
        return _healed_meanwhile(context, attempt)
    finishing = decide_finishing(context, attempt, group="checkpoint")
    if finishing is not None:
        return finishing
    if attempt.status is AttemptStatus.REPAIRING:
        to = Phase.VERIFYING if context.incident.resubmission.tries else Phase.HOLDING
        return context.changed(**new_watch()).move(
            "defer.platform_repair",
            f"the platform repairs {attempt.name} automatically ({attempt.detail}); two actors must not repair one run",
            to,
        )
    if claims_are_over(context):
        reason = f"{story(context)} But that node is well since, its agents say; {attempt.name} continues"
        to = Phase.VERIFYING if context.incident.resubmission.tries else Phase.HOLDING
        return context.changed(**new_watch()).move("checkpoint.node_mended", reason, to)
    if not context.incident.resubmission.tries:
        if _is_only_notified(context, attempt):
            notice = Notify(
                severity=Severity.WARNING, title=f"{subject(context)}: {context.incident.fault}", text=story(context)
            )
            reason = f"{attempt.name} moves again. {story(context)} The playbook says: tell, do nothing."
            return context.changed(**new_watch()).move("checkpoint.tell", reason, Phase.HOLDING, notice)
        moves_again = recovered_itself(context, attempt)
        if moves_again is None or moves_again.incident.is_open or bad_fault(attempt) is None:
            return moves_again
        reason = f"{attempt.name} moves again, but its loss is {attempt.loss_health}"
        return context.changed(**new_watch()).move("heal.loss_bad", reason, Phase.HOLDING)
    if _has_moved_on(context, attempt):
        return context.changed(**new_watch()).move(
            "verify.moves_again",
            f"{attempt.name} moves again: step {step_word(attempt.last_step)}",
            Phase.VERIFYING,
        )
    return None


def _has_moved_on(context: RuleContext, attempt: AttemptView) -> bool:
    """A new attempt that hung has made a step since. Where its node was reported lost, later heartbeats show it."""
    incident = context.incident
    if attempt.work == STALLED:
        return False
    if not is_past_stall(incident, attempt):
        return _heartbeat_takes_it_back(context, attempt)
    if incident.fault is FaultClass.NODE_LOST:
        return has_outlived_claim(context, attempt)
    return incident.fault is FaultClass.HANG


def _heartbeat_takes_it_back(context: RuleContext, attempt: AttemptView) -> bool:
    """Its heartbeats alone showed it stuck, and the newest one, written after that, that it trains."""
    ask, written_at = context.incident.halt.ask, attempt.heartbeat_at
    if context.incident.fault_rule != STALLED_HEARTBEAT or stalls_of(context.incident) or ask is None:
        return False
    return attempt.work == TRAINING and written_at is not None and written_at > ask.asked_at


def _is_only_notified(context: RuleContext, attempt: AttemptView) -> bool:
    """The stall for which it was asked to save is over, and of what is left people are only notified."""
    if attempt.status is not AttemptStatus.RUNNING or attempt.work == STALLED:
        return False
    is_left_alone = context.policy.playbook(context.incident.fault).response is Response.TELL
    return is_left_alone and is_past_stall(context.incident, attempt)


def _healed_meanwhile(context: RuleContext, attempt: AttemptView) -> Decision:
    """A first attempt needs no further action; a new one still has to pass the step that the old one ended at."""
    if not context.incident.resubmission.tries:
        return close_healed(context, attempt)
    context = dataclasses.replace(context, incident=marked_healed(context.incident))
    return context.changed(needs=(), needs_since=None, **new_watch()).move(
        "verify.healed", f"the loss of {attempt.name} is well again; it is not rolled back", Phase.VERIFYING
    )


def _may_still_heal(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """The answer is there, but the run's loss is well or on its way: it is not stopped at such a moment."""
    bout = context.incident.loss.bout
    if bout is None or context.incident.fault not in LOSS_FAULTS:
        return None
    turn = turn_of(bout, attempt, context.policy)
    if turn is BadLossState.HEALED:
        return _healed_meanwhile(context, attempt)
    is_watched = context.policy.playbook(context.incident.fault).response is Response.WATCH_THEN_ROLL_BACK
    return watch_loss(context, attempt) if turn is BadLossState.YOUNG and is_watched else None


def _saved_past_it(context: RuleContext, attempt: AttemptView, ask: CheckpointAsk) -> Decision | None:
    """It has saved at a step past the one that it hung at: it moves, though its heartbeats may be late. A stall after
    that is reported again, with a later step.
    """
    stuck = stalled_at(context.incident)
    is_hang = context.incident.fault is FaultClass.HANG and attempt.status is AttemptStatus.RUNNING
    if not is_hang or ask.outcome != "saved" or ask.step is None or not isinstance(stuck, Known):
        return None
    is_reported_since = (
        attempt.heartbeat_at is None or attempt.heartbeat_at >= ask.asked_at
    )  # an older heartbeat refutes no answer
    if ask.step <= stuck.value or (attempt.work == STALLED and is_reported_since):
        return None
    reason = f"{attempt.name} hung at step {stuck.value}, and has saved at step {ask.step}: it moves again"
    if context.incident.resubmission.tries:
        return context.changed(**new_watch()).move("verify.moves_again", reason, Phase.VERIFYING)
    if context.now - ask.asked_at < context.policy.timing.silent_limit:
        return context.stay("heal.saved", f"{reason}; waiting for its heartbeats")
    return context.close(
        "heal.saved_limit",
        f"{reason}. No heartbeat shows it, and no stall was reported since",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


def _answered(ask: CheckpointAsk, outcome: str, step: int | None, why_so: str) -> CheckpointAsk:
    return dataclasses.replace(ask, outcome=outcome, step=step, why=why_so[:400])


def _after_ask(context: RuleContext, ask: CheckpointAsk) -> Decision:
    context = context.changed(ask=ask)
    text = f"checkpoint {ask.outcome}" + (f" at step {ask.step}" if ask.step is not None else "")
    text += f" ({ask.why})." if ask.why else "."
    if context.ordered == "checkpoint":
        order = context.incident.order or {}
        saved = ask.outcome == "saved"
        return context.close(
            "order.checkpoint",
            f"the checkpoint ordered by {order.get('who', 'an operator')}: {text}",
            Phase.RECOVERED if saved else Phase.STOPPED,
            severity=Severity.INFO if saved else Severity.WARNING,
        )
    attempt = context.attempt
    if attempt is not None and context.ordered == "resubmit" and _is_stopped_since_asked(context, attempt):
        return context.close(
            "order.owner_stopped",
            f"{attempt.name} was stopped, and not by us, after its resubmission had been ordered: it is left alone; "
            f"{text}",
            Phase.STOPPED,
            severity=Severity.WARNING,
        )
    if attempt is not None and context.ordered is None:
        if attempt.status is AttemptStatus.COMPLETED:
            return completed_poisoned(context, attempt) or context.close(
                "checkpoint.completed",
                f"{attempt.name} completed while it was asked to save",
                Phase.RECOVERED,
                severity=Severity.INFO,
            )
        if attempt.status is AttemptStatus.STOPPED and not stop_is_ours(context, attempt):
            return context.close(
                "checkpoint.owner_stopped",
                f"{attempt.name} was stopped, and not by us: it is left alone; {text}",
                Phase.STOPPED,
                severity=Severity.INFO,
            )
        if not attempt.status.has_ended:
            changed = _no_longer_needed(context, attempt) or _saved_past_it(context, attempt, ask)
            changed = changed or _may_still_heal(context, attempt)
            if changed is not None:
                return changed
    if context.policy.playbook(context.incident.fault).response in (
        Response.CHECKPOINT_THEN_HAND_OVER,
        Response.HAND_OVER,
    ):
        severity = Severity.WARNING if ask.is_paged else Severity.PAGE
        return context.hand_over("playbook.saved_then_hand_over", f"{story(context)} {text}", severity=severity)
    if attempt is not None and context.has_ended(attempt):
        return prepare_resubmit(context) if context.ordered else attempt_died(context, attempt)
    is_rolled_back = context.policy.playbook(context.incident.fault).response in ROLL_BACKS
    if is_rolled_back and attempt is not None and context.ordered is None:
        return roll_back(context, attempt, f"checkpoint.{ask.outcome}", f"{story(context)} {text}")
    if attempt is not None and context.incident.fault is FaultClass.NODE_LOST and context.ordered is None:
        # It was asked to save for something else: that nodes are lost is weighed as it is without a request.
        return weigh_claim(context, attempt) or begin_stop(context, f"checkpoint.{ask.outcome}", text)
    return begin_stop(context, f"checkpoint.{ask.outcome}", text)


def _is_stopped_since_asked(context: RuleContext, attempt: AttemptView) -> bool:
    """Its owner has stopped it after the resubmission was ordered: it lived when it was asked to save because of that
    order. An end that is dated before the order may have been shown late; ends are dated in whole seconds.
    """
    later = stopped_after_order(context, attempt)
    return later is not None and later > -WHOLE_SECOND
