"""Rules for a new attempt that is well so far: how far it is, and what is not known of it."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    has_passed,
    span_word,
    step_word,
    subject,
    why_unknown,
)
from chalicelib.domain.faults.stalls import is_as_fast_as_usual, usual_pace
from chalicelib.domain.model.action import Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.resume.recovery_doubts import doubt_of, in_doubt
from chalicelib.domain.resume.rollback import concluded_on_recovery
from chalicelib.domain.rules.run.trouble_again import ALIVE, silent
from chalicelib.domain.run.bisection import left_out_word
from chalicelib.domain.run.liveness import NEXT_HEARTBEAT
from chalicelib.domain.run.movement import watch
from rekindle.protocol.signals import FaultClass

BLIND_NOTIFIED: Final = timedelta(minutes=5)  # it may train again what was trained: long before it is given up


@rule("verify.loss_unseen", "verify.loss_unseen_limit")
def verify_loss_unseen(context: RuleContext) -> Decision | None:
    """It is past the skipped data with an unknown loss: wait; a person after 30 minutes.

    Steps alone do not show that its loss is well.
    """
    incident, attempt = context.incident, context.attempt_seen
    if not _is_past(context) or not isinstance(incident.loss.verify_to, Known):
        return None
    if attempt.loss_health in ("ok", "watch"):
        return None
    reason = f"{_past(context)}the data that was left out, but nothing shows how its loss is"
    if context.in_state < context.policy.timing.verify_blind:
        return context.stay("verify.loss_unseen", reason)
    return context.hand_over("verify.loss_unseen_limit", reason, severity=Severity.WARNING)


@rule("verify.slow", "verify.slow_limit")
def verify_slow(context: RuleContext) -> Decision | None:
    """It was restarted for slowness, and is not as fast as usual: wait; a person after 30 minutes."""
    incident, attempt = context.incident, context.attempt_seen
    if not _is_past(context) or incident.fault is not FaultClass.THROUGHPUT_DROP:
        return None
    if is_as_fast_as_usual(incident, attempt):
        return None
    known = usual_pace(incident)
    text = f"{attempt.step_s:.3g} s a step" if attempt.step_s is not None else "an unknown time a step"
    was = f"{min(known):.3g} s was usual" if known else "what was usual is not known"
    reason = f"{attempt.name} takes {text}, {was}: that it moves does not show that its speed is back"
    if context.in_state < context.policy.timing.verify_blind:
        return context.stay("verify.slow", reason)
    return context.hand_over("verify.slow_limit", reason, severity=Severity.WARNING)


@rule("verify.passed")
def verify_passed(context: RuleContext) -> Decision | None:
    """It is past the step at which the old attempt ended, without a doubt: recovered."""
    if not _is_past(context):
        return None
    context = dataclasses.replace(context, incident=concluded_on_recovery(context.incident))
    ended = "went bad" if context.incident.loss.onsets else "ended"
    left_out = left_out_word(context.incident)
    return context.close(
        "verify.passed",
        f"{_past(context)}{step_word(context.incident.target_step)} where the old one {ended}{left_out}",
        Phase.RECOVERED,
        severity=Severity.WARNING if left_out else Severity.INFO,
    )


@rule("verify.starting", "verify.never_started")
def verify_starting(context: RuleContext) -> Decision | None:
    """It is starting: wait; a person after `timing.start_limit_s`."""
    attempt = context.attempt_seen
    if isinstance(attempt.last_step, Known) or attempt.status is not AttemptStatus.STARTING:
        return None
    if context.in_phase < context.policy.timing.start_limit:
        starting = context.stay("verify.starting", f"{attempt.name} is starting ({attempt.detail})")
        # Its first event wakes us.
        return dataclasses.replace(starting, look_again_in=context.policy.timing.look_max)
    return context.hand_over(
        "verify.never_started",
        f"{attempt.name} has not started for {span_word(context.in_phase)} ({attempt.detail}); a person must look",
    )


@rule("verify.blind", "verify.blind_limit")
def verify_blind(context: RuleContext) -> Decision | None:
    """Its steps cannot be read: notified after five minutes; a person after 30 minutes."""
    attempt = context.attempt_seen
    if isinstance(attempt.last_step, Known):
        return None
    if context.in_state < min(context.policy.timing.look_max, context.policy.timing.verify_blind):
        return context.stay("verify.blind", f"{attempt.name} has just begun; its first step is not seen yet")
    if context.in_state < context.policy.timing.verify_blind:
        reason = f"{attempt.name} runs, but its steps cannot be seen: {why_unknown(attempt.last_step)}"
        once = f"verify.blind:{attempt.name}"
        if context.in_state < BLIND_NOTIFIED or context.is_told(once):
            return context.stay("verify.blind", reason)
        text = f"{reason}. Whether it resumed where it was to is not known either, and is worth a look."
        notice = Notify(severity=Severity.WARNING, title=f"{subject(context)}: its steps cannot be seen", text=text)
        return context.with_told(once).stay("verify.blind", reason, notice)
    return context.hand_over(
        "verify.blind_limit",
        f"{attempt.name} has run for {span_word(context.in_state)} without failing, but its steps cannot be seen "
        f"({why_unknown(attempt.last_step)}): whether it progresses is for a person to check",
        severity=Severity.WARNING,
    )


@rule("verify.silent", "verify.unheard")
def verify_silent(context: RuleContext) -> Decision | RuleContext:
    """It stands still for `timing.silent_limit_s`: stopped; notified only where no heartbeat is heard either."""
    context, still = watch(context, context.attempt_seen)
    return silent(context, still) or context


@rule("verify.doubt", "verify.doubt_limit")
def verify_doubt(context: RuleContext) -> Decision | RuleContext:
    """It is past the old step, but in doubt: observed again; a person after 30 minutes.

    It stands still there, has made under three steps of its own, its heartbeat is over a minute old or from before a
    start in its place, or its loss is unknown.
    """
    attempt = context.attempt_seen
    doubt = doubt_of(context, attempt)
    if doubt and _has_passed_all(context):
        return in_doubt(context, attempt, doubt)
    return context.changed(doubt_since=None)


@rule("verify.moves", "verify.moving")
def verify_moves(context: RuleContext) -> Decision | None:
    """Where the old attempt ended is unknown: it has recovered once it moves past its resume point without a doubt."""
    attempt, incident = context.attempt_seen, context.incident
    if isinstance(incident.target_step, Known):
        return None
    tries = incident.resubmission.tries
    resumed = tries[-1].resume_step if tries else Unknown("no try on record")
    known = (step for step in (resumed, attempt.first_step, incident.tracking.watch_step) if isinstance(step, Known))
    base = next(known, resumed)
    is_past = has_passed(attempt.last_step, base) and not doubt_of(context, attempt)
    if is_past and context.in_phase >= context.policy.timing.look_max:
        return context.close(
            "verify.moves",
            f"{attempt.name} moves: step {step_word(attempt.last_step)}, resumed at {step_word(base)}. Where the old "
            f"attempt ended is unknown ({why_unknown(incident.target_step)})",
            Phase.RECOVERED,
            severity=Severity.WARNING,
        )
    return context.stay("verify.moving", f"{attempt.name} is at step {step_word(attempt.last_step)}")


@rule("verify.waiting")
def verify_waiting(context: RuleContext) -> Decision:
    """It moves, and is not past the old step yet: wait until it may be."""
    attempt = context.attempt_seen
    waiting = context.stay(
        "verify.waiting",
        f"{attempt.name} is at step {step_word(attempt.last_step)}; past {step_word(context.incident.target_step)} it "
        "counts",
    )
    return dataclasses.replace(waiting, look_again_in=_until_passed(context, attempt) or waiting.look_again_in)


def _until_passed(context: RuleContext, attempt: AttemptView) -> timedelta | None:
    """When its heartbeat may show the step that counts, at its own pace; None where that is unknown.

    Until then a look could see nothing, unless an event wakes it. Within the bounds of the policy, and not sooner than
    the next heartbeat.
    """
    goals = [
        step.value
        for step in (context.incident.target_step, context.incident.loss.verify_to)
        if isinstance(step, Known)
    ]
    at, pace_s = attempt.last_step, attempt.step_s
    if not goals or not isinstance(at, Known) or not pace_s or attempt.heartbeat_at is None:
        return None
    goal = max(goals) + 1
    skipped = sum(
        max(0, min(window.to_step, goal) - max(window.from_step, at.value + 1))
        for window in context.incident.loss.skips
    )
    passes_at = attempt.heartbeat_at + timedelta(seconds=max(goal - at.value - skipped, 0) * pace_s)
    soonest = min(max(NEXT_HEARTBEAT, context.policy.timing.look_min), context.policy.timing.look_max)
    return min(max(passes_at - context.now, soonest), context.policy.timing.look_max)


def _is_past(context: RuleContext) -> bool:
    """It lives, and is past all that counts, without a doubt."""
    attempt = context.attempt_seen
    return attempt.status in ALIVE and not doubt_of(context, attempt) and _has_passed_all(context)


def _has_passed_all(context: RuleContext) -> bool:
    """The step that the old one ended at, and the end of the data where it may go bad again."""
    verify_to, last_step = context.incident.loss.verify_to, context.attempt_seen.last_step
    is_past_data = not isinstance(verify_to, Known) or has_passed(last_step, verify_to)
    return is_past_data and has_passed(last_step, context.incident.target_step)


def _past(context: RuleContext) -> str:
    return f"{context.attempt_seen.name} is at step {step_word(context.attempt_seen.last_step)}, past "
