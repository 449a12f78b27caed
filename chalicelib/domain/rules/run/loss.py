"""A loss that has gone bad: watched first, rolled back only to a known good checkpoint, notified in full.

The run is left training until it is certain that it is to be replaced: a spike that heals costs nothing, and a run for
which no verified checkpoint lies far enough back is a person's to judge while it still lives.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from chalicelib.domain.claims.movement import new_watch, watch
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    span_word,
    step_word,
    story,
    whole_story,
    why_unknown,
)
from chalicelib.domain.faults.loss import BadLossState, marked_healed, noted_bad, turn_of
from chalicelib.domain.faults.poison import as_begun, without_loaded
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.evidence import Need, is_forensic
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import STALLED, AttemptView
from chalicelib.domain.policy.playbooks import Deadline
from chalicelib.domain.run.first_response import begin_checkpoint, begin_stop, shadow, with_need
from chalicelib.domain.run.resume_point import choose_resume_point
from chalicelib.domain.run.rollback import account_rollback, first_onset, has_skipped_enough, rewind_steps
from rekindle.protocol.signals import FaultClass

# --- watching -------------------------------------------------------------------------------------------------------


def watch_loss(context: RuleContext, attempt: AttemptView) -> Decision:
    """Give a bad loss the steps in which it may heal, in whatever phase the Incident is."""
    bout = context.incident.loss.bout
    if bout is None:  # a Signal of another kind of source: nothing was judged yet
        return _unseen(context, attempt, context.in_phase if context.incident.phase is Phase.WATCHING else timedelta(0))
    match turn_of(bout, attempt, context.policy):
        case BadLossState.HEALED:
            return close_healed(context, attempt)
        case BadLossState.LASTS:
            reason = (
                f"{story(context)} {_where(context, attempt)}, more than "
                f"{context.policy.loss.spike_heal_steps} steps on."
            )
            return roll_back(context, attempt, "spike.lasts", reason)
        case BadLossState.YOUNG:
            return _young(context, attempt)
        case BadLossState.UNSEEN:
            return _unseen(context, attempt, context.now - (bout.unseen_since or context.now))


def close_healed(context: RuleContext, attempt: AttemptView) -> Decision:
    """It is over. Nothing was spent; only what was saved meanwhile is never resumed from."""
    bout = context.incident.loss.bout
    context = replace(context, incident=marked_healed(context.incident))
    assert bout is not None  # noqa: S101  only a bout can have healed
    onset = step_word(bout.first_bad)
    kept = ""
    if isinstance(bout.first_bad, Known) and bout.healed_step is not None and bout.healed_step > bout.first_bad.value:
        kept = f" What was saved at steps {onset} to {bout.healed_step - 1} is not resumed from."
    spent = (
        "Nothing was stopped or resubmitted."
        if context.incident.halt.asks
        else "Nothing was stopped, saved or resubmitted."
    )
    text = (
        f"{attempt.name} healed without help: bad from step {onset}, well again at step {bout.healed_step}. "
        f"{spent}{kept}"
    )
    if attempt.work == STALLED:  # an Incident of its own: this one is about the loss
        return context.close(
            "spike.healed_stalled", f"{text} But it makes no step now.", Phase.STOPPED, severity=Severity.WARNING
        )
    return context.close("spike.healed", text, Phase.RECOVERED, severity=Severity.INFO)


def _where(context: RuleContext, attempt: AttemptView) -> str:
    bout = context.incident.loss.bout
    since = step_word(bout.first_bad) if bout is not None else "an unknown step"
    return f"{attempt.name} is at step {step_word(attempt.judged_at)}, bad since step {since}"


def _young(context: RuleContext, attempt: AttemptView) -> Decision:
    reason = (
        f"{story(context)} {_where(context, attempt)}: it may heal without help within "
        f"{context.policy.loss.spike_heal_steps} "
        "steps, and the next verdict after them decides"
    )
    if context.incident.phase in (Phase.OPEN, Phase.HOLDING):
        return context.changed(**new_watch()).move("spike.watching", reason, Phase.WATCHING)
    context, still = watch(context, attempt)
    if still >= context.policy.timing.silent_limit:
        return context.close(
            "spike.undecided",
            f"{reason}. But it has not moved for {span_word(still)}, so nothing is decided: a person should look",
            Phase.HANDED_OVER,
            severity=Severity.WARNING,
        )
    return context.stay("spike.watching", reason)


def _unseen(context: RuleContext, attempt: AttemptView, unseen_for: timedelta) -> Decision:
    """Neither healed nor still bad, but unknown: waited for, then notified."""
    reason = (
        f"{story(context)} Whether the loss of {attempt.name} is still bad is not known "
        f"(its own judgement reads {attempt.loss_health!r})"
    )
    if context.incident.phase in (Phase.OPEN, Phase.HOLDING):
        return context.changed(**new_watch()).move("spike.unseen", reason, Phase.WATCHING)
    if unseen_for < context.policy.timing.tell_open:
        return context.stay("spike.unseen", reason)
    return context.close("spike.unseen_limit", f"{reason}: nothing was done", Phase.STOPPED, severity=Severity.WARNING)


# --- rolling back ---------------------------------------------------------------------------------------------------


def roll_back(context: RuleContext, attempt: AttemptView, rule: str, reason: str) -> Decision:
    """Stop a living run that has gone bad, once there is a verified checkpoint to resume it from.

    In this order: is there a place to go; what the row's deadline says is saved for forensics; the stop.
    """
    if context.policy.shadow:
        return shadow(context, f"roll {attempt.name} back")
    bad = noted_bad(context.incident)
    checkpoints = context.seen.checkpoints
    if not isinstance(checkpoints, Known):
        return _look_for_a_place(context, reason)
    bad = without_loaded(as_begun(bad, attempt), attempt, checkpoints.value)
    planned = account_rollback(bad, context.policy)
    context = replace(context, incident=bad)
    if planned.loss.rollbacks > context.policy.budgets.max_rollbacks:
        happened = whole_story(planned.changed(skips=bad.loss.skips))
        spent = f"{bad.loss.rollbacks} rollbacks did not cure it. {happened}"
        return _nowhere_to_go(context, "budget.rollbacks", f"{reason} {spent}")
    if planned.loss.skips != bad.loss.skips and has_skipped_enough(bad, context.policy):
        spent = f"So much data is left out already that leaving out more is for a person to decide. {whole_story(bad)}"
        return _nowhere_to_go(context, "budget.skips", f"{reason} {spent}")
    point = choose_resume_point(checkpoints.value, planned, context.policy)
    if point is None:
        return _nowhere_to_go(context, "rollback.no_place", f"{reason} {_no_place(context, planned)}")
    if _wants_forensics(context, attempt):
        return begin_checkpoint(context, attempt, "rollback.forensics")
    return begin_stop(context, rule, f"{reason} It can resume {point.text}.")


def _look_for_a_place(context: RuleContext, reason: str) -> Decision:
    incident = context.incident
    if Need.CHECKPOINTS not in incident.evidence.needs:
        needs = with_need(incident.evidence.needs, Need.CHECKPOINTS, *_reports_of(incident))
        looking = context.stay(
            "rollback.looking",
            f"{reason} Looking for a verified checkpoint from before it, before anything is stopped.",
            needs=needs,
            needs_since=context.now,
        )
        return replace(looking, look_again_in=timedelta(0))
    since = incident.evidence.needs_since or context.now
    unread = f"{reason} But the checkpoints cannot be read: {why_unknown(context.seen.checkpoints)}"
    reason = f"{unread}; nothing is stopped before there is a place to go"
    return context.unread("rollback.unseen", "rollback.unseen_limit", reason, context.now - since, **_since(context))


def _since(context: RuleContext) -> dict[str, Any]:
    return {} if context.incident.evidence.needs_since is not None else {"needs_since": context.now}


def _reports_of(incident: Incident) -> tuple[Need, ...]:
    """The rank that went non-finite first tells hardware from data; a spike is no single rank's."""
    return (Need.REPORTS,) if incident.fault is FaultClass.NON_FINITE else ()


