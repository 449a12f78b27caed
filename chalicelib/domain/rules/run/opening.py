"""Open, holding and watching: what is wrong, and what may be done about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from chalicelib.domain.claims.finishing import completed_poisoned, decide_finishing
from chalicelib.domain.claims.liveness import (
    NEXT_BEAT,
    TWO_BEATS,
    UNTOLD,
    claimed_at,
    claims_are_over,
    late_claim,
    weighed,
)
from chalicelib.domain.claims.movement import watch
from chalicelib.domain.claims.silence import silent_only
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
from chalicelib.domain.faults.diagnosis import ORDER_KINDS, STATE_KINDS, concerns
from chalicelib.domain.faults.heartbeat_claims import WAIT, is_denied
from chalicelib.domain.faults.loss import bad_fault
from chalicelib.domain.model.action import Notify, Severity
from chalicelib.domain.model.evidence import DEADLY, HEALABLE, LOSS_FAULTS
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import STALLED, AttemptStatus, AttemptView
from chalicelib.domain.model.signal import SignalKind
from chalicelib.domain.policy.playbooks import ROLL_BACKS, Response
from chalicelib.domain.rules.run.ended import attempt_died, prepare_resubmit
from chalicelib.domain.rules.run.loss import healed, roll_back, watch_loss
from chalicelib.domain.rules.run.platform_restart import suspended, waiting_in_queue
from chalicelib.domain.run.first_response import begin_checkpoint, begin_stop, shadow
from rekindle.signatures.faults import FaultClass

BEATS_LATE: Final = timedelta(seconds=60)  # how much longer the second is waited for
SAME_CLOCK: Final = timedelta(seconds=60)
OTHER_CLOCK: Final = timedelta(minutes=10)  # clocks of hosts are off by so much at most
_HEALED_BY_REPAIR = HEALABLE | {FaultClass.NODE_HARDWARE, FaultClass.PLANNED_END}


def decide_open(look: Look) -> Decision:
    """OPEN, HOLDING and WATCHING."""
    attempt = look.attempt
    if attempt is None:
        reason = f"the attempt cannot be read: {why(look.seen.attempt)}; nothing is assumed"
        return look.unread("open.unseen", "open.unseen_limit", reason, look.unseen_for)
    if attempt.status is AttemptStatus.GONE and not look.has_ended(attempt):
        return look.stay("open.gone", f"the platform does not know {attempt.name}; asking once more")
    if look.ordered is not None and attempt.status.has_ended:
        return _ordered_after_end(look, attempt)
    if attempt.status is AttemptStatus.COMPLETED:
        return completed_poisoned(look, attempt) or look.close(
            "open.completed", f"{attempt.name} has completed; nothing to recover", Phase.STOPPED, severity=Severity.INFO
        )
    if attempt.status is AttemptStatus.STOPPED:
        return look.close(
            "open.owner_stopped",
            f"{attempt.name} was stopped, and not by us: it is left alone",
            Phase.STOPPED,
            severity=Severity.INFO,
        )
    if attempt.status is AttemptStatus.STOPPING:
        if look.in_state >= look.policy.timing.stop_limit:
            return look.hand_over("open.stop_stuck", f"{attempt.name} has been stopping for {span_word(look.in_state)}")
        return look.stay("open.stopping", f"{attempt.name} is being stopped by somebody; waiting to see how it ends")
    if attempt.status is AttemptStatus.REPAIRING:
        return _defer(look, attempt)
    if attempt.status.has_ended:
        return attempt_died(look, attempt)
    finishing = decide_finishing(look, attempt, group="open")
    if finishing is not None:
        return finishing
    if look.ordered is not None and attempt.start is not None and attempt.start.is_queued:
        return _ordered_in_queue(look, attempt)
    at_rest = waiting_in_queue(look, attempt, group="open") or suspended(look, attempt)
    return at_rest if at_rest is not None and look.ordered is None else _attempt_lives(look, attempt)


def _ordered_after_end(look: Look, attempt: AttemptView) -> Decision:
    """An order about a run that is not running: a checkpoint cannot be taken, a resubmission is what was asked."""
    if look.ordered == "checkpoint":
        return _no_checkpoint_now(look, attempt)
    if _is_stopped_since(look, attempt):
        return look.close(
            "order.owner_stopped",
            f"{attempt.name} was stopped, and not by us, after its resubmission had been ordered: it is left alone",
            Phase.STOPPED,
            severity=Severity.WARNING,
        )
    if look.policy.shadow:
        return shadow(look, f"resubmit {attempt.name} as ordered")
    return prepare_resubmit(look)


def _is_stopped_since(look: Look, attempt: AttemptView) -> bool:
    """Its owner has stopped it after the order, which could not be carried out before: the later word counts.

    An end is dated by AWS, as the order is, or, where an agent reports starts, by a host whose clock may be off.
    """
    given = [one.occurred_at for one in look.incident.signals if one.kind is SignalKind.ORDER_RESUBMIT]
    if attempt.status is not AttemptStatus.STOPPED or attempt.ended_at is None or not given:
        return False
    apart = SAME_CLOCK if attempt.start is None else OTHER_CLOCK
    return not stop_is_ours(look, attempt) and attempt.ended_at - max(given) > apart


def _ordered_in_queue(look: Look, attempt: AttemptView) -> Decision:
    """Nothing of it runs that could save."""
    if look.ordered == "checkpoint":
        return _no_checkpoint_now(look, attempt)
    return begin_stop(look, "playbook.restart", f"{story(look)} It waits in the queue: there is nothing to save.")


def _no_checkpoint_now(look: Look, attempt: AttemptView) -> Decision:
    return look.close(
        "order.checkpoint_no_run",
        f"{attempt.name} is {attempt.status}: there is nothing to save",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


def _defer(look: Look, attempt: AttemptView) -> Decision:
    row = look.policy.playbook(look.incident.fault)
    if row.response is Response.TELL:
        return _tell(look)
    if look.incident.phase in UNTOLD:
        return look.move(
            "defer.platform_repair",
            f"the platform repairs {attempt.name} by itself ({attempt.detail}); two actors must not repair one run",
            Phase.HOLDING,
        )
    if look.in_state < look.policy.timing.repair_grace:
        return look.stay("defer.platform_repair", f"the platform still repairs {attempt.name}")
    if look.ordered == "checkpoint":
        return _no_checkpoint_now(look, attempt)
    if row.response is Response.HAND_OVER:
        return look.hand_over("playbook.hand_over", story(look))
    return begin_stop(look, "defer.grace_over", f"{attempt.name} is in repair longer than the policy's grace.")


def _attempt_lives(look: Look, attempt: AttemptView) -> Decision:
    moves_again = heal(look, attempt)
    bad = bad_fault(attempt)
    if moves_again is not None and (bad is None or moves_again.incident.is_open):
        return moves_again
    if moves_again is not None and bad is not None:  # it moves, and is not well: its loss is what is left to see to
        look = look.changed(fault=bad, fault_rule=f"beat.{attempt.loss_health}")
    refuted = (
        _is_denied(look, attempt)
        or _has_not_ended(look, attempt)
        or _node_is_mended(look, attempt)
        or late_claim(look, attempt)
    )
    if refuted is not None:
        return refuted
    row = look.policy.playbook(look.incident.fault)
    watched = _left_training(look, attempt, row.response)
    if watched is not None:
        return watched
    if row.response is Response.HAND_OVER:
        return look.hand_over("playbook.hand_over", story(look))
    if look.policy.shadow:
        return shadow(look, f"{row.response} for {look.incident.fault}")
    if _came_back_from_repair(look, attempt):
        return _after_repair(look, attempt)
    if look.incident.fault is FaultClass.HANG and look.incident.fault_rule == f"signal.{SignalKind.EXTERNAL_ALERT}":
        said = weighed(look, attempt)  # other monitoring says so, not the run's own: its steps are asked first
        if said is not None:
            return said
    if row.response in ROLL_BACKS:
        return roll_back(look, attempt, "playbook.roll_back", story(look))
    if row.response in (Response.CHECKPOINT_THEN_RESTART, Response.CHECKPOINT_THEN_HAND_OVER):
        return begin_checkpoint(look, attempt)
    return _confirm_then_stop(look, attempt)


def _is_denied(look: Look, attempt: AttemptView) -> Decision | None:
    """All that is said against the run came over the bus, and its own heartbeat denies it: noted, and nothing is done.

    The heartbeat that bears a claim out may be on its way, and is waited for.
    """
    incident = look.incident
    claims = [one for one in incident.signals if one.triggers and one.fault is not None and concerns(one, incident)]
    if incident.order is not None or incident.tries or bad_fault(attempt) is not None or not claims:
        return None
    if not all(is_denied(one, attempt, now=look.now) for one in claims):
        return None
    reason = f"{claims[-1].summary}. But {attempt.name} is {attempt.work or 'running'}, says its own heartbeat"
    if incident.phase in UNTOLD:
        return look.move("claim.denied", f"{reason}; its next ones are waited for", Phase.HOLDING)
    if look.in_phase < WAIT:
        return look.stay("claim.denied", f"{reason}; its next ones are waited for", until=look.now + NEXT_BEAT)
    return look.close(
        "claim.refuted",
        f"{reason}, and so did those before it. Whoever may put events on the bus may have sent that; nothing was done",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


def _node_is_mended(look: Look, attempt: AttemptView) -> Decision | None:
    """The run lives, and all that is said against its node was over before it was heard."""
    if not claims_are_over(look):
        return None
    return look.close(
        "heal.node_mended",
        f"{story(look)} But that node is well since, its agents say; {attempt.name} is "
        f"{attempt.status}, and left alone",
        Phase.STOPPED,
        severity=Severity.INFO,
    )


def _left_training(look: Look, attempt: AttemptView, response: Response) -> Decision | None:
    """What is told or watched while the run goes on; None where something is to be done about it."""
    bout = look.incident.bout
    is_loss = look.incident.fault in LOSS_FAULTS
    if is_loss and bout is not None and bout.healed_step is not None:
        return healed(look, attempt)
    if response is Response.TELL:
        return _tell(look)
    if look.incident.fault is FaultClass.NON_FINITE and not look.incident.is_poisoned:
        return _single_value(look, attempt)
    if is_loss and response is Response.WATCH_THEN_ROLL_BACK:
        return watch_loss(look, attempt)
    return silent_only(look, attempt)


def _single_value(look: Look, attempt: AttemptView) -> Decision:
    """A value that was not finite, once: watched until it lasts or is over, and told either way."""
    reason = f"{story(look)} One value that is not finite may be a skipped step; {attempt.name} is watched"
    if look.incident.phase in UNTOLD:
        return look.move("nan.watching", reason, Phase.HOLDING)
    if look.in_phase < look.policy.timing.tell_open:
        return look.stay("nan.watching", reason)
    return look.close(
        "nan.passed",
        f"{story(look)} Nothing has borne it out for {span_word(look.in_phase)}: {attempt.name} was left training",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


def _came_back_from_repair(look: Look, attempt: AttemptView) -> bool:
    """The platform has restarted it, and nothing has been reported since: what was said before is about the past."""
    incident = look.incident
    back_at = incident.repaired_at
    if back_at is None or incident.fault not in _HEALED_BY_REPAIR or is_poisoned(look, attempt):
        return False
    return not any(
        signal.triggers
        and signal.fault is not None
        and signal.kind not in ORDER_KINDS
        and concerns(signal, incident)
        and signal.occurred_at >= back_at
        for signal in incident.signals
    )


def _after_repair(look: Look, attempt: AttemptView) -> Decision:
    """Its steps decide: past the target it has healed, standing still it has not, unseen it is for people to check."""
    look, still = watch(look, attempt)
    back_for = look.now - (look.incident.repaired_at or look.now)
    if isinstance(attempt.last_step, Known) and isinstance(look.incident.target_step, Known):
        if still >= look.policy.timing.silent_limit and back_for >= look.policy.timing.silent_limit:
            return begin_stop(
                look, "defer.repaired_silent", f"{attempt.name} has not moved for {span_word(still)} since its repair."
            )
    elif back_for >= look.policy.timing.repair_grace:
        return look.close(
            "defer.repaired_unseen",
            f"the platform repaired {attempt.name}, and it has run for {span_word(back_for)} since. Whether it passed "
            "the step it was at cannot be seen",
            Phase.STOPPED,
            severity=Severity.WARNING,
        )
    rule, reason = "defer.repaired", f"{attempt.name} runs again after the platform's repair; watching its steps"
    if look.incident.phase in UNTOLD:
        return look.move(rule, reason, Phase.HOLDING)
    return look.stay(rule, reason)


def _confirm_then_stop(look: Look, attempt: AttemptView) -> Decision:
    """A run that is said to be dead, but runs: moving steps refute it, standing still confirms it."""
    incident = look.incident
    if incident.fault not in DEADLY:
        return begin_stop(look, "playbook.restart", story(look))
    if incident.fault_rule in {f"signal.{kind}" for kind in STATE_KINDS}:
        return _wait_for_the_state(look, attempt)
    return weighed(look, attempt) or begin_stop(look, "playbook.restart", story(look))


def _has_not_ended(look: Look, attempt: AttemptView) -> Decision | None:
    """An agent's event says that the run has ended, was preempted or reached its limit, and it runs.

    Any head node may send such an event about any cluster, and write the documents of its own alone: it is not acted on
    before they agree.
    """
    if look.incident.fault_rule != f"signal.{SignalKind.ATTEMPT_STATE}":
        return None
    return _wait_for_the_state(look, attempt)


def _wait_for_the_state(look: Look, attempt: AttemptView) -> Decision:
    """A message says that the run has ended, the platform says that it runs: the platform is asked until they agree."""
    reason = f"{story(look)} But the platform says that {attempt.name} is {attempt.status}"
    if look.incident.phase in UNTOLD:
        return look.move("defer.refuted", reason, Phase.HOLDING)
    if look.in_phase < look.policy.timing.tell_open:
        return look.stay("defer.refuted", reason)
    return look.close("defer.refuted_limit", reason, Phase.STOPPED, severity=Severity.WARNING)


def heal(look: Look, attempt: AttemptView) -> Decision | None:
    """A stall, a false alarm or a platform repair whose steps move again needs nobody."""
    was_mended = look.incident.repaired_at is not None or look.incident.deferred_since is not None
    healable = _HEALED_BY_REPAIR if was_mended else HEALABLE
    if look.incident.fault not in healable or look.incident.order is not None:
        return None
    if attempt.status is not AttemptStatus.RUNNING or is_poisoned(look, attempt):
        return None
    if not has_passed(attempt.last_step, look.incident.target_step) or attempt.work == STALLED:
        return None
    claim_at = claimed_at(look)
    if attempt.beat_at is not None and claim_at is not None and attempt.beat_at < claim_at + TWO_BEATS:
        # One beat may have been on its way, and of a process that has died since.
        is_young = look.now < claim_at + TWO_BEATS + BEATS_LATE
        return _confirm_heal(look, attempt) if attempt.beat_at >= claim_at and is_young else None
    by_whom = "by its own auto-resume" if look.incident.deferred_since is not None else "by itself"
    return look.close(
        "healed",
        f"{attempt.name} moves again {by_whom}: step {step_word(attempt.last_step)} is past "
        f"{step_word(look.incident.target_step)}",
        Phase.RECOVERED,
        severity=Severity.INFO,
    )


def _confirm_heal(look: Look, attempt: AttemptView) -> Decision:
    """It moves, and is not stopped; whether it goes on is told by its next heartbeats."""
    reason = (
        f"{story(look)} But {attempt.name} is at step {step_word(attempt.last_step)}: waiting for its next heartbeat"
    )
    if look.incident.phase in UNTOLD:
        return look.move("heal.confirm", reason, Phase.HOLDING)
    return look.stay("heal.confirm", reason)


def _tell(look: Look) -> Decision:
    if look.incident.phase in UNTOLD:
        told = Notify(severity=Severity.WARNING, title=f"{subject(look)}: {look.incident.fault}", text=story(look))
        return look.move("playbook.tell", f"{story(look)} The playbook says: tell, do nothing.", Phase.HOLDING, told)
    if look.in_phase < look.policy.timing.tell_open:
        return look.stay("playbook.collect", "told; watching for anything that would change the picture")
    return look.close("playbook.told", "told; nothing else followed", Phase.STOPPED, severity=Severity.INFO)
