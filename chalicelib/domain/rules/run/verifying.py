"""Verifying: an Incident is recovered only when the new attempt has passed the step the old one died at."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from chalicelib.domain.claims.bad_nodes import is_claim_over, to_exclude
from chalicelib.domain.claims.finishing import completed_poisoned, decide_finishing
from chalicelib.domain.claims.liveness import NEXT_BEAT
from chalicelib.domain.claims.movement import watch
from chalicelib.domain.claims.recovery_doubts import STALE, completed_unseen, doubt_of, in_doubt
from chalicelib.domain.claims.silence import is_silence
from chalicelib.domain.decision.verdict import (
    Decision,
    Look,
    has_passed,
    is_poisoned,
    span_word,
    step_word,
    stop_is_ours,
    story,
    subject,
    why,
)
from chalicelib.domain.faults.diagnosis import ORDER_KINDS, STATE_KINDS, signal_step
from chalicelib.domain.faults.heartbeat_claims import is_denied
from chalicelib.domain.faults.loss import Turn, marked_healed, turn_of
from chalicelib.domain.model.action import Notify, QuarantineCheckpoint, Severity
from chalicelib.domain.model.evidence import LOSS_FAULTS
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.job import PLAN_IGNORED, is_far_below
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import STALLED, AttemptStatus, AttemptView
from chalicelib.domain.model.signal import Signal, SignalKind
from chalicelib.domain.policy.playbooks import FAULT_RANK, ROLL_BACKS, Response
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
from chalicelib.domain.run.sizes import smaller
from rekindle.signatures.faults import FaultClass

USUAL_PACE: Final = 1.25  # the throughput detector's own threshold is above it (rekindle/detectors/pace.py)
UNHEARD: Final = timedelta(minutes=10)  # forty heartbeats: the channel is away, or all of the run is
BLIND_TOLD: Final = timedelta(minutes=5)  # it may be training anew what was trained: told well before it is given up
_ALIVE = (AttemptStatus.STARTING, AttemptStatus.RUNNING)


def decide_verifying(look: Look) -> Decision:
    """VERIFYING."""
    attempt = look.attempt
    if attempt is None:
        reason = f"the new attempt cannot be read: {why(look.seen.attempt)}"
        return look.unread("verify.unseen", "verify.unseen_limit", reason, look.unseen_for)
    if attempt.status is AttemptStatus.GONE and not look.has_ended(attempt):
        return look.stay("verify.not_listed", f"the platform does not list {attempt.name} yet")
    if attempt.status is AttemptStatus.COMPLETED:
        return (
            completed_poisoned(look, attempt)
            or completed_unseen(look, attempt)
            or look.close("verify.completed", f"{attempt.name} has completed", Phase.RECOVERED, severity=Severity.INFO)
        )
    if attempt.status is AttemptStatus.STOPPED and not stop_is_ours(look, attempt):
        return look.close(
            "verify.owner_stopped",
            f"{attempt.name} was stopped, and not by us",
            Phase.STOPPED,
            severity=Severity.WARNING,
        )
    if attempt.status.has_ended:  # however far it came: a dead run is not a recovered one
        return attempt_died(look, attempt)
    look = dataclasses.replace(look, incident=marked_healed(look.incident))
    if isinstance(look.seen.sibling, Known) and attempt.start is not None and attempt.start.is_queued:
        beside = look.seen.sibling.value
        reason = f"{beside}, which was started by hand, goes on in its place, and {attempt.name} has not begun."
        return begin_stop(look, "verify.sibling", reason)
    ignored = _plan_ignored(look, attempt)
    if ignored is not None:
        return ignored
    trouble = adopted_trouble(look, attempt) or _trouble(look, attempt) or _loss_again(look, attempt)
    if trouble is not None:
        return trouble
    proven = proven_by(look.incident, attempt)
    if proven is not None and proven.root is not None:
        mark = QuarantineCheckpoint(root=proven.root, why=proven.why)
        marked = (*look.incident.quarantined, proven.key)
        return look.stay("verify.other_loads", f"{proven.why}: quarantined", mark, quarantined=marked)
    finishing = decide_finishing(look, attempt, group="verify")
    if finishing is not None:
        return finishing
    doubt = doubt_of(look, attempt)
    if attempt.status in _ALIVE and not doubt and _has_passed_all(look, attempt):
        return _passed(look, attempt)
    return _waiting(look, attempt, doubt)


def _plan_ignored(look: Look, attempt: AttemptView) -> Decision | None:
    """It began far below the step that it was told to resume at: what was trained since is trained again."""
    last = look.incident.tries[-1] if look.incident.tries else None
    if last is None or last.name != attempt.name:
        return None
    if not isinstance(last.resume_step, Known) or not isinstance(attempt.first_step, Known):
        return None
    if not is_far_below(attempt.first_step, last.resume_step):
        return None
    return look.hand_over(
        PLAN_IGNORED,
        f"{attempt.name} was to resume at step {last.resume_step.value}, and began at step {attempt.first_step.value}: "
        "it does not read its resume plan, or could not load the checkpoint. It is left running, and does again what "
        "was done; whether it shall is for a person to say",
    )


def _has_passed_all(look: Look, attempt: AttemptView) -> bool:
    """The step that the old one ended at, and the end of the data where it may go bad again."""
    verify_to = look.incident.verify_to
    is_past_data = not isinstance(verify_to, Known) or has_passed(attempt.last_step, verify_to)
    return is_past_data and has_passed(attempt.last_step, look.incident.target_step)


def _passed(look: Look, attempt: AttemptView) -> Decision:
    """Recovered; after a bad loss only if its loss is known to be well. Steps alone do not show that."""
    incident = look.incident
    where = f"{attempt.name} is at step {step_word(attempt.last_step)}, past "
    if isinstance(incident.verify_to, Known) and attempt.loss_health not in ("ok", "watch"):
        reason = f"{where}the data that was left out, but nothing tells how its loss is"
        if look.in_state < look.policy.timing.verify_blind:
            return look.stay("verify.loss_unseen", reason)
        return look.hand_over("verify.loss_unseen_limit", reason, severity=Severity.WARNING)
    slow = _still_slow(look, attempt)
    if slow is not None:
        return slow
    look = dataclasses.replace(look, incident=concluded_on_recovery(incident))
    return look.close(
        "verify.passed",
        f"{where}{step_word(incident.target_step)} where the old one {'went bad' if incident.onsets else 'ended'}",
        Phase.RECOVERED,
        severity=Severity.INFO,
    )


def _still_slow(look: Look, attempt: AttemptView) -> Decision | None:
    """A run that was restarted for being slow has recovered once its steps are as fast as they used to be."""
    incident = look.incident
    if incident.fault is not FaultClass.THROUGHPUT_DROP:
        return None
    usual = [item.evidence.get("baseline_s") for item in incident.signals if item.fault is FaultClass.THROUGHPUT_DROP]
    known = [float(one) for one in usual if isinstance(one, int | float) and one > 0]
    if known and attempt.step_s is not None and attempt.step_s <= min(known) * USUAL_PACE:
        return None
    told = f"{attempt.step_s:.3g} s a step" if attempt.step_s is not None else "an unknown time a step"
    was = f"{min(known):.3g} s was usual" if known else "what was usual is not known"
    reason = f"{attempt.name} takes {told}, {was}: that it moves does not show that its speed is back"
    if look.in_state < look.policy.timing.verify_blind:
        return look.stay("verify.slow", reason)
    return look.hand_over("verify.slow_limit", reason, severity=Severity.WARNING)


def _loss_again(look: Look, attempt: AttemptView) -> Decision | None:
    """The new attempt's own bad loss: given its time to heal as the first one was, then rolled back further."""
    bout = look.incident.bout
    if bout is None or attempt.status is not AttemptStatus.RUNNING:
        return None
    row = look.policy.playbook(bout.fault)
    turn = turn_of(bout, attempt, look.policy)
    is_watched = row.response is Response.WATCH_THEN_ROLL_BACK
    if turn is Turn.HEALED or (turn is Turn.UNSEEN and is_watched) or row.response in (Response.TELL, Response.RESTART):
        return None
    look = look.changed(fault=bout.fault, fault_rule=f"verify.{bout.fault}")
    where = f"{attempt.name} is bad again since step {step_word(bout.first_bad)}."
    match row.response:
        case Response.WATCH_THEN_ROLL_BACK if turn is not Turn.LASTS:
            look, still = watch(look, attempt)
            return _silent(look, attempt, still) or look.stay("verify.spike", f"{where} It may heal by itself")
        case Response.WATCH_THEN_ROLL_BACK | Response.ROLL_BACK:
            return roll_back(look, attempt, "verify.roll_back", where)
        case Response.CHECKPOINT_THEN_HAND_OVER | Response.CHECKPOINT_THEN_RESTART:
            return begin_checkpoint(look, attempt)
        case _:
            return look.hand_over("playbook.hand_over", f"{where} {story(look)}")


