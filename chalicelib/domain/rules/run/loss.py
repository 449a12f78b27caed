"""A loss that has gone bad: watched first, rolled back only to a known good checkpoint, notified in full.

The run is left training until it is certain that it is to be replaced: a spike that heals costs nothing, and a run for
which no verified checkpoint lies far enough back is a person's to judge while it still lives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import Rule, decided_by, rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    span_word,
    step_word,
    story,
    whole_story,
    why_unknown,
)
from chalicelib.domain.faults.lives import lives_in_vain
from chalicelib.domain.faults.loss import BadLossState, marked_healed, noted_bad, turn_of
from chalicelib.domain.faults.poison import as_begun, without_loaded
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.evidence import Need, is_forensic
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.job import is_far_below
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import STALLED, AttemptView
from chalicelib.domain.policy.playbooks import Deadline
from chalicelib.domain.resume.resume_point import ResumePoint, choose_resume_point
from chalicelib.domain.resume.rollback import account_rollback, first_onset, has_skipped_enough, rewind_steps
from chalicelib.domain.run.first_response import begin_checkpoint, begin_stop, shadow
from chalicelib.domain.run.hanging import with_need
from chalicelib.domain.run.movement import new_watch, watch
from rekindle.protocol.signals import FaultClass

# ---- watching ----


@rule("spike.unseen", "spike.unseen_limit")
def spike_unjudged(context: RuleContext) -> Decision | None:
    """Only another source than the run's monitor says so: wait for a verdict; notified after `timing.tell_open_s`."""
    if context.incident.loss.episode is not None:
        return None
    return _unseen(context, context.in_phase if context.incident.phase is Phase.WATCHING else timedelta(0))


@rule("spike.healed", "spike.healed_stalled")
def spike_healed_now(context: RuleContext) -> Decision | None:
    """It has healed: closed. If the run makes no step now, that opens an Incident of its own."""
    is_healed = _turn(context) is BadLossState.HEALED
    return close_healed(context, context.attempt_seen) if is_healed else None


@rule("spike.lasts")
def spike_lasts(context: RuleContext) -> Decision | None:
    """It lasts for more than `loss.spike_heal_steps` steps: [rolled back](#rolling-back)."""
    if _turn(context) is not BadLossState.LASTS:
        return None
    reason = f"{story(context)} {_where(context)}, more than {context.policy.loss.spike_heal_steps} steps on."
    return roll_back(context, "spike.lasts", reason)


@rule("budget.no_progress")
def spike_restarted_in_vain(context: RuleContext) -> Decision | None:
    """It is started again in its place `budgets.max_no_progress` times meanwhile, and gains nothing: a person."""
    attempt = context.attempt_seen
    in_vain = lives_in_vain(context.incident, attempt)
    if in_vain < max(context.policy.budgets.max_no_progress, 2):
        return None
    return context.hand_over(
        "budget.no_progress",
        f"{attempt.name} was started again in its place {in_vain} times without coming any further. {story(context)}",
    )


@rule("spike.watching", "spike.undecided")
def spike_young(context: RuleContext) -> Decision | None:
    """It may heal without help: watched; a person is notified if the run does not move meanwhile."""
    if _turn(context) is not BadLossState.YOUNG:
        return None
    reason = (
        f"{story(context)} {_where(context)}: it may heal without help within "
        f"{context.policy.loss.spike_heal_steps} "
        "steps, and the next verdict after them decides"
    )
    if context.incident.phase in (Phase.OPEN, Phase.HOLDING):
        return context.changed(**new_watch()).move("spike.watching", reason, Phase.WATCHING)
    context, still = watch(context, context.attempt_seen)
    if still >= context.policy.timing.silent_limit:
        return context.close(
            "spike.undecided",
            f"{reason}. But it has not moved for {span_word(still)}, so nothing is decided: a person should look",
            Phase.HANDED_OVER,
            severity=Severity.WARNING,
        )
    return context.stay("spike.watching", reason)


@rule("spike.unseen", "spike.unseen_limit")
def spike_unseen(context: RuleContext) -> Decision:
    """Whether it has healed is unknown: wait; notified after `timing.tell_open_s`."""
    episode = context.incident.loss.episode
    unseen_since = episode.unseen_since if episode is not None else None
    return _unseen(context, context.now - (unseen_since or context.now))


WATCHED_LOSS: Final = (
    spike_healed_now,
    spike_lasts,
    spike_restarted_in_vain,
    spike_unjudged,
    spike_young,
    spike_unseen,
)


def _turn(context: RuleContext) -> BadLossState | None:
    episode = context.incident.loss.episode
    return turn_of(episode, context.attempt_seen, context.policy) if episode is not None else None


