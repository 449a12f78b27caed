"""Rules for a run that lives: is what was reported of it still so, by its own heartbeats and by the platform?"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    has_passed,
    is_poisoned,
    span_word,
    step_word,
    story,
)
from chalicelib.domain.fault_specs.faults import HEALABLE, HEALED_BY_REPAIR
from chalicelib.domain.faults.heartbeat_claims import WAIT, is_denied
from chalicelib.domain.faults.loss import bad_fault
from chalicelib.domain.faults.signal_facts import concerns
from chalicelib.domain.faults.stalls import is_as_fast_as_usual
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.observation import STALLED, AttemptStatus, AttemptView
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.run.hanging import OLD_CLAIM
from chalicelib.domain.run.liveness import (
    BEFORE_NOTICE,
    LATE,
    NEXT_HEARTBEAT,
    TWO_HEARTBEATS,
    claimed_at,
    claims_are_over,
    is_stall_open,
    late_claim,
)
from rekindle.protocol.signals import FaultClass

# A heartbeat so old, two missing and others on their way for long, does not show that a run moves now; a newer one is
# waited for that long.
HEARTBEAT_OLD_AFTER: Final = LATE + TWO_HEARTBEATS
NEWER_HEARTBEAT_WITHIN: Final = timedelta(minutes=30)
HEARTBEATS_LATE: Final = timedelta(seconds=60)  # how much longer the second is waited for


@rule("healed", "heal.confirm", "heal.unconfirmed")
def healed(context: RuleContext) -> Decision | RuleContext | None:
    """A stall, a false alarm or a repair is over, and its steps move: confirmed by its next heartbeats, then closed.
    Where none of them comes that is new enough, that is told instead.
    """
    attempt = context.attempt_seen
    moves_again, bad = recovered_itself(context, attempt), bad_fault(attempt)
    if moves_again is not None and bad is not None and not moves_again.incident.is_open:
        # It moves, and is not well: its loss is what is left to see to.
        return context.changed(fault=bad, fault_rule=f"heartbeat.{attempt.loss_health}")
    return moves_again


@rule("claim.denied", "claim.refuted")
def claim_denied(context: RuleContext) -> Decision | None:
    """All that speaks against it came over the bus, and its fresh heartbeats deny it: nothing is done; notified.

    The heartbeat that bears a claim out may be on its way, and is waited for.
    """
    incident, attempt = context.incident, context.attempt_seen
    claims = [
        signal
        for signal in incident.signals
        if signal.triggers and signal.fault is not None and concerns(signal, incident)
    ]
    if incident.order is not None or incident.resubmission.tries or bad_fault(attempt) is not None or not claims:
        return None
    if not all(is_denied(claim, attempt, now=context.now) for claim in claims):
        return None
    reason = f"{claims[-1].summary}. But {attempt.name} is {attempt.work or 'running'}, says its own heartbeat"
    if incident.phase in BEFORE_NOTICE:
        return context.move("claim.denied", f"{reason}; its next ones are waited for", Phase.HOLDING)
    if context.in_phase < WAIT:
        return context.stay(
            "claim.denied", f"{reason}; its next ones are waited for", until=context.now + NEXT_HEARTBEAT
        )
    return context.close(
        "claim.refuted",
        f"{reason}, and so did those before it. Any sender on the bus may have sent that; nothing was done",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


@rule("defer.refuted", "defer.refuted_limit")
def defer_refuted(context: RuleContext) -> Decision | None:
    """An agent's event says that it has ended, and it runs: the platform is asked until they agree; then notified.

    Any head node may send such an event about any cluster, and write the documents of its own alone: it is not acted on
    before they agree.
    """
    is_of_an_agent = context.incident.fault_rule == f"signal.{SignalKind.ATTEMPT_STATE}"
    return wait_for_the_state(context) if is_of_an_agent else None


@rule("heal.node_mended")
def heal_node_mended(context: RuleContext) -> Decision | None:
    """Every report against its node is over, and it lives: left alone."""
    if not claims_are_over(context):
        return None
    attempt = context.attempt_seen
    return context.close(
        "heal.node_mended",
        f"{story(context)} But that node is well since, its agents say; {attempt.name} is "
        f"{attempt.status}, and left alone",
        Phase.STOPPED,
        severity=Severity.INFO,
    )


@rule("claim.fast_now", "claim.fast_again")
def claim_fast_again(context: RuleContext) -> Decision | None:
    """Slow steps were reported, and the heartbeat shows the usual speed: held until it does so 10 minutes after the
    report, then left running."""
    incident, attempt = context.incident, context.attempt_seen
    if incident.fault is not FaultClass.THROUGHPUT_DROP or incident.order is not None or incident.resubmission.tries:
        return None
    claims = [signal for signal in incident.signals if signal.fault is FaultClass.THROUGHPUT_DROP]
    reported_at = max((claim.occurred_at for claim in claims), default=None)
    if reported_at is None or attempt.heartbeat_at is None or not is_as_fast_as_usual(incident, attempt):
        return None
    reason = (
        f"{story(context)} But that was reported {span_word(context.now - reported_at)} ago, and {attempt.name} now"
        f" takes {attempt.step_s:.3g} s a step, as usual"
    )
    # The median of its steps lags: a heartbeat of about the time of the report says nothing yet.
    if attempt.heartbeat_at - reported_at < OLD_CLAIM:
        is_answered = attempt.heartbeat_at >= reported_at and context.now - reported_at < OLD_CLAIM + LATE
        return hold(context, "claim.fast_now", reason) if is_answered else None
    return context.close("claim.fast_again", f"{reason}: it is left running", Phase.STOPPED, severity=Severity.INFO)


@rule("claim.late", "claim.late_limit")
def claim_late(context: RuleContext) -> Decision | None:
    """Only HyperPod's agents accuse its node, in a late report: wait `nodes.hma_grace_s` for its withdrawal."""
    return late_claim(context, context.attempt_seen)


