"""Verifying: an Incident is recovered only when the new attempt has passed the step the old one died at."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from chalicelib.domain.claims.bad_nodes import to_exclude
from chalicelib.domain.claims.finishing import completed_poisoned, decide_finishing
from chalicelib.domain.claims.liveness import NEXT_HEARTBEAT
from chalicelib.domain.claims.movement import watch
from chalicelib.domain.claims.recovery_doubts import STALE, completed_unseen, doubt_of, in_doubt, last_heartbeat_due
from chalicelib.domain.claims.standing import is_standing
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    has_passed,
    is_poisoned,
    span_word,
    step_word,
    stop_is_ours,
    story,
    subject,
    why_unknown,
)
from chalicelib.domain.fault_specs.faults import FAULT_RANK
from chalicelib.domain.faults.loss import BadLossState, marked_healed, turn_of
from chalicelib.domain.faults.pace import is_as_fast_as_usual, usual_pace
from chalicelib.domain.faults.stalls import STALLED_HEARTBEAT
from chalicelib.domain.model.action import Notify, QuarantineCheckpoint, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.job import PLAN_IGNORED, is_far_below
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import STALLED, AttemptStatus, AttemptView
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.policy.playbooks import ROLL_BACKS, Response
from chalicelib.domain.rules.run.ended import attempt_died
from chalicelib.domain.rules.run.loss import roll_back
from chalicelib.domain.rules.run.platform_restart import (
    adopted_trouble,
    superfluous_exclusion,
    suspended,
    waiting_in_queue,
)
from chalicelib.domain.run.first_response import begin_checkpoint, begin_stop
from chalicelib.domain.run.load_failures import proven_by
from chalicelib.domain.run.rollback import concluded_on_recovery
from chalicelib.domain.run.sizes import order_smaller_start
from rekindle.protocol.signals import FaultClass

UNHEARD: Final = timedelta(minutes=10)  # forty heartbeats: the channel is away, or all of the run is
BLIND_NOTIFIED: Final = timedelta(minutes=5)  # it may train again what was trained: long before it is given up
_ALIVE = (AttemptStatus.STARTING, AttemptStatus.RUNNING)


def decide_verifying(context: RuleContext) -> Decision:
    """VERIFYING."""
    attempt = context.attempt
    if attempt is None:
        reason = f"the new attempt cannot be read: {why_unknown(context.seen.attempt)}"
        return context.unread("verify.unseen", "verify.unseen_limit", reason, context.unseen_for)
    if attempt.status is AttemptStatus.GONE and not context.has_ended(attempt):
        return context.stay("verify.not_listed", f"the platform does not list {attempt.name} yet")
    if attempt.status is AttemptStatus.COMPLETED:
        return (
            completed_poisoned(context, attempt)
            or last_heartbeat_due(context, attempt)
            or completed_unseen(context, attempt)
            or context.close(
                "verify.completed", f"{attempt.name} has completed", Phase.RECOVERED, severity=Severity.INFO
            )
        )
    if attempt.status is AttemptStatus.STOPPED and not stop_is_ours(context, attempt):
        return context.close(
            "verify.owner_stopped",
            f"{attempt.name} was stopped, and not by us",
            Phase.STOPPED,
            severity=Severity.WARNING,
        )
    if attempt.status.has_ended:  # however far it came: a dead run is not a recovered one
        return attempt_died(context, attempt)
    context = dataclasses.replace(context, incident=marked_healed(context.incident))
    if isinstance(context.seen.sibling, Known) and attempt.start is not None and attempt.start.is_queued:
        beside = context.seen.sibling.value
        reason = f"{beside}, which was started by hand, continues in its place, and {attempt.name} has not begun."
        return begin_stop(context, "verify.sibling", reason, for_sibling=beside)
    ignored = _plan_ignored(context, attempt)
    if ignored is not None:
        return ignored
    trouble = adopted_trouble(context, attempt) or _trouble(context, attempt) or _loss_again(context, attempt)
    if trouble is not None:
        return trouble
    proven = proven_by(context.incident, attempt)
    if proven is not None and proven.root is not None:
        mark = QuarantineCheckpoint(root=proven.root, why=proven.why)
        marked = (*context.incident.resubmission.quarantined, proven.key)
        return context.stay("verify.other_loads", f"{proven.why}: quarantined", mark, quarantined=marked)
    finishing = decide_finishing(context, attempt, group="verify")
    if finishing is not None:
        return finishing
    doubt = doubt_of(context, attempt)
    if attempt.status in _ALIVE and not doubt and _has_passed_all(context, attempt):
        return _passed(context, attempt)
    return _waiting(context, attempt, doubt)


def _plan_ignored(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """It began far below its resume step: what was trained since is trained again."""
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


def _has_passed_all(context: RuleContext, attempt: AttemptView) -> bool:
    """The step that the old one ended at, and the end of the data where it may go bad again."""
    verify_to = context.incident.loss.verify_to
    is_past_data = not isinstance(verify_to, Known) or has_passed(attempt.last_step, verify_to)
    return is_past_data and has_passed(attempt.last_step, context.incident.target_step)


def _passed(context: RuleContext, attempt: AttemptView) -> Decision:
    """Recovered; after a bad loss only if its loss is known to be well. Steps alone do not show that."""
    incident = context.incident
    where = f"{attempt.name} is at step {step_word(attempt.last_step)}, past "
    if isinstance(incident.loss.verify_to, Known) and attempt.loss_health not in ("ok", "watch"):
        reason = f"{where}the data that was left out, but nothing shows how its loss is"
        if context.in_state < context.policy.timing.verify_blind:
            return context.stay("verify.loss_unseen", reason)
        return context.hand_over("verify.loss_unseen_limit", reason, severity=Severity.WARNING)
    slow = _still_slow(context, attempt)
    if slow is not None:
        return slow
    context = dataclasses.replace(context, incident=concluded_on_recovery(incident))
    return context.close(
        "verify.passed",
        f"{where}{step_word(incident.target_step)} where the old one {'went bad' if incident.loss.onsets else 'ended'}",
        Phase.RECOVERED,
        severity=Severity.INFO,
    )


def _still_slow(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """A run that was restarted for being slow has recovered once its steps are as fast as they used to be."""
    incident = context.incident
    if incident.fault is not FaultClass.THROUGHPUT_DROP:
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


def _loss_again(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """The new attempt's own bad loss: given its time to heal as the first one was, then rolled back further."""
    bout = context.incident.loss.bout
    if bout is None or attempt.status is not AttemptStatus.RUNNING:
        return None
    row = context.policy.playbook(bout.fault)
    turn = turn_of(bout, attempt, context.policy)
    is_watched = row.response is Response.WATCH_THEN_ROLL_BACK
    if (
        turn is BadLossState.HEALED
        or (turn is BadLossState.UNSEEN and is_watched)
        or row.response in (Response.TELL, Response.RESTART)
    ):
        return None
    context = context.changed(fault=bout.fault, fault_rule=f"verify.{bout.fault}")
    where = f"{attempt.name} is bad again since step {step_word(bout.first_bad)}."
    match row.response:
        case Response.WATCH_THEN_ROLL_BACK if turn is not BadLossState.LASTS:
            context, still = watch(context, attempt)
            return _silent(context, attempt, still) or context.stay("verify.spike", f"{where} It may heal without help")
        case Response.WATCH_THEN_ROLL_BACK | Response.ROLL_BACK:
            return roll_back(context, attempt, "verify.roll_back", where)
        case Response.CHECKPOINT_THEN_HAND_OVER | Response.CHECKPOINT_THEN_RESTART:
            return begin_checkpoint(context, attempt)
        case _:
            return context.hand_over("playbook.hand_over", f"{where} {story(context)}")