def _trouble(look: Look, attempt: AttemptView) -> Decision | None:
    """The new attempt itself is in trouble again. Looked at before its progress: closing would forget the news."""
    is_nan = look.incident.onset_fault is FaultClass.NON_FINITE or attempt.loss_state in ("nan", "inf")
    if is_nan and is_poisoned(look, attempt):
        look = look.changed(fault=FaultClass.NON_FINITE)
        if look.policy.playbook(FaultClass.NON_FINITE).response in ROLL_BACKS:
            return roll_back(look, attempt, "verify.non_finite", f"{attempt.name} turned non-finite again.")
        return look.hand_over("verify.poisoned", f"{attempt.name} turned non-finite again. {story(look)}")
    if _says_stalled(look, attempt):
        return begin_checkpoint(look.changed(fault=FaultClass.HANG, fault_rule="beat.stalled"), attempt)
    standing = [signal for signal in look.incident.signals if _stands(signal, look, attempt)]
    if not standing or attempt.status not in _ALIVE:
        return None
    worst = min(standing, key=lambda signal: FAULT_RANK[signal.fault or FaultClass.UNCLEAR])
    fault = worst.fault or FaultClass.UNCLEAR
    row = look.policy.playbook(fault)
    keep = {"fault": look.incident.fault, "fault_rule": look.incident.fault_rule}
    look = look.changed(fault=fault, fault_rule=f"signal.{worst.kind}")
    match row.response:
        case Response.CHECKPOINT_THEN_RESTART | Response.CHECKPOINT_THEN_HAND_OVER:
            return begin_checkpoint(look, attempt)
        case Response.ROLL_BACK | Response.WATCH_THEN_ROLL_BACK:
            return begin_stop(look, "verify.roll_back", story(look))
        case Response.HAND_OVER:
            return look.hand_over("playbook.hand_over", story(look))
        case Response.TELL | Response.RESTART:
            return _only_news(look, attempt, worst, row.response, keep)