def close_healed(context: RuleContext, attempt: AttemptView) -> Decision:
    """It is over. Nothing was spent; only what was saved meanwhile is never resumed from."""
    episode = context.incident.loss.episode
    context = replace(context, incident=marked_healed(context.incident))
    assert episode is not None  # noqa: S101  only a episode can have healed
    onset = step_word(episode.first_bad)
    kept = ""
    if (
        isinstance(episode.first_bad, Known)
        and episode.healed_step is not None
        and episode.healed_step > episode.first_bad.value
    ):
        kept = f" What was saved at steps {onset} to {episode.healed_step - 1} is not resumed from."
    spent = (
        "Nothing was stopped or resubmitted."
        if context.incident.halt.asks
        else "Nothing was stopped, saved or resubmitted."
    )
    text = (
        f"{attempt.name} healed without help: bad from step {onset}, well again at step {episode.healed_step}. "
        f"{spent}{kept}"
    )
    if attempt.work == STALLED:  # an Incident of its own: this one is about the loss
        return context.close(
            "spike.healed_stalled", f"{text} But it makes no step now.", Phase.STOPPED, severity=Severity.WARNING
        )
    return context.close("spike.healed", text, Phase.RECOVERED, severity=Severity.INFO)


def _where(context: RuleContext) -> str:
    episode, attempt = context.incident.loss.episode, context.attempt_seen
    since = step_word(episode.first_bad) if episode is not None else "an unknown step"
    return f"{attempt.name} is at step {step_word(attempt.judged_at)}, bad since step {since}"


def _unseen(context: RuleContext, unseen_for: timedelta) -> Decision:
    """Neither healed nor still bad, but unknown: waited for, then notified."""
    attempt = context.attempt_seen
    reason = (
        f"{story(context)} Whether the loss of {attempt.name} is still bad is not known "
        f"(its own judgement reads {attempt.loss_health!r})"
    )
    if context.incident.phase in (Phase.OPEN, Phase.HOLDING):
        return context.changed(**new_watch()).move("spike.unseen", reason, Phase.WATCHING)
    if unseen_for < context.policy.timing.tell_open:
        return context.stay("spike.unseen", reason)
    return context.close("spike.unseen_limit", f"{reason}: nothing was done", Phase.STOPPED, severity=Severity.WARNING)


# ---- rolling back: first a place to go, then what is saved for analysis, then the stop ----


@dataclass(frozen=True, slots=True)
class RollBack:
    """What is wanted: the rule that asks for it, and why."""

    name: str
    reason: str


def roll_back(context: RuleContext, name: str, reason: str) -> Decision:
    """Stop a living run that has gone bad, by the rule `name`, once there is a checkpoint to resume it from."""
    return decided_by(ROLLING_BACK, context, RollBack(name, reason))


@rule("guard.shadow")
def rollback_shadow(context: RuleContext, _: RollBack) -> Decision | None:
    """Shadow mode: only told."""
    return shadow(context, f"roll {context.attempt_seen.name} back") if context.policy.shadow else None


@rule("rollback.looking")
def rollback_looking(context: RuleContext, wanted: RollBack) -> Decision | None:
    """Before anything is stopped, a checkpoint from before it is looked for."""
    needs = context.incident.evidence.needs
    if isinstance(context.seen.checkpoints, Known) or Need.CHECKPOINTS in needs:
        return None
    # The rank that went non-finite first tells hardware from data; a spike is no single rank's.
    reports = (Need.REPORTS,) if context.incident.fault is FaultClass.NON_FINITE else ()
    looking = context.stay(
        "rollback.looking",
        f"{wanted.reason} Looking for a verified checkpoint from before it, before anything is stopped.",
        needs=with_need(needs, Need.CHECKPOINTS, *reports),
        needs_since=context.now,
    )
    return replace(looking, look_again_in=timedelta(0))


@rule("rollback.unseen", "rollback.unseen_limit")
def rollback_unseen(context: RuleContext, wanted: RollBack) -> Decision | None:
    """The checkpoints cannot be read: paged at `timing.stop_limit_s`, a person at `resubmission.capacity_limit_s`."""
    if isinstance(context.seen.checkpoints, Known):
        return None
    needs_since = context.incident.evidence.needs_since
    begun = {} if needs_since is not None else {"needs_since": context.now}
    unread = f"{wanted.reason} But the checkpoints cannot be read: {why_unknown(context.seen.checkpoints)}"
    text = f"{unread}; nothing is stopped before there is a place to go"
    since = needs_since or context.now
    return context.unread("rollback.unseen", "rollback.unseen_limit", text, context.now - since, **begun)


