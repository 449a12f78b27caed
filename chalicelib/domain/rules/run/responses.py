"""Rules for a run that lives and is in trouble: what the playbook of its fault says."""

from __future__ import annotations

from datetime import timedelta

from chalicelib.domain.decision.rule import decided_by, rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    span_word,
    step_word,
    story,
    subject,
)
from chalicelib.domain.fault_specs.faults import DEADLY, LOSS_FAULTS
from chalicelib.domain.faults.heartbeat_claims import has_fresh_heartbeat
from chalicelib.domain.faults.lives import lives_begun
from chalicelib.domain.faults.signal_facts import STATE_KINDS
from chalicelib.domain.model.action import Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.job import is_far_below
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.playbooks import ROLL_BACKS, Response
from chalicelib.domain.rules.run.loss import WATCHED_LOSS, close_healed, roll_back
from chalicelib.domain.rules.run.refuted import hold, wait_for_the_state
from chalicelib.domain.run.first_response import begin_checkpoint, begin_stop, far_off, shadow
from chalicelib.domain.run.job_record import DAY
from chalicelib.domain.run.liveness import (
    BEFORE_NOTICE,
    WEIGHING_RULES,
    began_anew,
    came_back_from_repair,
    weigh_claim,
)
from chalicelib.domain.run.movement import watch
from chalicelib.domain.run.news import tell, told_once
from chalicelib.domain.run.silence import silent_only
from rekindle.protocol.signals import FaultClass


@rule("spike.healed", "spike.healed_stalled")
def spike_healed(context: RuleContext) -> Decision | None:
    """Its bad loss has healed: closed. If it makes no step now, that opens an Incident of its own."""
    episode = context.incident.loss.episode
    if context.incident.fault not in LOSS_FAULTS or episode is None or episode.healed_step is None:
        return None
    return close_healed(context, context.attempt_seen)


@rule("playbook.tell", "playbook.collect", "playbook.notified")
def playbook_tell(context: RuleContext) -> Decision | None:
    """The playbook says to notify only: once; closed after `timing.tell_open_s`."""
    return tell(context) if _response(context) is Response.TELL else None


