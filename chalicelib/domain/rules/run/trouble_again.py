"""Rules for a new attempt that is in trouble again. They stand above its progress: closing would forget the news."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    is_poisoned,
    span_word,
    step_word,
    story,
)
from chalicelib.domain.fault_specs.faults import FAULT_RANK
from chalicelib.domain.faults.loss import BadLossState, turn_of
from chalicelib.domain.faults.stalls import STALLED_HEARTBEAT
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.observation import STALLED, AttemptStatus, AttemptView
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.policy.playbooks import ROLL_BACKS, Response
from chalicelib.domain.resume.recovery_doubts import STALE
from chalicelib.domain.rules.run.loss import roll_back
from chalicelib.domain.run.first_response import begin_checkpoint, begin_stop, ends_far_off
from chalicelib.domain.run.movement import watch
from chalicelib.domain.run.standing import is_standing
from rekindle.protocol.signals import FaultClass

UNHEARD: Final = timedelta(minutes=10)  # forty heartbeats: the channel is away, or all of the run is
ALIVE: Final = (AttemptStatus.STARTING, AttemptStatus.RUNNING)


@rule("verify.non_finite", "verify.poisoned")
def verify_non_finite(context: RuleContext) -> Decision | None:
    """Its loss is not finite again: [rolled back](#rolling-back), or a person, as the playbook says."""
    attempt = context.attempt_seen
    is_nan = context.incident.loss.onset_fault is FaultClass.NON_FINITE or attempt.loss_state in ("nan", "inf")
    if not is_nan or not is_poisoned(context, attempt):
        return None
    context = context.changed(fault=FaultClass.NON_FINITE)
    if context.policy.playbook(FaultClass.NON_FINITE).response in ROLL_BACKS:
        return roll_back(context, "verify.non_finite", f"{attempt.name} turned non-finite again.")
    return context.hand_over("verify.poisoned", f"{attempt.name} turned non-finite again. {story(context)}")


@rule("playbook.checkpoint")
def verify_stalled(context: RuleContext) -> Decision | None:
    """Its own heartbeat says that it stands still, and the playbook restarts what hangs: asked for a checkpoint.

    An event that was lost is not waited for.
    """
    attempt = context.attempt_seen
    if attempt.work != STALLED or attempt.status is not AttemptStatus.RUNNING or attempt.heartbeat_at is None:
        return None
    back_at = context.incident.tracking.repaired_at
    is_of_now = context.now - attempt.heartbeat_at < STALE and (back_at is None or attempt.heartbeat_at >= back_at)
    if not is_of_now or context.policy.playbook(FaultClass.HANG).response is not Response.CHECKPOINT_THEN_RESTART:
        return None
    return begin_checkpoint(context.changed(fault=FaultClass.HANG, fault_rule=STALLED_HEARTBEAT), attempt)


@rule("verify.tell", "verify.confirm", "verify.roll_back", "playbook.checkpoint", "playbook.hand_over")
def verify_tell(context: RuleContext) -> Decision | None:
    """A report about it stands: the playbook of the worst one is followed; what only asks to be told is told once, as
    is an announced end that is over an hour away.
    """
    attempt = context.attempt_seen
    standing = [
        signal
        for signal in context.incident.signals
        if is_standing(signal, context, attempt) and not ends_far_off(signal, now=context.now)
    ]
    if not standing or attempt.status not in ALIVE:
        return None
    worst = min(standing, key=lambda signal: FAULT_RANK[signal.fault or FaultClass.UNCLEAR])
    fault = worst.fault or FaultClass.UNCLEAR
    keep = {"fault": context.incident.fault, "fault_rule": context.incident.fault_rule}
    context = context.changed(fault=fault, fault_rule=f"signal.{worst.kind}")
    match context.policy.playbook(fault).response:
        case Response.CHECKPOINT_THEN_RESTART | Response.CHECKPOINT_THEN_HAND_OVER:
            return begin_checkpoint(context, attempt)
        case Response.ROLL_BACK | Response.WATCH_THEN_ROLL_BACK:
            return begin_stop(context, "verify.roll_back", story(context))
        case Response.HAND_OVER:
            return context.hand_over("playbook.hand_over", story(context))
        case Response.TELL | Response.RESTART as response:
            return _only_news(context, attempt, worst, response, keep)


def _only_news(
    context: RuleContext, attempt: AttemptView, signal: Signal, response: Response, keep: Mapping[str, Any]
) -> Decision | None:
    """Nothing to do about it while the attempt lives: look once more before anything is closed.

    `keep`: the Incident's own fault. News that nothing is done about do not rename what is being recovered from.
    """
    if signal not in context.seen.new_signals:
        return None
    if response is Response.TELL:
        return context.stay("verify.tell", f"{story(context)} The playbook says: tell, do nothing.", **keep)
    return context.stay(
        "verify.confirm", f"{story(context)} But {attempt.name} is {attempt.status}; watching its steps"
    )


@rule("verify.spike", "verify.roll_back", "playbook.checkpoint", "playbook.hand_over")
def verify_spike(context: RuleContext) -> Decision | None:
    """Its own loss is bad: given its time to heal as the first one was, then [rolled back](#rolling-back) further."""
    attempt, episode = context.attempt_seen, context.incident.loss.episode
    if episode is None or attempt.status is not AttemptStatus.RUNNING:
        return None
    row = context.policy.playbook(episode.fault)
    turn = turn_of(episode, attempt, context.policy)
    is_watched = row.response is Response.WATCH_THEN_ROLL_BACK
    if (
        turn is BadLossState.HEALED
        or (turn is BadLossState.UNSEEN and is_watched)
        or row.response in (Response.TELL, Response.RESTART)
    ):
        return None
    context = context.changed(fault=episode.fault, fault_rule=f"verify.{episode.fault}")
    where = f"{attempt.name} is bad again since step {step_word(episode.first_bad)}."
    match row.response:
        case Response.WATCH_THEN_ROLL_BACK if turn is not BadLossState.LASTS:
            context, still = watch(context, attempt)
            return silent(context, still) or context.stay("verify.spike", f"{where} It may heal without help")
        case Response.WATCH_THEN_ROLL_BACK | Response.ROLL_BACK:
            return roll_back(context, "verify.roll_back", where)
        case Response.CHECKPOINT_THEN_HAND_OVER | Response.CHECKPOINT_THEN_RESTART:
            return begin_checkpoint(context, attempt)
        case _:
            return context.hand_over("playbook.hand_over", f"{where} {story(context)}")


def silent(context: RuleContext, still: timedelta) -> Decision | None:
    """What is decided of an attempt that has stood still for so long; None where that is no trouble yet."""
    if still < context.policy.timing.silent_limit:
        return None
    attempt = context.attempt_seen
    if attempt.heartbeat_at is not None and context.now - attempt.heartbeat_at >= UNHEARD and attempt.work != STALLED:
        return context.hand_over(
            "verify.unheard",
            f"no heartbeat of {attempt.name} since {attempt.heartbeat_at:%H:%M:%S}, at step "
            f"{step_word(attempt.last_step)}: "
            "whether it moves is not known, and a run is not stopped for silence alone",
            severity=Severity.WARNING,
        )
    context = context.changed(fault=FaultClass.HANG, fault_rule="verify.silent")
    return begin_stop(context, "verify.silent", f"{attempt.name} has not moved for {span_word(still)}.")
