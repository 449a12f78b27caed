"""Verifying: an Incident is recovered only when the new attempt has passed the step the old one died at."""

from __future__ import annotations

import dataclasses
from typing import Final

from chalicelib.domain.decision.rule import decided_by, rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    span_word,
    stop_is_ours,
    why_unknown,
)
from chalicelib.domain.faults.loss import marked_healed
from chalicelib.domain.model.action import QuarantineCheckpoint, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.job import PLAN_IGNORED, is_far_below
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.resume.load_failures import proven_by
from chalicelib.domain.resume.recovery_doubts import completed_unseen, last_heartbeat_due
from chalicelib.domain.rules.run.cancelled import CANCELLED
from chalicelib.domain.rules.run.ended import ENDED
from chalicelib.domain.rules.run.platform_restart import ADOPTED
from chalicelib.domain.rules.run.progress import (
    verify_blind,
    verify_doubt,
    verify_loss_unseen,
    verify_moves,
    verify_passed,
    verify_silent,
    verify_slow,
    verify_starting,
    verify_waiting,
)
from chalicelib.domain.rules.run.queued import (
    not_listed,
    start_suspended,
    superfluous_exclusion,
    wait_for_spot,
    waiting_in_queue,
)
from chalicelib.domain.rules.run.trouble_again import verify_non_finite, verify_spike, verify_stalled, verify_tell
from chalicelib.domain.run.bad_nodes import to_exclude
from chalicelib.domain.run.finishing import (
    ended_completed_poisoned,
    ended_finished_poisoned,
    ended_finishing,
    ended_unproven,
)
from chalicelib.domain.run.first_response import begin_stop
from chalicelib.domain.run.sizes import order_smaller_start


@rule("verify.unseen", "verify.unseen_limit")
def verify_unseen(context: RuleContext) -> Decision | None:
    """It cannot be read: wait; paged at `timing.stop_limit_s`, a person at `resubmission.capacity_limit_s`."""
    if context.attempt is not None:
        return None
    reason = f"the new attempt cannot be read: {why_unknown(context.seen.attempt)}"
    return context.unread("verify.unseen", "verify.unseen_limit", reason, context.unseen_for)


@rule("verify.last_heartbeat")
def verify_last_heartbeat(context: RuleContext) -> Decision | None:
    """It completed, and its newest heartbeat is from before its end: the last one is waited for, 15 minutes at most."""
    attempt = context.attempt_seen
    return last_heartbeat_due(context, attempt) if attempt.status is AttemptStatus.COMPLETED else None


@rule("verify.completed_unseen")
def verify_completed_unseen(context: RuleContext) -> Decision | None:
    """It completed with an unknown loss, or its last steps were not seen: notified."""
    attempt = context.attempt_seen
    return completed_unseen(context, attempt) if attempt.status is AttemptStatus.COMPLETED else None


@rule("verify.completed")
def verify_completed(context: RuleContext) -> Decision | None:
    """It has completed: recovered."""
    attempt = context.attempt_seen
    if attempt.status is not AttemptStatus.COMPLETED:
        return None
    return context.close("verify.completed", f"{attempt.name} has completed", Phase.RECOVERED, severity=Severity.INFO)


