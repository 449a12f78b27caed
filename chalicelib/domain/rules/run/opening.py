"""Open, holding and watching: what is wrong, and what may be done about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.claims.finishing import completed_poisoned, decide_finishing
from chalicelib.domain.claims.liveness import (
    LATE,
    NEXT_HEARTBEAT,
    TWO_HEARTBEATS,
    UNTOLD,
    claimed_at,
    claims_are_over,
    late_claim,
    stands_reported,
    weigh_claim,
)
from chalicelib.domain.claims.movement import watch
from chalicelib.domain.claims.news import tell
from chalicelib.domain.claims.silence import silent_only
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    has_passed,
    is_poisoned,
    span_word,
    step_word,
    stopped_after_order,
    story,
    why_unknown,
)
from chalicelib.domain.fault_specs.faults import DEADLY, HEALABLE, HEALED_BY_REPAIR, LOSS_FAULTS
from chalicelib.domain.faults.heartbeat_claims import WAIT, is_denied
from chalicelib.domain.faults.loss import bad_fault
from chalicelib.domain.faults.pace import is_as_fast_as_usual
from chalicelib.domain.faults.signal_facts import ORDER_KINDS, STATE_KINDS, concerns
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import STALLED, AttemptStatus, AttemptView
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.playbooks import ROLL_BACKS, Response
from chalicelib.domain.rules.run.ended import attempt_died, prepare_resubmit
from chalicelib.domain.rules.run.loss import close_healed, roll_back, watch_loss
from chalicelib.domain.rules.run.platform_restart import suspended, waiting_in_queue
from chalicelib.domain.run.first_response import OLD_CLAIM, begin_checkpoint, begin_stop, far_off, shadow
from rekindle.protocol.signals import FaultClass

HEARTBEATS_LATE: Final = timedelta(seconds=60)  # how much longer the second is waited for
SAME_CLOCK: Final = timedelta(seconds=60)
OTHER_CLOCK: Final = timedelta(minutes=10)  # clocks of hosts are off by so much at most


def decide_open(context: RuleContext) -> Decision:
    """OPEN, HOLDING and WATCHING."""
    attempt = context.attempt
    if attempt is None:
        reason = f"the attempt cannot be read: {why_unknown(context.seen.attempt)}; nothing is assumed"
        return context.unread("open.unseen", "open.unseen_limit", reason, context.unseen_for)
    if attempt.status is AttemptStatus.GONE and not context.has_ended(attempt):
        return context.stay("open.gone", f"the platform does not know {attempt.name}; asking once more")
    if context.ordered is not None and attempt.status.has_ended:
        return _ordered_after_end(context, attempt)
    if attempt.status is AttemptStatus.COMPLETED:
        return completed_poisoned(context, attempt) or context.close(
            "open.completed", f"{attempt.name} has completed; nothing to recover", Phase.STOPPED, severity=Severity.INFO
        )
    if attempt.status is AttemptStatus.STOPPED:
        return context.close(
            "open.owner_stopped",
            f"{attempt.name} was stopped, and not by us: it is left alone",
            Phase.STOPPED,
            severity=Severity.INFO,
        )
    if attempt.status is AttemptStatus.STOPPING:
        if context.in_state >= context.policy.timing.stop_limit:
            return context.hand_over(
                "open.stop_stuck", f"{attempt.name} has been stopping for {span_word(context.in_state)}"
            )
        return context.stay("open.stopping", f"{attempt.name} is being stopped by someone; waiting to see how it ends")
    if attempt.status is AttemptStatus.REPAIRING:
        return _defer(context, attempt)
    if attempt.status.has_ended:
        return attempt_died(context, attempt)
    finishing = decide_finishing(context, attempt, group="open")
    if finishing is not None:
        return finishing
    if context.ordered is not None and attempt.start is not None and attempt.start.is_queued:
        return _ordered_in_queue(context, attempt)
    at_rest = waiting_in_queue(context, attempt, group="open") or suspended(context, attempt)
    return at_rest if at_rest is not None and context.ordered is None else _attempt_lives(context, attempt)


def _ordered_after_end(context: RuleContext, attempt: AttemptView) -> Decision:
    """An order about a run that is not running: a checkpoint cannot be taken, a resubmission is what was asked."""
    if context.ordered == "checkpoint":
        return _no_checkpoint_now(context, attempt)
    if _is_stopped_since(context, attempt):
        return context.close(
            "order.owner_stopped",
            f"{attempt.name} was stopped, and not by us, after its resubmission had been ordered: it is left alone",
            Phase.STOPPED,
            severity=Severity.WARNING,
        )
    if context.policy.shadow:
        return shadow(context, f"resubmit {attempt.name} as ordered")
    return prepare_resubmit(context)


def _is_stopped_since(context: RuleContext, attempt: AttemptView) -> bool:
    """Its owner has stopped it after the order, which could not be carried out before: the later word counts.

    An end is dated by AWS, as the order is, or, where an agent reports starts, by a host whose clock may be off.
    """
    later = stopped_after_order(context, attempt)
    return later is not None and later > (SAME_CLOCK if attempt.start is None else OTHER_CLOCK)


def _ordered_in_queue(context: RuleContext, attempt: AttemptView) -> Decision:
    """Nothing of it runs that could save."""
    if context.ordered == "checkpoint":
        return _no_checkpoint_now(context, attempt)
    return begin_stop(context, "playbook.restart", f"{story(context)} It waits in the queue: there is nothing to save.")


def _no_checkpoint_now(context: RuleContext, attempt: AttemptView) -> Decision:
    return context.close(
        "order.checkpoint_no_run",
        f"{attempt.name} is {attempt.status}: there is nothing to save",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


def _defer(context: RuleContext, attempt: AttemptView) -> Decision:
    row = context.policy.playbook(context.incident.fault)
    if row.response is Response.TELL:
        return tell(context)
    if context.incident.phase in UNTOLD:
        return context.move(
            "defer.platform_repair",
            f"the platform repairs {attempt.name} automatically ({attempt.detail}); two actors must not repair one run",
            Phase.HOLDING,
        )
    if context.in_state < context.policy.timing.repair_grace:
        return context.stay("defer.platform_repair", f"the platform still repairs {attempt.name}")
    if context.ordered == "checkpoint":
        return _no_checkpoint_now(context, attempt)
    if row.response is Response.HAND_OVER:
        return context.hand_over("playbook.hand_over", story(context))
    return begin_stop(context, "defer.grace_over", f"{attempt.name} is in repair longer than the policy's grace.")


def _attempt_lives(context: RuleContext, attempt: AttemptView) -> Decision:
    moves_again = recovered_itself(context, attempt)
    bad = bad_fault(attempt)
    if moves_again is not None and (bad is None or moves_again.incident.is_open):
        return moves_again
    if moves_again is not None and bad is not None:  # it moves, and is not well: its loss is what is left to see to
        context = context.changed(fault=bad, fault_rule=f"heartbeat.{attempt.loss_health}")
    refuted = (
        _is_denied(context, attempt)
        or _has_not_ended(context, attempt)
        or _node_is_repaired(context, attempt)
        or _is_fast_again(context, attempt)
        or late_claim(context, attempt)
    )
    if refuted is not None:
        return refuted
    row = context.policy.playbook(context.incident.fault)
    watched = _left_training(context, attempt, row.response)
    if watched is not None:
        return watched
    if row.response is Response.HAND_OVER:
        return context.hand_over("playbook.hand_over", story(context))
    if context.policy.shadow:
        return shadow(context, f"{row.response} for {context.incident.fault}")
    if _came_back_from_repair(context, attempt):
        return _after_repair(context, attempt)
    if (
        context.incident.fault is FaultClass.HANG
        and context.incident.fault_rule == f"signal.{SignalKind.EXTERNAL_ALERT}"
    ):
        weighing = weigh_claim(
            context, attempt
        )  # other monitoring says so, not the run's own: its steps are asked first
        if weighing is not None:
            return weighing
    if row.response in ROLL_BACKS:
        return roll_back(context, attempt, "playbook.roll_back", story(context))
    if row.response in (Response.CHECKPOINT_THEN_RESTART, Response.CHECKPOINT_THEN_HAND_OVER):
        return far_off(context) or begin_checkpoint(context, attempt)
    return _confirm_then_stop(context, attempt)


def _is_denied(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """All evidence against the run came over the bus, and its own heartbeat denies it: noted, without any action.

    The heartbeat that bears a claim out may be on its way, and is waited for.
    """
    incident = context.incident
    claims = [one for one in incident.signals if one.triggers and one.fault is not None and concerns(one, incident)]
    if incident.order is not None or incident.resubmission.tries or bad_fault(attempt) is not None or not claims:
        return None
    if not all(is_denied(one, attempt, now=context.now) for one in claims):
        return None
    reason = f"{claims[-1].summary}. But {attempt.name} is {attempt.work or 'running'}, says its own heartbeat"
    if incident.phase in UNTOLD:
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


def _node_is_repaired(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """The run lives, and every report against its node was over before it arrived."""
    if not claims_are_over(context):
        return None
    return context.close(
        "heal.node_mended",
        f"{story(context)} But that node is well since, its agents say; {attempt.name} is "
        f"{attempt.status}, and left alone",
        Phase.STOPPED,
        severity=Severity.INFO,
    )


def _left_training(context: RuleContext, attempt: AttemptView, response: Response) -> Decision | None:
    """Faults that are notified or watched while the run continues; None where an action is needed."""
    bout = context.incident.loss.bout
    is_loss = context.incident.fault in LOSS_FAULTS
    if is_loss and bout is not None and bout.healed_step is not None:
        return close_healed(context, attempt)
    if response is Response.TELL:
        return tell(context)
    if context.incident.fault is FaultClass.NON_FINITE and not context.incident.is_poisoned:
        return _single_value(context, attempt)
    if is_loss and response is Response.WATCH_THEN_ROLL_BACK:
        return watch_loss(context, attempt)
    return silent_only(context, attempt)


def _single_value(context: RuleContext, attempt: AttemptView) -> Decision:
    """A single non-finite value: watched until it persists or is over, and notified either way."""
    reason = f"{story(context)} One value that is not finite may be a skipped step; {attempt.name} is watched"
    if context.incident.phase in UNTOLD:
        return context.move("nan.watching", reason, Phase.HOLDING)
    if context.in_phase < context.policy.timing.tell_open:
        return context.stay("nan.watching", reason)
    return context.close(
        "nan.passed",
        f"{story(context)} Nothing has confirmed it for {span_word(context.in_phase)}: "
        f"{attempt.name} was left training",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


def _came_back_from_repair(context: RuleContext, attempt: AttemptView) -> bool:
    """The platform has restarted it, and nothing was reported since: earlier reports are about the past."""
    incident = context.incident
    back_at = incident.sight.repaired_at
    if back_at is None or incident.fault not in HEALED_BY_REPAIR or is_poisoned(context, attempt):
        return False
    return not any(
        signal.triggers
        and signal.fault is not None
        and signal.kind not in ORDER_KINDS
        and concerns(signal, incident)
        and signal.occurred_at >= back_at
        for signal in incident.signals
    )


def _after_repair(context: RuleContext, attempt: AttemptView) -> Decision:
    """Its steps decide: past the target it has healed, standing still it has not, unseen it is for people to check."""
    context, still = watch(context, attempt)
    back_for = context.now - (context.incident.sight.repaired_at or context.now)
    if isinstance(attempt.last_step, Known) and isinstance(context.incident.target_step, Known):
        if still >= context.policy.timing.silent_limit and back_for >= context.policy.timing.silent_limit:
            return begin_stop(
                context,
                "defer.repaired_silent",
                f"{attempt.name} has not moved for {span_word(still)} since its repair.",
            )
    elif back_for >= context.policy.timing.repair_grace:
        return context.close(
            "defer.repaired_unseen",
            f"the platform repaired {attempt.name}, and it has run for {span_word(back_for)} since. Whether it passed "
            "the step it was at cannot be seen",
            Phase.STOPPED,
            severity=Severity.WARNING,
        )
    rule, reason = "defer.repaired", f"{attempt.name} runs again after the platform's repair; watching its steps"
    if context.incident.phase in UNTOLD:
        return context.move(rule, reason, Phase.HOLDING)
    return context.stay(rule, reason)


def _confirm_then_stop(context: RuleContext, attempt: AttemptView) -> Decision:
    """A run that is reported dead but runs: moving steps refute the report, standing still confirms it."""
    incident = context.incident
    if incident.fault not in DEADLY:
        return begin_stop(context, "playbook.restart", story(context))
    if incident.fault_rule in {f"signal.{kind}" for kind in STATE_KINDS}:
        return _wait_for_the_state(context, attempt)
    return weigh_claim(context, attempt) or begin_stop(context, "playbook.restart", story(context))


def _is_fast_again(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """Slow steps were reported long ago, and could not be seen to; by its newest heartbeat its speed is back since."""
    incident = context.incident
    if incident.fault is not FaultClass.THROUGHPUT_DROP or incident.order is not None or incident.resubmission.tries:
        return None
    claims = [one for one in incident.signals if one.fault is FaultClass.THROUGHPUT_DROP]
    reported_at = max((one.occurred_at for one in claims), default=None)
    # The median of its steps lags: a heartbeat of about the time of the report says nothing.
    if reported_at is None or attempt.heartbeat_at is None or attempt.heartbeat_at - reported_at < OLD_CLAIM:
        return None
    if not is_as_fast_as_usual(incident, attempt):
        return None
    return context.close(
        "claim.fast_again",
        f"{story(context)} But that is {span_word(context.now - reported_at)} ago, and {attempt.name} now takes "
        f"{attempt.step_s:.3g} s a step, as usual: it is left running",
        Phase.STOPPED,
        severity=Severity.INFO,
    )


def _has_not_ended(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """An agent's event says that the run has ended, was preempted or reached its limit, and it runs.

    Any head node may send such an event about any cluster, and write the documents of its own alone: it is not acted on
    before they agree.
    """
    if context.incident.fault_rule != f"signal.{SignalKind.ATTEMPT_STATE}":
        return None
    return _wait_for_the_state(context, attempt)


def _wait_for_the_state(context: RuleContext, attempt: AttemptView) -> Decision:
    """A message says that the run has ended, the platform says that it runs: the platform is asked until they agree."""
    reason = f"{story(context)} But the platform says that {attempt.name} is {attempt.status}"
    if context.incident.phase in UNTOLD:
        return context.move("defer.refuted", reason, Phase.HOLDING)
    if context.in_phase < context.policy.timing.tell_open:
        return context.stay("defer.refuted", reason)
    return context.close("defer.refuted_limit", reason, Phase.STOPPED, severity=Severity.WARNING)


def recovered_itself(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """A stall, a false alarm or a platform repair whose steps move again needs no action."""
    was_repaired = (
        context.incident.sight.repaired_at is not None or context.incident.resubmission.deferred_since is not None
    )
    healable = HEALED_BY_REPAIR if was_repaired else HEALABLE
    if context.incident.fault not in healable or context.incident.order is not None:
        return None
    if attempt.status is not AttemptStatus.RUNNING or is_poisoned(context, attempt):
        return None
    if not has_passed(attempt.last_step, context.incident.target_step) or attempt.work == STALLED:
        return None
    if stands_reported(context):
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
    by_whom = "by its own auto-resume" if deferred_at is not None else "without help"
    return context.close(
        "healed",
        f"{attempt.name} moves again {by_whom}: step {step_word(attempt.last_step)} is past "
        f"{step_word(context.incident.target_step)}",
        Phase.RECOVERED,
        severity=Severity.INFO,
    )


def _confirm_heal(context: RuleContext, attempt: AttemptView) -> Decision:
    """It moves, and is not stopped; its next heartbeats show whether it continues."""
    reason = (
        f"{story(context)} But {attempt.name} is at step {step_word(attempt.last_step)}: waiting for its next heartbeat"
    )
    if context.incident.phase in UNTOLD:
        return context.move("heal.confirm", reason, Phase.HOLDING)
    return context.stay("heal.confirm", reason)
