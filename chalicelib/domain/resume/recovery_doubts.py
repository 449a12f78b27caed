"""A new attempt that is past where the old one ended: what keeps it from being called recovered yet. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.verdict import Decision, RuleContext, has_passed, span_word, step_word, story
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import FINISHED, STALLED, AttemptView

STALE: Final = timedelta(seconds=60)  # four heartbeats: what such a one shows was so then, and need not be so now
LAST_HEARTBEAT: Final = timedelta(minutes=15)  # for which the last heartbeat of a completed run is waited for
OWN_STEPS: Final = 3  # as many bad losses in a row as a monitor calls bad (rekindle/monitor/base/state.py, ACT_AFTER)


def doubt_of(context: RuleContext, attempt: AttemptView) -> str:
    """Why it is not called recovered yet, however far it is; empty for no doubt.

    A trainer may have loaded other weights than it was to, and a poisoned loss is no state before it has lasted: a
    first step past the mark shows neither that the weights are well nor that the run continues.
    """
    incident, first, last = context.incident, attempt.first_step, attempt.last_step
    if attempt.work == STALLED:
        return "it makes no step there"
    if attempt.heartbeat_at is not None and context.now - attempt.heartbeat_at >= STALE:
        return f"its heartbeat is {span_word(context.now - attempt.heartbeat_at)} old"
    back_at = incident.tracking.repaired_at
    if attempt.heartbeat_at is not None and back_at is not None and attempt.heartbeat_at < back_at:
        return "its heartbeat is from before it was started again in its place"
    if isinstance(first, Known) and isinstance(last, Known) and last.value < first.value + OWN_STEPS - 1:
        return f"a bad loss would show after {OWN_STEPS} steps of its own, the first of which was {first.value}"
    was_bad = bool(incident.loss.onsets) or incident.loss.onset_attempt is not None
    if attempt.loss_state == "none" and (was_bad or attempt.loss_health == "watch"):
        return "its newest loss is not known to be finite"
    return ""


def in_doubt(context: RuleContext, attempt: AttemptView, doubt: str) -> Decision:
    """It is watched on; a doubt that lasts is a person's."""
    reason = f"{attempt.name} is at step {step_word(attempt.last_step)}, past where the old one ended, but {doubt}"
    since = context.incident.tracking.doubt_since or context.now
    if context.now - since < context.policy.timing.verify_blind:
        return context.stay("verify.doubt", reason, doubt_since=since)
    return context.hand_over("verify.doubt_limit", reason, severity=Severity.WARNING)


def last_heartbeat_due(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """It has completed, and its newest heartbeat is from before its end: later ones, which may be late, are waited for,
    since they may show a bad loss.
    """
    if not _has_unseen_end(context, attempt):
        return None
    since = context.now - attempt.ended_at if attempt.ended_at is not None else context.in_state
    if since >= LAST_HEARTBEAT:
        return None
    return context.stay("verify.last_heartbeat", f"{attempt.name} has completed; its last heartbeat is waited for")


def completed_unseen(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """It has completed, and how its loss was at its end is not known: its heartbeats were read until some time before,
    or a bad loss came before and only one that is known to be finite counts.
    """
    was_bad = bool(context.incident.loss.onsets) or context.incident.loss.onset_attempt is not None
    if _has_unseen_end(context, attempt):
        unseen = "no step of it was seen"
        if isinstance(attempt.last_step, Known):
            unseen = f"its steps after {step_word(attempt.last_step)} were not seen"
    elif was_bad and attempt.loss_state != "finite":
        unseen = "nothing shows how its loss was, after one that was bad"
    else:
        return None
    return context.hand_over(
        "verify.completed_unseen",
        f"{attempt.name} has completed, and {unseen}. {story(context)} "
        "Whether what it left can be used is for a person to check",
        severity=Severity.WARNING,
    )


def _has_unseen_end(context: RuleContext, attempt: AttemptView) -> bool:
    """False for a run whose steps were never seen, in this attempt or before: it has no monitor. One that was not seen
    to pass the step at which the run had failed may have crashed there once more, whatever its platform calls it."""
    if attempt.is_heartbeat_unread:
        return True  # it has a monitor
    if attempt.work == FINISHED:
        return False
    if attempt.heartbeat_at is not None:
        return not attempt.is_heartbeat_last
    target = context.incident.target_step
    return isinstance(target, Known) and not has_passed(attempt.last_step, target)