@rule("rollback.plan_ignored")
def rollback_plan_ignored(context: RuleContext, wanted: RollBack) -> Decision | None:
    """It was to go back, and began far beyond: it does not read its resume plan, so that going back again would change
    nothing. A person, where a run that cannot be rolled back is left running.
    """
    attempt, last = context.attempt_seen, context.incident.resubmission.pending
    if last is None or last.name != attempt.name or not last.went_back or attempt.life:
        return None
    if context.policy.loss.stop_without_resume_point or not is_far_below(last.resume_step, attempt.first_step):
        return None
    context = _noted(context)
    return context.hand_over(
        "rollback.plan_ignored",
        f"{wanted.reason} It was to go back to step {step_word(last.resume_step)}, and began at step "
        f"{step_word(attempt.first_step)}: it loads what it finds, not what its resume plan names. "
        f"{whole_story(context.incident)} {attempt.name} is left running",
    )


@rule()
def rollback_noted(context: RuleContext, _: RollBack) -> RuleContext:
    """Since when it has been bad, and from which checkpoint it began, is put on record."""
    return _noted(context)


@rule("budget.rollbacks")
def rollback_budget(context: RuleContext, wanted: RollBack) -> Decision | None:
    """`budgets.max_rollbacks` reached: a person; stopped only where `loss.stop_without_resume_point` says so."""
    bad, planned = context.incident, _planned(context)
    if planned.loss.rollbacks <= context.policy.budgets.max_rollbacks:
        return None
    happened = whole_story(planned.changed(skips=bad.loss.skips))
    spent = f"{bad.loss.rollbacks} rollbacks did not cure it. {happened}"
    return _nowhere_to_go(context, "budget.rollbacks", f"{wanted.reason} {spent}")


@rule("budget.skips")
def rollback_skips(context: RuleContext, wanted: RollBack) -> Decision | None:
    """Ten times `loss.skip_steps` of data are skipped over all Incidents: the same."""
    bad = context.incident
    if _planned(context).loss.skips == bad.loss.skips or not has_skipped_enough(bad, context.policy):
        return None
    spent = f"So much data is left out already that leaving out more is for a person to decide. {whole_story(bad)}"
    return _nowhere_to_go(context, "budget.skips", f"{wanted.reason} {spent}")


@rule("rollback.no_place")
def rollback_no_place(context: RuleContext, wanted: RollBack) -> Decision | None:
    """No verified checkpoint lies far enough back: the same."""
    if _point(context) is not None:
        return None
    return _nowhere_to_go(context, "rollback.no_place", f"{wanted.reason} {_no_place(context, _planned(context))}")


@rule("rollback.forensics")
def rollback_forensics(context: RuleContext, _: RollBack) -> Decision | None:
    """The bad state is saved for analysis first, where the playbook's row has a deadline for it."""
    attempt = context.attempt_seen
    wants = _wants_forensics(context, attempt)
    return begin_checkpoint(context, attempt, "rollback.forensics") if wants else None


@rule()
def rolled_back(context: RuleContext, wanted: RollBack) -> Decision | None:
    """It is [stopped](#before-a-stop), by the rule that asked for the rollback."""
    point = _point(context)
    return (
        begin_stop(context, wanted.name, f"{wanted.reason} It can resume {point.text}.") if point is not None else None
    )


ROLLING_BACK: Final[tuple[Rule[[RollBack]], ...]] = (
    rollback_shadow,
    rollback_looking,
    rollback_unseen,
    rollback_plan_ignored,
    rollback_noted,
    rollback_budget,
    rollback_skips,
    rollback_no_place,
    rollback_forensics,
    rolled_back,
)


def _noted(context: RuleContext) -> RuleContext:
    attempt = context.attempt_seen
    saved = context.seen.checkpoints.value if isinstance(context.seen.checkpoints, Known) else ()
    bad = without_loaded(as_begun(noted_bad(context.incident), attempt), attempt, saved)
    return replace(context, incident=bad)


def _planned(context: RuleContext) -> Incident:
    """The Incident as it would be once rolled back."""
    return account_rollback(context.incident, context.policy)


def _point(context: RuleContext) -> ResumePoint | None:
    saved = context.seen.checkpoints.value if isinstance(context.seen.checkpoints, Known) else ()
    return choose_resume_point(saved, _planned(context), context.policy)


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


def _nowhere_to_go(context: RuleContext, name: str, reason: str) -> Decision:
    """A person decides; the policy sets whether a run that cannot be rolled back continues meanwhile."""
    if context.policy.loss.stop_without_resume_point:
        return begin_stop(context, name, f"{reason} The policy says to stop it.")
    return context.hand_over(name, f"{reason} {context.incident.attempt} is left running")


def _wants_forensics(context: RuleContext, attempt: AttemptView) -> bool:
    row = context.policy.playbook(context.incident.fault)
    ask = context.incident.halt.ask_of(attempt.name)
    was_asked = ask is not None and is_forensic(ask.request_id)
    return row.deadline is not Deadline.NONE and not was_asked
