"""Whether what a Signal claims of the attempt under care still stands, after everything that was seen since. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chalicelib.domain.decision.verdict import RuleContext
from chalicelib.domain.fault_specs.faults import LOSS_FAULTS
from chalicelib.domain.faults.heartbeat_claims import is_denied
from chalicelib.domain.faults.signal_facts import ORDER_KINDS, STATE_KINDS, signal_step
from chalicelib.domain.faults.stalls import has_passed_stall, is_as_fast_as_usual, moves_again_since
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import STALLED, AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.playbooks import MAKES_WAY, Response
from chalicelib.domain.run.bad_nodes import is_claim_over
from chalicelib.domain.run.hanging import OLD_CLAIM
from chalicelib.domain.run.silence import is_silence
from rekindle.protocol.signals import FaultClass


def is_standing(signal: Signal, context: RuleContext, attempt: AttemptView) -> bool:
    """It speaks of this very attempt, and what is seen does not refute it."""
    if signal.attempt != attempt.name or not signal.triggers or signal.fault is None:
        return False
    if signal.kind in ORDER_KINDS or signal.kind in STATE_KINDS:
        return False
    return not any(refutes(signal, context, attempt) for refutes in _REFUTATIONS)


def _is_denied(signal: Signal, context: RuleContext, attempt: AttemptView) -> bool:
    return is_denied(signal, attempt, now=context.now)


def _is_over_for_its_node(signal: Signal, context: RuleContext, _: AttemptView) -> bool:
    return is_claim_over(signal, context.incident, context.seen)


def _is_only_silence(signal: Signal, _: RuleContext, attempt: AttemptView) -> bool:
    return is_silence(signal) and attempt.work != STALLED


def _is_one_value(signal: Signal, context: RuleContext, _: AttemptView) -> bool:
    """One value, which nothing confirms: poison.is_confirmed."""
    return signal.fault is FaultClass.NON_FINITE and not context.incident.is_poisoned


def _is_of_the_loss(signal: Signal, context: RuleContext, _: AttemptView) -> bool:
    """Whether that still holds is for the newest judgement to say: `verify_spike` (rules/run/trouble_again.py)."""
    fault = signal.fault
    return fault in LOSS_FAULTS and context.policy.playbook(fault).response is not Response.TELL


def _is_from_before_a_repair(signal: Signal, context: RuleContext, _: AttemptView) -> bool:
    repaired_at = context.incident.tracking.repaired_at
    return repaired_at is not None and signal.occurred_at < repaired_at


def _is_for_two_live(signal: Signal, context: RuleContext, _: AttemptView) -> bool:
    """Ours makes way by rules of their own, which come first (rules/run/two_live.py); one of the owner's never does."""
    return signal.fault is FaultClass.TWO_LIVE and context.policy.playbook(FaultClass.TWO_LIVE).response in MAKES_WAY


def _moves_since(signal: Signal, context: RuleContext, attempt: AttemptView) -> bool:
    return signal.kind is SignalKind.STALL and moves_again_since(context.incident, attempt) is not None


def _saved_since(signal: Signal, context: RuleContext, attempt: AttemptView) -> bool:
    """It saved at a later step after the stall was reported: it moved on, whatever its heartbeats show."""
    ask, step = context.incident.halt.ask_of(attempt.name), signal_step(signal)
    if signal.kind is not SignalKind.STALL or ask is None or ask.outcome != "saved":
        return False
    if ask.asked_at < signal.occurred_at or ask.step is None:
        return False
    return isinstance(step, Known) and ask.step > step.value


def _is_past_it(signal: Signal, _: RuleContext, attempt: AttemptView) -> bool:
    is_heartbeat_older = attempt.heartbeat_at is not None and attempt.heartbeat_at < signal.occurred_at
    is_moving = signal.kind is SignalKind.STALL and not is_heartbeat_older and attempt.work != STALLED
    return is_moving and has_passed_stall(signal, attempt.last_step)


def _is_fast_since(signal: Signal, context: RuleContext, attempt: AttemptView) -> bool:
    """Slow steps were reported, and a heartbeat of ten minutes later or more shows the usual speed."""
    if signal.fault is not FaultClass.THROUGHPUT_DROP or attempt.heartbeat_at is None:
        return False
    is_settled = attempt.heartbeat_at - signal.occurred_at >= OLD_CLAIM  # the median of its steps lags
    return is_settled and is_as_fast_as_usual(context.incident, attempt)


_REFUTATIONS: Final[tuple[Callable[[Signal, RuleContext, AttemptView], bool], ...]] = (
    _is_denied,
    _is_over_for_its_node,
    _is_only_silence,
    _is_one_value,
    _is_of_the_loss,
    _is_from_before_a_repair,
    _is_for_two_live,
    _moves_since,
    _saved_since,
    _is_past_it,
    _is_fast_since,
)
