"""Open, holding and watching: what is wrong, and what may be done about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import decided_by, rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    span_word,
    stopped_after_order,
    story,
    why_unknown,
)
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.rules.run.cancelled import CANCELLED
from chalicelib.domain.rules.run.ended import ENDED
from chalicelib.domain.rules.run.preparing import BEFORE_ATTEMPT
from chalicelib.domain.rules.run.queued import not_listed, start_suspended, wait_for_spot, waiting_in_queue
from chalicelib.domain.rules.run.refuted import (
    claim_denied,
    claim_fast_again,
    claim_late,
    defer_refuted,
    heal_node_mended,
    healed,
)
from chalicelib.domain.rules.run.responses import (
    defer_began_anew,
    defer_confirm,
    defer_confirm_alert,
    defer_refuted_state,
    defer_repaired,
    nan_watching,
    open_shadow,
    playbook_checkpoint,
    playbook_hand_over,
    playbook_restart,
    playbook_roll_back,
    playbook_tell,
    silence_notified,
    spike_healed,
    spike_watching,
)
from chalicelib.domain.run.finishing import (
    ended_completed_poisoned,
    ended_finished_poisoned,
    ended_finishing,
    ended_unproven,
)
from chalicelib.domain.run.first_response import begin_stop, shadow
from chalicelib.domain.run.liveness import (
    BEFORE_NOTICE,
)

SAME_CLOCK: Final = timedelta(seconds=60)
OTHER_CLOCK: Final = timedelta(minutes=10)  # clocks of hosts are off by so much at most


@rule("open.unseen", "open.unseen_limit")
def open_unseen(context: RuleContext) -> Decision | None:
    """The attempt cannot be read: wait; paged at `timing.stop_limit_s`, a person at `resubmission.capacity_limit_s`."""
    if context.attempt is not None:
        return None
    reason = f"the attempt cannot be read: {why_unknown(context.seen.attempt)}; nothing is assumed"
    return context.unread("open.unseen", "open.unseen_limit", reason, context.unseen_for)


@rule("order.checkpoint_no_run")
def order_checkpoint_no_run(context: RuleContext) -> Decision | None:
    """A person ordered a checkpoint of a run that has ended: there is nothing to save."""
    is_ordered = context.ordered == "checkpoint" and context.attempt_seen.status.has_ended
    return _no_checkpoint_now(context) if is_ordered else None


@rule("order.owner_stopped")
def order_owner_stopped(context: RuleContext) -> Decision | None:
    """Its owner stopped it after its resubmission had been ordered: the later word counts, and it is left alone.

    An end is dated by AWS, as the order is, or, where an agent reports starts, by a host whose clock may be off.
    """
    attempt = context.attempt_seen
    later = stopped_after_order(context, attempt)
    if context.ordered is None or later is None or later <= (SAME_CLOCK if attempt.start is None else OTHER_CLOCK):
        return None
    return context.close(
        "order.owner_stopped",
        f"{attempt.name} was stopped, and not by us, after its resubmission had been ordered: it is left alone",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


@rule()
def open_resubmit_ordered(context: RuleContext) -> Decision | None:
    """A person ordered a run that has ended to be resubmitted: [before a new attempt](#before-a-new-attempt)."""
    attempt = context.attempt_seen
    if context.ordered is None or not attempt.status.has_ended:
        return None
    if context.policy.shadow:
        return shadow(context, f"resubmit {attempt.name} as ordered")
    return decided_by(BEFORE_ATTEMPT, context)


@rule("open.completed")
def open_completed(context: RuleContext) -> Decision | None:
    """It has completed: closed."""
    attempt = context.attempt_seen
    if attempt.status is not AttemptStatus.COMPLETED:
        return None
    return context.close(
        "open.completed", f"{attempt.name} has completed; nothing to recover", Phase.STOPPED, severity=Severity.INFO
    )


@rule("open.owner_stopped")
def open_owner_stopped(context: RuleContext) -> Decision | None:
    """It was stopped, and not by us: left alone."""
    attempt = context.attempt_seen
    if attempt.status is not AttemptStatus.STOPPED:
        return None
    return context.close(
        "open.owner_stopped",
        f"{attempt.name} was stopped, and not by us: it is left alone",
        Phase.STOPPED,
        severity=Severity.INFO,
    )


@rule("open.stopping", "open.stop_stuck")
def open_stopping(context: RuleContext) -> Decision | None:
    """Someone stops it: wait to see how it ends; a person at `timing.stop_limit_s`."""
    attempt = context.attempt_seen
    if attempt.status is not AttemptStatus.STOPPING:
        return None
    if context.in_state >= context.policy.timing.stop_limit:
        return context.hand_over(
            "open.stop_stuck", f"{attempt.name} has been stopping for {span_word(context.in_state)}"
        )
    return context.stay("open.stopping", f"{attempt.name} is being stopped by someone; waiting to see how it ends")


@rule()
def open_repairing(context: RuleContext) -> Decision | None:
    """The platform repairs it: [the platform repairs it](#the-platform-repairs-the-attempt)."""
    is_repairing = context.attempt_seen.status is AttemptStatus.REPAIRING
    return decided_by(PLATFORM_REPAIRS, context) if is_repairing else None


@rule()
def open_ended(context: RuleContext) -> Decision | None:
    """It has ended otherwise: [an attempt has ended](#an-attempt-has-ended)."""
    return decided_by(ENDED, context) if context.attempt_seen.status.has_ended else None


@rule("order.checkpoint_no_run", "playbook.restart")
def open_ordered_in_queue(context: RuleContext) -> Decision | None:
    """An order about a run that waits in the queue: there is nothing to save; a resubmission begins with its stop."""
    start = context.attempt_seen.start
    if context.ordered is None or start is None or not start.is_queued:
        return None
    if context.ordered == "checkpoint":
        return _no_checkpoint_now(context)
    return begin_stop(context, "playbook.restart", f"{story(context)} It waits in the queue: there is nothing to save.")


@rule("open.queued", "open.held", "open.pending_for_ever", "open.queue_limit")
def open_queued(context: RuleContext) -> Decision | None:
    """It waits in the queue: left alone; notified if it is held, can never start, or waits past the policy's limit."""
    return waiting_in_queue(context, context.attempt_seen, group="open") if context.ordered is None else None


@rule("defer.platform_repair", "wait.spot")
def defer_platform_repair(context: RuleContext) -> Decision | None:
    """The platform repairs it: wait an hour, because two must not repair one run; for Spot, as long as it takes."""
    attempt = context.attempt_seen
    if context.incident.phase in BEFORE_NOTICE:
        return context.move(
            "defer.platform_repair",
            f"the platform repairs {attempt.name} automatically ({attempt.detail}); two actors must not repair one run",
            Phase.HOLDING,
        )
    if attempt.waits_for_spot and context.ordered is None:
        return wait_for_spot(context, attempt)
    if context.in_state < context.policy.timing.repair_grace:
        return context.stay("defer.platform_repair", f"the platform still repairs {attempt.name}")
    return None


@rule("order.checkpoint_no_run")
def repair_checkpoint_no_run(context: RuleContext) -> Decision | None:
    """A person ordered a checkpoint of it: there is nothing to save."""
    return _no_checkpoint_now(context) if context.ordered == "checkpoint" else None


@rule("defer.grace_over")
def defer_grace_over(context: RuleContext) -> Decision:
    """It is in repair for longer: stopped and resubmitted."""
    name = context.attempt_seen.name
    return begin_stop(context, "defer.grace_over", f"{name} is in repair longer than the policy's grace.")


def _no_checkpoint_now(context: RuleContext) -> Decision:
    return context.close(
        "order.checkpoint_no_run",
        f"{context.attempt_seen.name} is {context.attempt_seen.status}: there is nothing to save",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


PLATFORM_REPAIRS: Final = (
    playbook_tell,
    defer_platform_repair,
    repair_checkpoint_no_run,
    playbook_hand_over,
    defer_grace_over,
)
OPEN: Final = (
    open_unseen,
    not_listed,
    order_checkpoint_no_run,
    order_owner_stopped,
    open_resubmit_ordered,
    ended_completed_poisoned,
    ended_unproven,
    open_completed,
    *CANCELLED,
    open_owner_stopped,
    open_stopping,
    open_repairing,
    open_ended,
    ended_finished_poisoned,
    ended_finishing,
    open_ordered_in_queue,
    open_queued,
    start_suspended,
    healed,
    claim_denied,
    defer_refuted,
    heal_node_mended,
    claim_fast_again,
    claim_late,
    spike_healed,
    defer_began_anew,
    playbook_tell,
    nan_watching,
    spike_watching,
    silence_notified,
    playbook_hand_over,
    open_shadow,
    defer_repaired,
    defer_confirm_alert,
    playbook_roll_back,
    playbook_checkpoint,
    defer_refuted_state,
    defer_confirm,
    playbook_restart,
)