def _no_place(context: RuleContext, planned: Incident) -> str:
    back = rewind_steps(planned, context.policy)
    onset = first_onset(planned)
    limit = f"at least {back} steps before step {step_word(onset)}" if back else f"before step {step_word(onset)}"
    count = len(context.seen.checkpoints.value) if isinstance(context.seen.checkpoints, Known) else 0
    planned = planned.changed(skips=context.incident.loss.skips)  # what was left out, not what would have been
    return (
        f"No verified checkpoint lies {limit} ({count} checkpoint(s) seen). A younger one is not resumed from: it may "
        f"hold what went wrong. {whole_story(planned)}"
    )


def _nowhere_to_go(context: RuleContext, rule: str, reason: str) -> Decision:
    """A person decides; the policy sets whether a run that cannot be rolled back continues meanwhile."""
    if context.policy.loss.stop_without_resume_point:
        return begin_stop(context, rule, f"{reason} The policy says to stop it.")
    return context.hand_over(rule, f"{reason} {context.incident.attempt} is left running")


def _wants_forensics(context: RuleContext, attempt: AttemptView) -> bool:
    row = context.policy.playbook(context.incident.fault)
    ask = context.incident.halt.ask
    was_asked = ask is not None and ask.attempt == attempt.name and is_forensic(ask.request_id)
    return row.deadline is not Deadline.NONE and not was_asked
