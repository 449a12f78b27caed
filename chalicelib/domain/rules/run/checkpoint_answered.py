"""Rules for an attempt that has answered a request to save, or no longer can."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import decided_by, rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    stop_is_ours,
    stopped_after_order,
    story,
)
from chalicelib.domain.fault_specs.faults import LOSS_FAULTS
from chalicelib.domain.faults.loss import BadLossState, turn_of
from chalicelib.domain.faults.stalls import stalled_at
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import CheckpointAsk, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import STALLED, AttemptStatus, AttemptView
from chalicelib.domain.policy.playbooks import ROLL_BACKS, Response
from chalicelib.domain.rules.run.checkpoint_needless import healed_meanwhile
from chalicelib.domain.rules.run.ended import ENDED
from chalicelib.domain.rules.run.loss import WATCHED_LOSS, roll_back
from chalicelib.domain.rules.run.preparing import BEFORE_ATTEMPT
from chalicelib.domain.run.finishing import ended_completed_poisoned
from chalicelib.domain.run.first_response import announced_ends, begin_stop
from chalicelib.domain.run.liveness import WEIGHING_RULES, weigh_claim
from chalicelib.domain.run.movement import new_watch
from rekindle.protocol.signals import FaultClass

CHECKPOINTED: Final = tuple(f"checkpoint.{outcome}" for outcome in ("saved", "failed", "cannot", "refused", "late"))
WHOLE_SECOND: Final = timedelta(seconds=1)
PAST_ITS_END: Final = timedelta(minutes=5)  # an instance that is retired may be there for a while beyond its time


@rule("order.checkpoint")
def order_checkpoint(context: RuleContext) -> Decision | None:
    """A person ordered the checkpoint, and gets its outcome: closed."""
    if context.ordered != "checkpoint":
        return None
    order = context.incident.order or {}
    saved = asked(context).outcome == "saved"
    return context.close(
        "order.checkpoint",
        f"the checkpoint ordered by {order.get('who', 'an operator')}: {_outcome(context)}",
        Phase.RECOVERED if saved else Phase.STOPPED,
        severity=Severity.INFO if saved else Severity.WARNING,
    )


@rule("order.owner_stopped")
def checkpoint_order_owner_stopped(context: RuleContext) -> Decision | None:
    """Its owner stopped it after the resubmission was ordered: the later word counts, and it is left alone.

    It lived when it was asked to save because of that order. An end that is dated before the order may have been shown
    late; ends are dated in whole seconds.
    """
    attempt = context.attempt
    if attempt is None or context.ordered != "resubmit":
        return None
    later = stopped_after_order(context, attempt)
    if later is None or later <= -WHOLE_SECOND:
        return None
    return context.close(
        "order.owner_stopped",
        f"{attempt.name} was stopped, and not by us, after its resubmission had been ordered: it is left alone; "
        f"{_outcome(context)}",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


@rule("ended.completed_poisoned")
def checkpoint_completed_poisoned(context: RuleContext) -> Decision | RuleContext | None:
    """It completed with a loss that is not finite: a person."""
    return ended_completed_poisoned(context) if context.ordered is None else None


@rule("checkpoint.completed")
def checkpoint_completed(context: RuleContext) -> Decision | None:
    """It completed while it was asked to save: recovered."""
    attempt = context.attempt
    if attempt is None or context.ordered is not None or attempt.status is not AttemptStatus.COMPLETED:
        return None
    return context.close(
        "checkpoint.completed",
        f"{attempt.name} completed while it was asked to save",
        Phase.RECOVERED,
        severity=Severity.INFO,
    )


@rule("checkpoint.owner_stopped")
def checkpoint_owner_stopped(context: RuleContext) -> Decision | None:
    """It was stopped, and not by us: left alone."""
    attempt = context.attempt
    if attempt is None or context.ordered is not None or attempt.status is not AttemptStatus.STOPPED:
        return None
    if stop_is_ours(context, attempt):
        return None
    return context.close(
        "checkpoint.owner_stopped",
        f"{attempt.name} was stopped, and not by us: it is left alone; {_outcome(context)}",
        Phase.STOPPED,
        severity=Severity.INFO,
    )


@rule("heal.saved", "heal.saved_limit", "verify.moves_again")
def heal_saved(context: RuleContext) -> Decision | None:
    """It has saved past the step that it hung at, so that it moves: its heartbeats are waited for; then notified.

    Its heartbeats may be late. A stall after that is reported again, with a later step.
    """
    attempt, ask = _living(context), asked(context)
    stuck = stalled_at(context.incident)
    if attempt is None or context.incident.fault is not FaultClass.HANG or attempt.status is not AttemptStatus.RUNNING:
        return None
    if ask.outcome != "saved" or ask.step is None or not isinstance(stuck, Known) or ask.step <= stuck.value:
        return None
    # An older heartbeat refutes no answer.
    is_reported_since = attempt.heartbeat_at is None or attempt.heartbeat_at >= ask.asked_at
    if attempt.work == STALLED and is_reported_since:
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


@rule("notice.over")
def notice_over(context: RuleContext) -> Decision | None:
    """It has saved when each announced end was minutes past: it trains on, and is not stopped for a late notice."""
    attempt, ask, ends = _living(context), asked(context), announced_ends(context)
    if attempt is None or not ends or ask.outcome != "saved" or ask.asked_at - max(ends) < PAST_ITS_END:
        return None
    return context.close(
        "notice.over",
        f"{attempt.name} was to end at {max(ends):%H:%M} UTC, by a notice that came late, and has saved at "
        f"{ask.asked_at:%H:%M}: it is left training",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


@rule("spike.healed", "spike.healed_stalled", "verify.healed")
def checkpoint_may_heal(context: RuleContext) -> Decision | None:
    """Its loss is well, or may still heal: it is not stopped now; [watched](#a-bad-loss-is-watched)."""
    attempt, episode = _living(context), context.incident.loss.episode
    if attempt is None or episode is None or context.incident.fault not in LOSS_FAULTS:
        return None
    turn = turn_of(episode, attempt, context.policy)
    if turn is BadLossState.HEALED:
        return healed_meanwhile(context)
    is_watched = context.policy.playbook(context.incident.fault).response is Response.WATCH_THEN_ROLL_BACK
    return decided_by(WATCHED_LOSS, context) if turn is BadLossState.YOUNG and is_watched else None


@rule("playbook.saved_then_hand_over")
def playbook_saved_then_hand_over(context: RuleContext) -> Decision | None:
    """The playbook leaves the rest to a person."""
    response = context.policy.playbook(context.incident.fault).response
    if response not in (Response.CHECKPOINT_THEN_HAND_OVER, Response.HAND_OVER):
        return None
    severity = Severity.WARNING if asked(context).is_paged else Severity.PAGE
    reason = f"{story(context)} {_outcome(context)}"
    return context.hand_over("playbook.saved_then_hand_over", reason, severity=severity)


@rule()
def checkpoint_ended(context: RuleContext) -> Decision | None:
    """It has ended: [an attempt has ended](#an-attempt-has-ended), or what was ordered goes on."""
    attempt = context.attempt
    if attempt is None or not context.has_ended(attempt):
        return None
    return decided_by(BEFORE_ATTEMPT, context) if context.ordered else decided_by(ENDED, context)


@rule(*CHECKPOINTED)
def checkpoint_rolled_back(context: RuleContext) -> Decision | None:
    """The playbook rolls it back: [rolling back](#rolling-back)."""
    is_rolled_back = context.policy.playbook(context.incident.fault).response in ROLL_BACKS
    if not is_rolled_back or context.attempt is None or context.ordered is not None:
        return None
    reason = f"{story(context)} {_outcome(context)}"
    return roll_back(context, f"checkpoint.{asked(context).outcome}", reason)


@rule(*WEIGHING_RULES)
def checkpoint_node_lost(context: RuleContext) -> Decision | None:
    """Its node is reported lost, and it was asked to save for something else: weighed as without a request."""
    is_lost = context.incident.fault is FaultClass.NODE_LOST and context.ordered is None
    return weigh_claim(context, context.attempt) if is_lost and context.attempt is not None else None


@rule(*CHECKPOINTED)
def checkpoint_saved(context: RuleContext) -> Decision:
    """What is left, whatever it answered: [stopped](#before-a-stop) and resubmitted."""
    return begin_stop(context, f"checkpoint.{asked(context).outcome}", _outcome(context))


def asked(context: RuleContext) -> CheckpointAsk:
    """The request under way, for rules that stand below `checkpoint_lost`. Raises: ValueError: there is none."""
    if context.incident.halt.ask is None:
        raise ValueError("no request for a checkpoint is on record")
    return context.incident.halt.ask


def _living(context: RuleContext) -> AttemptView | None:
    """The attempt, where no order stands and it has not ended."""
    attempt = context.attempt
    return attempt if attempt is not None and context.ordered is None and not attempt.status.has_ended else None


def _outcome(context: RuleContext) -> str:
    ask = asked(context)
    text = f"checkpoint {ask.outcome}" + (f" at step {ask.step}" if ask.step is not None else "")
    return text + (f" ({ask.why})." if ask.why else ".")