def _says_stalled(look: Look, attempt: AttemptView) -> bool:
    """Its own heartbeat says so now, and the playbook restarts what hangs: an event that was lost is not waited for."""
    if attempt.work != STALLED or attempt.status is not AttemptStatus.RUNNING or attempt.beat_at is None:
        return False
    back_at = look.incident.repaired_at
    is_of_now = look.now - attempt.beat_at < STALE and (back_at is None or attempt.beat_at >= back_at)
    return is_of_now and look.policy.playbook(FaultClass.HANG).response is Response.CHECKPOINT_THEN_RESTART


def _stands(signal: Signal, look: Look, attempt: AttemptView) -> bool:
    """It speaks of this very attempt, and what is seen does not refute it."""
    if signal.attempt != attempt.name or not signal.triggers or signal.fault is None:
        return False
    if signal.kind in ORDER_KINDS or signal.kind in STATE_KINDS or is_denied(signal, attempt, now=look.now):
        return False
    if is_claim_over(signal, look.incident, look.seen):
        return False
    if is_silence(signal) and attempt.work != STALLED:
        return False
    if signal.fault is FaultClass.NON_FINITE and not look.incident.is_poisoned:
        return False  # one value, which nothing bears out: diagnosis.is_borne_out
    if signal.fault in LOSS_FAULTS and look.policy.playbook(signal.fault).response is not Response.TELL:
        return False  # whether that still holds is for the newest judgement to say: `_loss_again`
    if look.incident.repaired_at is not None and signal.occurred_at < look.incident.repaired_at:
        return False
    if signal.kind is SignalKind.STALL and _saved_since(signal, look, attempt):
        return False
    is_beat_older = attempt.beat_at is not None and attempt.beat_at < signal.occurred_at
    if signal.kind is SignalKind.STALL and not is_beat_older and attempt.work != STALLED:
        step = signal_step(signal)
        if isinstance(attempt.last_step, Known) and (isinstance(step, Unknown) or attempt.last_step.value > step.value):
            return False
    return True


