"""A run whose training is over, while the platform still shows it running: it can neither crash nor hang. Pure."""

from __future__ import annotations

from datetime import timedelta

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, is_poisoned, span_word, step_word, story
from chalicelib.domain.fault_specs.faults import WAITED_OUT
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import AttemptStatus
from chalicelib.domain.run.ending import crashed, doubt, is_settled
from chalicelib.domain.run.movement import new_watch


@rule("ended.finished_poisoned")
def ended_finished_poisoned(context: RuleContext) -> Decision | None:
    """Its training is over, with a loss that is not finite at its end: a person, and nothing is stopped."""
    incident, attempt = context.incident, context.attempt_seen
    if not _is_over(context) or not incident.is_poisoned or context.policy.shadow:
        return None
    return context.hand_over(
        "ended.finished_poisoned",
        f"{attempt.name} has finished training with a loss that is not finite since step "
        f"{step_word(incident.loss.onset_step)}: what it saves now is not to be used. {story(context)}",
    )


@rule("ended.finishing", "ended.finishing_limit")
def ended_finishing(context: RuleContext) -> Decision | None:
    """Its training is over: wait for its end; a person at the capacity limit.

    None where the run still trains, or something else is wrong.
    """
    incident, attempt = context.incident, context.attempt_seen
    if not _is_over(context):
        return None
    is_waited_out = incident.fault in WAITED_OUT or incident.phase is Phase.VERIFYING
    if is_poisoned(context, attempt) or not is_waited_out:
        return None
    reason = (
        f"{attempt.name} has finished training ({attempt.work or attempt.detail}): waiting for the platform to end it"
    )
    heartbeat_age = context.now - attempt.heartbeat_at if attempt.heartbeat_at is not None else timedelta(0)
    waited = max(context.in_phase, heartbeat_age)
    if waited >= context.policy.resubmission.capacity_limit:
        return context.hand_over(
            "ended.finishing_limit", f"{reason} for {span_word(waited)}", severity=Severity.WARNING
        )
    if incident.phase in (Phase.OPEN, Phase.WATCHING):
        return context.move("ended.finishing", reason, Phase.HOLDING)
    if incident.phase is Phase.CHECKPOINTING:
        to = Phase.VERIFYING if incident.resubmission.tries else Phase.HOLDING
        return context.changed(**new_watch()).move("ended.finishing", reason, to)
    return context.stay("ended.finishing", reason)


def _is_over(context: RuleContext) -> bool:
    """It runs and has finished training. What a person orders is done to such a run as well; the attempt that the order
    has led to is one like any other.
    """
    incident, attempt = context.incident, context.attempt_seen
    is_ordered = incident.order is not None and not incident.resubmission.tries
    return attempt.status is AttemptStatus.RUNNING and attempt.is_finishing and not is_ordered


@rule("ended.unproven", "ended.last_heartbeat", "ended.goes_on")
def ended_unproven(context: RuleContext) -> Decision | None:
    """It completed, and nothing proves that it finished: its last heartbeat is waited for, then a person, unless the
    next link of the run's chain continues it.
    """
    attempt = context.attempt
    why = doubt(attempt) if attempt is not None else ""
    if attempt is None or not why:
        return None
    if context.incident.phase is Phase.VERIFYING and not crashed(attempt):
        return None  # its last heartbeat is waited for longer there
    if not is_settled(attempt, context.now):
        return context.stay("ended.last_heartbeat", f"{attempt.name} has completed; its last heartbeat is waited for")
    reason = f"{attempt.name} completed, and nothing proves that it finished: {why}."
    if isinstance(context.seen.next_link, Known):
        link = context.seen.next_link.value
        reason = f"{reason} {link}, which is protected as a Job of its own, continues in the same mailbox"
        return context.close("ended.goes_on", reason, Phase.STOPPED, severity=Severity.WARNING)
    return context.hand_over(
        "ended.unproven",
        f"{reason} Whether it did is for a person to say; an order to resubmit it goes on from its newest checkpoint",
    )


@rule("ended.unproven", "ended.last_heartbeat", "ended.goes_on")
def ended_unproven_unordered(context: RuleContext) -> Decision | RuleContext | None:
    """It completed meanwhile, by no order, and nothing proves that it finished: weighed as in any other phase."""
    return ended_unproven(context) if context.ordered is None else None


@rule("ended.completed_poisoned")
def ended_completed_poisoned(context: RuleContext) -> Decision | None:
    """It completed with a loss that is not finite, so that its last weights are of no use: a person."""
    attempt = context.attempt
    if attempt is None or attempt.status is not AttemptStatus.COMPLETED or not is_poisoned(context, attempt):
        return None
    return context.hand_over(
        "ended.completed_poisoned",
        f"{attempt.name} completed with a loss that is not finite since step "
        f"{step_word(context.incident.loss.onset_step)}: "
        f"what it left is not to be used. {story(context)}",
    )
