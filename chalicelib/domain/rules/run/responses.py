"""Rules for a run that lives and is in trouble: what the playbook of its fault says."""

from __future__ import annotations

from chalicelib.domain.decision.rule import decided_by, rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    is_poisoned,
    span_word,
    story,
)
from chalicelib.domain.fault_specs.faults import DEADLY, HEALED_BY_REPAIR, LOSS_FAULTS
from chalicelib.domain.faults.signal_facts import ORDER_KINDS, STATE_KINDS, concerns
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.playbooks import ROLL_BACKS, Response
from chalicelib.domain.rules.run.loss import WATCHED_LOSS, close_healed, roll_back
from chalicelib.domain.rules.run.refuted import hold, wait_for_the_state
from chalicelib.domain.run.first_response import begin_checkpoint, begin_stop, far_off, shadow
from chalicelib.domain.run.liveness import (
    UNTOLD,
    WEIGHED,
    weigh_claim,
)
from chalicelib.domain.run.movement import watch
from chalicelib.domain.run.news import tell
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
    if context.incident.phase in UNTOLD:
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
    if not _came_back_from_repair(context):
        return None
    context, still = watch(context, context.attempt_seen)
    attempt, repaired_at = context.attempt_seen, context.incident.tracking.repaired_at
    back_for = context.now - (repaired_at or context.now)
    if isinstance(attempt.last_step, Known) and isinstance(context.incident.target_step, Known):
        if still >= context.policy.timing.silent_limit and back_for >= context.policy.timing.silent_limit:
            reason = f"{attempt.name} has not moved for {span_word(still)} since its repair."
            return begin_stop(context, "defer.repaired_silent", reason)
    elif back_for >= context.policy.timing.repair_grace:
        return context.close(
            "defer.repaired_unseen",
            f"the platform repaired {attempt.name}, and it has run for {span_word(back_for)} since. Whether it passed "
            "the step it was at cannot be seen",
            Phase.STOPPED,
            severity=Severity.WARNING,
        )
    return hold(context, "defer.repaired", f"{attempt.name} runs again after the platform's repair; watching its steps")


@rule(*WEIGHED)
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


@rule(*WEIGHED)
def defer_confirm(context: RuleContext) -> Decision | None:
    """It is reported dead, and runs: moving steps refute that, standing still confirms it."""
    return weigh_claim(context, context.attempt_seen) if context.incident.fault in DEADLY else None


@rule("playbook.restart")
def playbook_restart(context: RuleContext) -> Decision:
    """What is left: it is stopped and resubmitted."""
    return begin_stop(context, "playbook.restart", story(context))


def _response(context: RuleContext) -> Response:
    return context.policy.playbook(context.incident.fault).response


def _came_back_from_repair(context: RuleContext) -> bool:
    """The platform has restarted it, and nothing was reported since: earlier reports are about the past."""
    incident = context.incident
    back_at = incident.tracking.repaired_at
    if back_at is None or incident.fault not in HEALED_BY_REPAIR or is_poisoned(context, context.attempt_seen):
        return False
    return not any(
        signal.triggers
        and signal.fault is not None
        and signal.kind not in ORDER_KINDS
        and concerns(signal, incident)
        and signal.occurred_at >= back_at
        for signal in incident.signals
    )