def _saved_since(stall: Signal, look: Look, attempt: AttemptView) -> bool:
    """Asked after the stall was said, it has saved at a later step: it moved on, whatever its heartbeats show."""
    ask, step = look.incident.ask, signal_step(stall)
    if ask is None or ask.attempt != attempt.name or ask.outcome != "saved" or ask.asked_at < stall.occurred_at:
        return False
    return ask.step is not None and isinstance(step, Known) and ask.step > step.value


def _only_news(
    look: Look, attempt: AttemptView, signal: Signal, response: Response, keep: Mapping[str, Any]
) -> Decision | None:
    """Nothing to do about it while the attempt lives: told once, and one more look before anything is closed.

    `keep`: the Incident's own fault. News that nothing is done about do not rename what is being recovered from.
    """
    if signal not in look.seen.new_signals:
        return None
    if response is Response.TELL:
        told = Notify(severity=Severity.WARNING, title=f"{subject(look)}: {signal.fault}", text=story(look))
        return look.stay("verify.tell", f"{story(look)} The playbook says: tell, do nothing.", told, **keep)
    return look.stay("verify.confirm", f"{story(look)} But {attempt.name} is {attempt.status}; watching its steps")


def _waiting(look: Look, attempt: AttemptView, doubt: str) -> Decision:
    if attempt.status is AttemptStatus.REPAIRING:
        if look.in_state >= look.policy.timing.repair_grace:
            return begin_stop(look, "defer.grace_over", f"{attempt.name} is in repair longer than the policy's grace.")
        return look.stay("verify.platform_repair", f"the platform repairs {attempt.name} by itself")
    if attempt.status is AttemptStatus.STOPPING:
        if look.in_state >= look.policy.timing.stop_limit:
            return look.hand_over(
                "verify.stop_stuck", f"{attempt.name} has been stopping for {span_word(look.in_state)}"
            )
        return look.stay("verify.stopping", f"{attempt.name} is being stopped, and not by us; waiting how it ends")
    at_rest = (
        superfluous_exclusion(look, attempt, to_exclude(look.incident, look.seen))
        or smaller(look, attempt)
        or waiting_in_queue(look, attempt, group="verify")
        or suspended(look, attempt)
    )
    if at_rest is not None:
        return at_rest
    if not isinstance(attempt.last_step, Known):
        return _blind(look, attempt)
    look, still = watch(look, attempt)
    silent = _silent(look, attempt, still)
    if silent is not None:
        return silent
    if doubt and _has_passed_all(look, attempt):
        return in_doubt(look, attempt, doubt)
    look = look.changed(doubt_since=None)
    if not isinstance(look.incident.target_step, Known):
        return _without_target(look, attempt, doubt)
    waiting = look.stay(
        "verify.waiting",
        f"{attempt.name} is at step {step_word(attempt.last_step)}; past {step_word(look.incident.target_step)} it "
        "counts",
    )
    return dataclasses.replace(waiting, look_again_in=_until_passed(look, attempt) or waiting.look_again_in)


