"""Whether what a Signal claims of the attempt under care still stands, after everything that was seen since. Pure."""

from __future__ import annotations

from chalicelib.domain.claims.bad_nodes import is_claim_over
from chalicelib.domain.claims.silence import is_silence
from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.fault_specs.faults import LOSS_FAULTS
from chalicelib.domain.faults.heartbeat_claims import is_denied
from chalicelib.domain.faults.signal_facts import ORDER_KINDS, STATE_KINDS, signal_step
from chalicelib.domain.faults.stalls import has_passed_stall, moves_again_since
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import STALLED, AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.playbooks import Response
from rekindle.protocol.signals import FaultClass


def is_standing(signal: Signal, context: RuleContext, attempt: AttemptView) -> bool:
    """It speaks of this very attempt, and what is seen does not refute it."""
    if signal.attempt != attempt.name or not signal.triggers or signal.fault is None:
        return False
    if signal.kind in ORDER_KINDS or signal.kind in STATE_KINDS or is_denied(signal, attempt, now=context.now):
        return False
    if is_claim_over(signal, context.incident, context.seen):
        return False
    if is_silence(signal) and attempt.work != STALLED:
        return False
    if signal.fault is FaultClass.NON_FINITE and not context.incident.is_poisoned:
        return False  # one value, which nothing confirms: poison.is_confirmed
    if signal.fault in LOSS_FAULTS and context.policy.playbook(signal.fault).response is not Response.TELL:
        return False  # whether that still holds is for the newest judgement to say (rules/run/verifying.py)
    if context.incident.sight.repaired_at is not None and signal.occurred_at < context.incident.sight.repaired_at:
        return False
    if signal.kind is SignalKind.STALL and moves_again_since(context.incident, attempt) is not None:
        return False
    if signal.kind is SignalKind.STALL and _has_saved_since(signal, context, attempt):
        return False
    is_heartbeat_older = attempt.heartbeat_at is not None and attempt.heartbeat_at < signal.occurred_at
    is_moving = signal.kind is SignalKind.STALL and not is_heartbeat_older and attempt.work != STALLED
    return not (is_moving and has_passed_stall(signal, attempt))


def _has_saved_since(stall: Signal, context: RuleContext, attempt: AttemptView) -> bool:
    """It saved at a later step after the stall was reported: it moved on, whatever its heartbeats show."""
    ask, step = context.incident.halt.ask, signal_step(stall)
    if ask is None or ask.attempt != attempt.name or ask.outcome != "saved" or ask.asked_at < stall.occurred_at:
        return False
    return ask.step is not None and isinstance(step, Known) and ask.step > step.value