def _trouble(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """The new attempt itself is in trouble again. Looked at before its progress: closing would forget the news."""
    is_nan = context.incident.loss.onset_fault is FaultClass.NON_FINITE or attempt.loss_state in ("nan", "inf")
    if is_nan and is_poisoned(context, attempt):
        context = context.changed(fault=FaultClass.NON_FINITE)
        if context.policy.playbook(FaultClass.NON_FINITE).response in ROLL_BACKS:
            return roll_back(context, attempt, "verify.non_finite", f"{attempt.name} turned non-finite again.")
        return context.hand_over("verify.poisoned", f"{attempt.name} turned non-finite again. {story(context)}")
    if _says_stalled(context, attempt):
        return begin_checkpoint(context.changed(fault=FaultClass.HANG, fault_rule=STALLED_HEARTBEAT), attempt)
    standing = [signal for signal in context.incident.signals if is_standing(signal, context, attempt)]
    if not standing or attempt.status not in _ALIVE:
        return None
    worst = min(standing, key=lambda signal: FAULT_RANK[signal.fault or FaultClass.UNCLEAR])
    fault = worst.fault or FaultClass.UNCLEAR
    row = context.policy.playbook(fault)
    keep = {"fault": context.incident.fault, "fault_rule": context.incident.fault_rule}
    context = context.changed(fault=fault, fault_rule=f"signal.{worst.kind}")
    match row.response:
        case Response.CHECKPOINT_THEN_RESTART | Response.CHECKPOINT_THEN_HAND_OVER:
            return begin_checkpoint(context, attempt)
        case Response.ROLL_BACK | Response.WATCH_THEN_ROLL_BACK:
            return begin_stop(context, "verify.roll_back", story(context))
        case Response.HAND_OVER:
            return context.hand_over("playbook.hand_over", story(context))
        case Response.TELL | Response.RESTART:
            return _only_news(context, attempt, worst, row.response, keep)


def _says_stalled(context: RuleContext, attempt: AttemptView) -> bool:
    """Its own heartbeat says so now, and the playbook restarts what hangs: an event that was lost is not waited for."""
    if attempt.work != STALLED or attempt.status is not AttemptStatus.RUNNING or attempt.heartbeat_at is None:
        return False
    back_at = context.incident.sight.repaired_at
    is_of_now = context.now - attempt.heartbeat_at < STALE and (back_at is None or attempt.heartbeat_at >= back_at)
    return is_of_now and context.policy.playbook(FaultClass.HANG).response is Response.CHECKPOINT_THEN_RESTART


def _only_news(
    context: RuleContext, attempt: AttemptView, signal: Signal, response: Response, keep: Mapping[str, Any]
) -> Decision | None:
    """Nothing to do about it while the attempt lives: look once more before anything is closed.

    `keep`: the Incident's own fault. News that nothing is done about do not rename what is being recovered from.
    """
    if signal not in context.seen.new_signals:
        return None
    if response is Response.TELL:
        return context.stay("verify.tell", f"{story(context)} The playbook says: tell, do nothing.", **keep)
    return context.stay(
        "verify.confirm", f"{story(context)} But {attempt.name} is {attempt.status}; watching its steps"
    )


def _waiting(context: RuleContext, attempt: AttemptView, doubt: str) -> Decision:
    if attempt.status is AttemptStatus.REPAIRING:
        if context.in_state >= context.policy.timing.repair_grace:
            return begin_stop(
                context, "defer.grace_over", f"{attempt.name} is in repair longer than the policy's grace."
            )
        return context.stay("verify.platform_repair", f"the platform repairs {attempt.name} automatically")
    if attempt.status is AttemptStatus.STOPPING:
        if context.in_state >= context.policy.timing.stop_limit:
            return context.hand_over(
                "verify.stop_stuck", f"{attempt.name} has been stopping for {span_word(context.in_state)}"
            )
        return context.stay(
            "verify.stopping", f"{attempt.name} is being stopped, and not by us; waiting to see how it ends"
        )
    at_rest = (
        superfluous_exclusion(context, attempt, to_exclude(context.incident, context.seen))
        or order_smaller_start(context, attempt)
        or waiting_in_queue(context, attempt, group="verify")
        or suspended(context, attempt)
    )
    if at_rest is not None:
        return at_rest
    if not isinstance(attempt.last_step, Known):
        return _blind(context, attempt)
    context, still = watch(context, attempt)
    silent = _silent(context, attempt, still)
    if silent is not None:
        return silent
    if doubt and _has_passed_all(context, attempt):
        return in_doubt(context, attempt, doubt)
    context = context.changed(doubt_since=None)
    if not isinstance(context.incident.target_step, Known):
        return _without_target(context, attempt, doubt)
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
        one.value for one in (context.incident.target_step, context.incident.loss.verify_to) if isinstance(one, Known)
    ]
    at, pace_s = attempt.last_step, attempt.step_s
    if not goals or not isinstance(at, Known) or not pace_s or attempt.heartbeat_at is None:
        return None
    goal = max(goals) + 1
    skipped = sum(
        max(0, min(one.to_step, goal) - max(one.from_step, at.value + 1)) for one in context.incident.loss.skips
    )
    passes_at = attempt.heartbeat_at + timedelta(seconds=max(goal - at.value - skipped, 0) * pace_s)
    soonest = min(max(NEXT_HEARTBEAT, context.policy.timing.look_min), context.policy.timing.look_max)
    return min(max(passes_at - context.now, soonest), context.policy.timing.look_max)