def _until_passed(look: Look, attempt: AttemptView) -> timedelta | None:
    """When its heartbeat may show the step that counts, at its own pace; None where that cannot be told.

    Until then a look could see nothing, unless an event wakes it. Within the bounds of the policy, and not sooner than
    the next heartbeat.
    """
    goals = [one.value for one in (look.incident.target_step, look.incident.verify_to) if isinstance(one, Known)]
    at, pace_s = attempt.last_step, attempt.step_s
    if not goals or not isinstance(at, Known) or not pace_s or attempt.beat_at is None:
        return None
    goal = max(goals) + 1
    skipped = sum(max(0, min(one.to_step, goal) - max(one.from_step, at.value + 1)) for one in look.incident.skips)
    passes_at = attempt.beat_at + timedelta(seconds=max(goal - at.value - skipped, 0) * pace_s)
    soonest = min(max(NEXT_BEAT, look.policy.timing.look_min), look.policy.timing.look_max)
    return min(max(passes_at - look.now, soonest), look.policy.timing.look_max)


def _silent(look: Look, attempt: AttemptView, still: timedelta) -> Decision | None:
    if still < look.policy.timing.silent_limit:
        return None
    if attempt.beat_at is not None and look.now - attempt.beat_at >= UNHEARD and attempt.work != STALLED:
        return look.hand_over(
            "verify.unheard",
            f"no heartbeat of {attempt.name} since {attempt.beat_at:%H:%M:%S}, at step {step_word(attempt.last_step)}: "
            "whether it moves cannot be told, and a run is not stopped for silence alone",
            severity=Severity.WARNING,
        )
    look = look.changed(fault=FaultClass.HANG, fault_rule="verify.silent")
    return begin_stop(look, "verify.silent", f"{attempt.name} has not moved for {span_word(still)}.")


def _blind(look: Look, attempt: AttemptView) -> Decision:
    """No step is visible: either it has not begun, or there is no monitor in it."""
    if attempt.status is AttemptStatus.STARTING:
        if look.in_phase < look.policy.timing.start_limit:
            starting = look.stay("verify.starting", f"{attempt.name} is starting ({attempt.detail})")
            return dataclasses.replace(starting, look_again_in=look.policy.timing.look_max)  # its first event wakes us
        return look.hand_over(
            "verify.never_started",
            f"{attempt.name} has not started for {span_word(look.in_phase)} ({attempt.detail}); a person must look",
        )
    if look.in_state < min(look.policy.timing.look_max, look.policy.timing.verify_blind):
        return look.stay("verify.blind", f"{attempt.name} has just begun; its first step is not seen yet")
    if look.in_state < look.policy.timing.verify_blind:
        reason = f"{attempt.name} runs, but its steps cannot be seen: {why(attempt.last_step)}"
        once = f"verify.blind:{attempt.name}"
        if look.in_state < BLIND_TOLD or once in look.incident.paged_for.split():
            return look.stay("verify.blind", reason)
        text = f"{reason}. Whether it resumed where it was to cannot be told either, and is worth a look."
        told = Notify(severity=Severity.WARNING, title=f"{subject(look)}: its steps cannot be seen", text=text)
        return look.changed(paged_for=f"{look.incident.paged_for} {once}".strip()).stay("verify.blind", reason, told)
    return look.hand_over(
        "verify.blind_limit",
        f"{attempt.name} has run for {span_word(look.in_state)} without failing, but its steps cannot be seen "
        f"({why(attempt.last_step)}): whether it progresses is for a person to check",
        severity=Severity.WARNING,
    )


def _without_target(look: Look, attempt: AttemptView, doubt: str) -> Decision:
    """The old attempt's last step is unknown: moving past the resume point is the most that can be shown."""
    resumed = look.incident.tries[-1].resume_step if look.incident.tries else Unknown("no try on record")
    known = (step for step in (resumed, attempt.first_step, look.incident.watch_step) if isinstance(step, Known))
    base = next(known, resumed)
    if has_passed(attempt.last_step, base) and not doubt and look.in_phase >= look.policy.timing.look_max:
        return look.close(
            "verify.moves",
            f"{attempt.name} moves: step {step_word(attempt.last_step)}, resumed at {step_word(base)}. Where the old "
            f"attempt ended is unknown ({why(look.incident.target_step)})",
            Phase.RECOVERED,
            severity=Severity.WARNING,
        )
    return look.stay("verify.moving", f"{attempt.name} is at step {step_word(attempt.last_step)}")