def recovered_itself(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """A stall, a false alarm or a platform repair whose steps move again needs no action."""
    if not _moves_again(context, attempt):
        return None
    deferred_at = context.incident.resubmission.deferred_since
    if deferred_at is not None and attempt.heartbeat_at is not None and attempt.heartbeat_at < deferred_at + LATE:
        # It may have been on its way since before the step ended, and the step that auto-resume starts not have begun.
        is_young = context.now < deferred_at + LATE + HEARTBEATS_LATE
        return _confirm_heal(context, attempt) if is_young else None
    claim_at = claimed_at(context)
    if attempt.heartbeat_at is not None and claim_at is not None and attempt.heartbeat_at < claim_at + TWO_HEARTBEATS:
        # One heartbeat may have been on its way, and of a process that has died since.
        is_young = context.now < claim_at + TWO_HEARTBEATS + HEARTBEATS_LATE
        return _confirm_heal(context, attempt) if attempt.heartbeat_at >= claim_at and is_young else None
    moved = f"step {step_word(attempt.last_step)} is past {step_word(context.incident.target_step)}"
    if _is_heartbeat_old(context, attempt):  # it moved then, and may have died since
        if context.incident.phase in BEFORE_NOTICE or context.in_phase < NEWER_HEARTBEAT_WITHIN:
            return _confirm_heal(context, attempt)
        age = span_word(context.now - attempt.heartbeat_at) if attempt.heartbeat_at else "unknown"
        reason = (
            f"{moved}, says its newest heartbeat, which is {age} old: whether {attempt.name} still moves is not shown"
        )
        return context.close("heal.unconfirmed", reason, Phase.STOPPED, severity=Severity.WARNING)
    by_whom = "by its own auto-resume" if deferred_at is not None else "without help"
    reason = f"{attempt.name} moves again {by_whom}: {moved}"
    return context.close("healed", reason, Phase.RECOVERED, severity=Severity.INFO)


def _moves_again(context: RuleContext, attempt: AttemptView) -> bool:
    """Its fault can heal, it is past the step at which it stood, and nothing that is reported still stands."""
    was_repaired = (
        context.incident.tracking.repaired_at is not None or context.incident.resubmission.deferred_since is not None
    )
    healable = HEALED_BY_REPAIR if was_repaired else HEALABLE
    if context.incident.fault not in healable or context.incident.is_ordered:
        return False
    if attempt.status is not AttemptStatus.RUNNING or is_poisoned(context, attempt) or attempt.work == STALLED:
        return False
    return has_passed(attempt.last_step, context.incident.target_step) and not is_stall_open(context)


def _is_heartbeat_old(context: RuleContext, attempt: AttemptView) -> bool:
    """Nothing has been done about the run, and its newest heartbeat is old."""
    if attempt.heartbeat_at is None or context.now - attempt.heartbeat_at < HEARTBEAT_OLD_AFTER:
        return False
    return context.incident.phase in (*BEFORE_NOTICE, Phase.HOLDING)


def _confirm_heal(context: RuleContext, attempt: AttemptView) -> Decision:
    """It moves, and is not stopped; its next heartbeats show whether it continues."""
    reason = (
        f"{story(context)} But {attempt.name} is at step {step_word(attempt.last_step)}: waiting for its next heartbeat"
    )
    return hold(context, "heal.confirm", reason)


def wait_for_the_state(context: RuleContext) -> Decision:
    attempt = context.attempt_seen
    reason = f"{story(context)} But the platform says that {attempt.name} is {attempt.status}"
    if context.incident.phase in BEFORE_NOTICE or context.in_phase < context.policy.timing.tell_open:
        return hold(context, "defer.refuted", reason)
    return context.close("defer.refuted_limit", reason, Phase.STOPPED, severity=Severity.WARNING)


def hold(context: RuleContext, rule: str, reason: str) -> Decision:
    """Stay, in HOLDING."""
    if context.incident.phase in BEFORE_NOTICE:
        return context.move(rule, reason, Phase.HOLDING)
    return context.stay(rule, reason)