def _silent(context: RuleContext, attempt: AttemptView, still: timedelta) -> Decision | None:
    if still < context.policy.timing.silent_limit:
        return None
    if attempt.heartbeat_at is not None and context.now - attempt.heartbeat_at >= UNHEARD and attempt.work != STALLED:
        return context.hand_over(
            "verify.unheard",
            f"no heartbeat of {attempt.name} since {attempt.heartbeat_at:%H:%M:%S}, at step "
            f"{step_word(attempt.last_step)}: "
            "whether it moves is not known, and a run is not stopped for silence alone",
            severity=Severity.WARNING,
        )
    context = context.changed(fault=FaultClass.HANG, fault_rule="verify.silent")
    return begin_stop(context, "verify.silent", f"{attempt.name} has not moved for {span_word(still)}.")


def _blind(context: RuleContext, attempt: AttemptView) -> Decision:
    """No step is visible: either it has not begun, or there is no monitor in it."""
    if attempt.status is AttemptStatus.STARTING:
        if context.in_phase < context.policy.timing.start_limit:
            starting = context.stay("verify.starting", f"{attempt.name} is starting ({attempt.detail})")
            return dataclasses.replace(
                starting, look_again_in=context.policy.timing.look_max
            )  # its first event wakes us
        return context.hand_over(
            "verify.never_started",
            f"{attempt.name} has not started for {span_word(context.in_phase)} ({attempt.detail}); a person must look",
        )
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


def _without_target(context: RuleContext, attempt: AttemptView, doubt: str) -> Decision:
    """The old attempt's last step is unknown: moving past the resume point is the most that can be shown."""
    resumed = (
        context.incident.resubmission.tries[-1].resume_step
        if context.incident.resubmission.tries
        else Unknown("no try on record")
    )
    known = (
        step for step in (resumed, attempt.first_step, context.incident.sight.watch_step) if isinstance(step, Known)
    )
    base = next(known, resumed)
    if has_passed(attempt.last_step, base) and not doubt and context.in_phase >= context.policy.timing.look_max:
        return context.close(
            "verify.moves",
            f"{attempt.name} moves: step {step_word(attempt.last_step)}, resumed at {step_word(base)}. Where the old "
            f"attempt ended is unknown ({why_unknown(context.incident.target_step)})",
            Phase.RECOVERED,
            severity=Severity.WARNING,
        )
    return context.stay("verify.moving", f"{attempt.name} is at step {step_word(attempt.last_step)}")