@rule("nan.watching", "nan.passed")
def nan_watching(context: RuleContext) -> Decision | None:
    """One unconfirmed value that is not finite: watched until it lasts or is over; notified."""
    if context.incident.fault is not FaultClass.NON_FINITE or context.incident.is_poisoned:
        return None
    name = context.attempt_seen.name
    reason = f"{story(context)} One value that is not finite may be a skipped step; {name} is watched"
    if context.incident.phase in BEFORE_NOTICE:
        return context.move("nan.watching", reason, Phase.HOLDING)
    if context.in_phase < context.policy.timing.tell_open:
        return context.stay("nan.watching", reason)
    return context.close(
        "nan.passed",
        f"{story(context)} Nothing has confirmed it for {span_word(context.in_phase)}: {name} was left training",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


@rule()
def spike_watching(context: RuleContext) -> Decision | None:
    """Its loss is bad and may heal: [a loss that is watched](#a-bad-loss-is-watched)."""
    is_watched = context.incident.fault in LOSS_FAULTS and _response(context) is Response.WATCH_THEN_ROLL_BACK
    return decided_by(WATCHED_LOSS, context) if is_watched else None


@rule("silence.notified", "silence.waiting", "silence.notified_limit")
def silence_notified(context: RuleContext) -> Decision | None:
    """Only the lack of a heartbeat, or of metrics, speaks against it: notified, not stopped."""
    return silent_only(context, context.attempt_seen)


@rule("playbook.hand_over")
def playbook_hand_over(context: RuleContext) -> Decision | None:
    """The playbook says: a person."""
    is_a_persons = _response(context) is Response.HAND_OVER
    return context.hand_over("playbook.hand_over", story(context)) if is_a_persons else None


@rule("guard.shadow")
def open_shadow(context: RuleContext) -> Decision | None:
    """Shadow mode: only told."""
    would = f"{_response(context)} for {context.incident.fault}"
    return shadow(context, would) if context.policy.shadow else None


@rule("defer.repaired", "defer.repaired_silent", "defer.repaired_unseen")
def defer_repaired(context: RuleContext) -> Decision | None:
    """It is back from the platform's repair: its steps are watched; stopped if it stands still, notified if unseen."""
    return _watched_since(context, "the platform's repair") if came_back_from_repair(context) else None


@rule("budget.restarts", "budget.no_progress", "defer.began_anew", "defer.repaired_silent", "defer.repaired_unseen")
def defer_began_anew(context: RuleContext) -> Decision | None:
    """It was started again in its place, by torchrun or a loop of the job's: its new processes are watched.

    A person where it is started so again and again: `budgets.max_no_progress` times in one Incident without passing
    the step, or `budgets.max_restarts_per_day` times within 24 hours.
    """
    if not began_anew(context):
        return None
    budgets, attempt = context.policy.budgets, context.attempt_seen
    in_vain = lives_begun(context.incident, attempt)
    if in_vain >= max(budgets.max_no_progress, 2):
        return context.hand_over(
            "budget.no_progress",
            f"{attempt.name} was started again in its place {in_vain} times without passing "
            f"step {step_word(context.incident.target_step)}. {story(context)}",
        )
    is_of_a_day = attempt.training_since is not None and context.now - attempt.training_since <= DAY
    restarts = context.seen.record.restarts_of_a_day + (attempt.life if is_of_a_day else 0)
    if restarts >= budgets.max_restarts_per_day:
        return context.hand_over(
            "budget.restarts",
            f"{restarts} restarts within 24 hours, {attempt.life} of them in the place of {attempt.name}, are the "
            f"policy's limit, whatever each of them gained. {story(context)}",
        )
    return _watched_since(context, f"its start in place (life {attempt.life})", name="defer.began_anew")


@rule()
def rewind_told(context: RuleContext, decision: Decision) -> Decision | None:
    """A start in its place that began far below the furthest save is told once: it trains again what was saved."""
    attempt, saved = context.attempt, context.seen.record.furthest_saved
    if attempt is None or attempt.status.has_ended or attempt.life == 0 or context.policy.shadow:
        return None
    if not isinstance(attempt.first_step, Known) or not isinstance(attempt.last_step, Known):
        return None
    if not isinstance(saved, Known) or not is_far_below(attempt.first_step, saved):
        return None
    if attempt.last_step.value >= saved.value:
        return None  # that save may be this life's own
    notice = Notify(
        severity=Severity.WARNING,
        title=f"{subject(context)}: progress is lost",
        text=f"{attempt.name} was started again in its place (life {attempt.life}) and began at step "
        f"{attempt.first_step.value}, though step {saved.value} had been saved: that save is gone, or could not be "
        "loaded, or the script does not look for it. The run is left training.",
    )
    return told_once(decision, f"rewind:{attempt.name}:{attempt.life}", notice)


def _watched_since(context: RuleContext, what: str, *, name: str = "defer.repaired") -> Decision:
    """Whether it moves since others have restarted it."""
    context, still = watch(context, context.attempt_seen)
    attempt, repaired_at = context.attempt_seen, context.incident.tracking.repaired_at
    back_for = context.now - (repaired_at or context.now)
    if isinstance(attempt.last_step, Known) and isinstance(context.incident.target_step, Known):
        if still >= context.policy.timing.silent_limit and back_for >= context.policy.timing.silent_limit:
            if name == "defer.began_anew" and not has_fresh_heartbeat(attempt, now=context.now):
                return _left_unseen(context, what, back_for)
            reason = f"{attempt.name} has not moved for {span_word(still)} since {what}."
            return begin_stop(context, "defer.repaired_silent", reason)
    elif back_for >= context.policy.timing.repair_grace:
        return _left_unseen(context, what, back_for)
    return hold(context, name, f"{attempt.name} runs again after {what}; watching its steps")


def _left_unseen(context: RuleContext, what: str, back_for: timedelta) -> Decision:
    return context.close(
        "defer.repaired_unseen",
        f"{context.attempt_seen.name} has run for {span_word(back_for)} since {what}. Whether it passed the step it "
        "was at cannot be seen",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


@rule(*WEIGHING_RULES)
def defer_confirm_alert(context: RuleContext) -> Decision | None:
    """Other monitoring says that it hangs: its own steps are asked first."""
    by_an_alert = context.incident.fault_rule == f"signal.{SignalKind.EXTERNAL_ALERT}"
    is_weighed = by_an_alert and context.incident.fault is FaultClass.HANG
    return weigh_claim(context, context.attempt_seen) if is_weighed else None


@rule("playbook.roll_back")
def playbook_roll_back(context: RuleContext) -> Decision | None:
    """The playbook rolls it back at once: [rolling back](#rolling-back)."""
    if _response(context) not in ROLL_BACKS:
        return None
    return roll_back(context, "playbook.roll_back", story(context))


@rule("notice.far_off", "playbook.checkpoint")
def playbook_checkpoint(context: RuleContext) -> Decision | None:
    """The playbook saves first: asked for a checkpoint; notified only if the announced end is over an hour away."""
    if _response(context) not in (Response.CHECKPOINT_THEN_RESTART, Response.CHECKPOINT_THEN_HAND_OVER):
        return None
    return far_off(context) or begin_checkpoint(context, context.attempt_seen)


@rule("defer.refuted", "defer.refuted_limit")
def defer_refuted_state(context: RuleContext) -> Decision | None:
    """A message says that it has ended, and the platform that it runs: asked until they agree; then notified."""
    is_of_its_state = context.incident.fault_rule in {f"signal.{kind}" for kind in STATE_KINDS}
    return wait_for_the_state(context) if is_of_its_state and context.incident.fault in DEADLY else None


@rule(*WEIGHING_RULES)
def defer_confirm(context: RuleContext) -> Decision | None:
    """It is reported dead, and runs: moving steps refute that, standing still confirms it."""
    return weigh_claim(context, context.attempt_seen) if context.incident.fault in DEADLY else None


@rule("playbook.restart")
def playbook_restart(context: RuleContext) -> Decision:
    """What is left: it is stopped and resubmitted."""
    return begin_stop(context, "playbook.restart", story(context))


def _response(context: RuleContext) -> Response:
    return context.policy.playbook(context.incident.fault).response