@rule("verify.owner_stopped")
def verify_owner_stopped(context: RuleContext) -> Decision | None:
    """It was stopped, and not by us: left alone."""
    attempt = context.attempt_seen
    if attempt.status is not AttemptStatus.STOPPED or stop_is_ours(context, attempt):
        return None
    return context.close(
        "verify.owner_stopped",
        f"{attempt.name} was stopped, and not by us",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


@rule()
def verify_ended(context: RuleContext) -> Decision | None:
    """It has ended otherwise, however far it came: [an attempt has ended](#an-attempt-has-ended)."""
    return decided_by(ENDED, context) if context.attempt_seen.status.has_ended else None


@rule()
def verify_loss_healed(context: RuleContext) -> RuleContext:
    """Its bad loss may have healed: that is noted."""
    return dataclasses.replace(context, incident=marked_healed(context.incident))


@rule("verify.sibling")
def verify_sibling(context: RuleContext) -> Decision | None:
    """Ours waits in the queue, and the run was started by hand: ours makes way."""
    attempt = context.attempt_seen
    if not isinstance(context.seen.sibling, Known) or not context.seen.is_ours:
        return None
    if attempt.start is None or not attempt.start.is_queued:
        return None
    beside = context.seen.sibling.value
    reason = f"{beside}, which was started by hand, continues in its place, and {attempt.name} has not begun."
    return begin_stop(context, "verify.sibling", reason, for_sibling=beside)


@rule(PLAN_IGNORED)
def verify_plan_ignored(context: RuleContext) -> Decision | None:
    """It began far below the step it was given: a person."""
    attempt = context.attempt_seen
    last = context.incident.resubmission.tries[-1] if context.incident.resubmission.tries else None
    if last is None or last.name != attempt.name:
        return None
    if not isinstance(last.resume_step, Known) or not isinstance(attempt.first_step, Known):
        return None
    if not is_far_below(attempt.first_step, last.resume_step):
        return None
    return context.hand_over(
        PLAN_IGNORED,
        f"{attempt.name} was to resume at step {last.resume_step.value}, and began at step {attempt.first_step.value}: "
        "it does not read its resume plan, or could not load the checkpoint. It is left running, and does again what "
        "was done; whether it should is for a person to decide",
    )


@rule("verify.other_loads")
def verify_other_loads(context: RuleContext) -> Decision | None:
    """It has passed where attempts from a checkpoint that was passed over died: that checkpoint is quarantined."""
    proven = proven_by(context.incident, context.attempt_seen)
    if proven is None or proven.root is None:
        return None
    mark = QuarantineCheckpoint(root=proven.root, why=proven.why)
    marked = (*context.incident.resubmission.quarantined, proven.key)
    return context.stay("verify.other_loads", f"{proven.why}: quarantined", mark, quarantined=marked)


@rule("verify.platform_repair", "wait.spot", "defer.grace_over")
def verify_platform_repair(context: RuleContext) -> Decision | None:
    """The platform repairs it: wait an hour, then stop it; one that waits for Spot is left to its own limit."""
    attempt = context.attempt_seen
    if attempt.status is not AttemptStatus.REPAIRING:
        return None
    if attempt.waits_for_spot:
        return wait_for_spot(context, attempt)
    if context.in_state < context.policy.timing.repair_grace:
        return context.stay("verify.platform_repair", f"the platform repairs {attempt.name} automatically")
    return begin_stop(context, "defer.grace_over", f"{attempt.name} is in repair longer than the policy's grace.")


@rule("verify.stopping", "verify.stop_stuck")
def verify_stopping(context: RuleContext) -> Decision | None:
    """Someone stops it: wait to see how it ends; a person at `timing.stop_limit_s`."""
    attempt = context.attempt_seen
    if attempt.status is not AttemptStatus.STOPPING:
        return None
    if context.in_state >= context.policy.timing.stop_limit:
        return context.hand_over(
            "verify.stop_stuck", f"{attempt.name} has been stopping for {span_word(context.in_state)}"
        )
    return context.stay(
        "verify.stopping", f"{attempt.name} is being stopped, and not by us; waiting to see how it ends"
    )


@rule("verify.exclusion_lifted")
def verify_exclusion_lifted(context: RuleContext) -> Decision | None:
    """It waits in the queue and excludes a node that is cordoned or repaired by now, or that only an earlier start was
    kept away from: no longer excluded."""
    return superfluous_exclusion(context, context.attempt_seen, to_exclude(context.incident, context.seen))


@rule("verify.smaller", "verify.smaller_again", "verify.smaller_refused")
def verify_smaller(context: RuleContext) -> Decision | None:
    """It waits for nodes for half of `timing.start_limit_s`: reduced once, if its policy and script allow it."""
    return order_smaller_start(context, context.attempt_seen)


@rule("verify.queued", "verify.held", "verify.pending_for_ever", "verify.queue_limit")
def verify_queued(context: RuleContext) -> Decision | None:
    """It waits in the queue: left alone; notified if it is held, can never start, or waits past the policy's limit."""
    return waiting_in_queue(context, context.attempt_seen, group="verify")


VERIFYING: Final = (
    verify_unseen,
    not_listed,
    ended_completed_poisoned,
    verify_last_heartbeat,
    ended_unproven,
    verify_completed_unseen,
    verify_completed,
    *CANCELLED,
    verify_owner_stopped,
    verify_ended,
    verify_loss_healed,
    verify_sibling,
    verify_plan_ignored,
    *ADOPTED,
    ended_finished_poisoned,
    verify_non_finite,
    verify_stalled,
    verify_tell,
    verify_spike,
    verify_other_loads,
    ended_finishing,
    verify_loss_unseen,
    verify_slow,
    verify_passed,
    verify_platform_repair,
    verify_stopping,
    verify_exclusion_lifted,
    verify_smaller,
    verify_queued,
    start_suspended,
    verify_starting,
    verify_blind,
    verify_silent,
    verify_doubt,
    verify_moves,
    verify_waiting,
)
