"""Checkpointing and stopping: what is done to an attempt before it is replaced."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.claims.finishing import completed_poisoned, decide_finishing
from chalicelib.domain.claims.liveness import claims_are_over
from chalicelib.domain.claims.movement import unwatched
from chalicelib.domain.decision.verdict import (
    Decision,
    Look,
    has_passed,
    result,
    span_word,
    step_word,
    stop_is_ours,
    story,
    why,
)
from chalicelib.domain.faults.diagnosis import stalled_at
from chalicelib.domain.faults.loss import Turn, bad_fault, marked_healed, turn_of
from chalicelib.domain.model.action import Done, RequestCheckpoint, Severity, StopJob
from chalicelib.domain.model.evidence import LOSS_FAULTS
from chalicelib.domain.model.incident import CheckpointAsk, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import STALLED, AttemptStatus, AttemptView
from chalicelib.domain.model.start_view import STOP_VALID
from chalicelib.domain.policy.playbooks import ROLL_BACKS, Response
from chalicelib.domain.rules.run.ended import attempt_died, prepare_resubmit
from chalicelib.domain.rules.run.loss import healed, roll_back, watch_loss
from chalicelib.domain.rules.run.opening import heal
from chalicelib.domain.run.first_response import begin_stop
from rekindle.protocol.cluster.documents import EndedBy
from rekindle.signatures.faults import FaultClass

# The agent judges a shared path every ten seconds. Looks that near have an end: a deadline may be a day away.
NEAR: Final = timedelta(seconds=10)
NEAR_FOR: Final = timedelta(minutes=5)
_UNDER_WAY: Final = timedelta(seconds=10)  # from the decision until the order is written, and dated
LIFELESS: Final = timedelta(seconds=60)  # four heartbeats (rekindle/monitor/base/settings.py, beat_s)

# --- checkpointing --------------------------------------------------------------------------------------------------


def decide_checkpointing(look: Look) -> Decision:
    """CHECKPOINTING."""
    ask = look.incident.ask
    attempt = look.attempt
    if ask is None:  # cannot happen from our own transitions; never trust it to stay so
        return begin_stop(look, "checkpoint.lost", "the request is not on record.")
    if attempt is not None and attempt.status is AttemptStatus.STOPPING:
        return _somebody_stops(look, attempt)
    if ask.outcome is not None:
        return _already_answered(look, ask)
    from_reply = _reply(look, ask)
    if from_reply is not None:
        return from_reply
    if attempt is not None and look.has_ended(attempt):
        return _after_ask(look, _answered(ask, "late", None, f"{attempt.name} ended before it answered"))
    if attempt is not None and look.ordered is None:
        changed = _no_longer_needed(look, attempt)
        if changed is not None:
            return changed
    refused = result(look, "RequestCheckpoint", Done.REFUSED)
    if refused is not None:
        return _after_ask(look, _answered(ask, "refused", None, refused.detail))
    late = "no answer by the deadline" if look.now >= ask.deadline_at else _nothing_answers(look, ask)
    if late:
        return _after_ask(look, _answered(ask, "late", None, late))
    if result(look, "RequestCheckpoint", Done.UNAVAILABLE) is not None:
        action = RequestCheckpoint(
            request_id=ask.request_id, attempt=ask.attempt, deadline_at=ask.deadline_at, why=f"{look.incident.fault}"
        )
        return look.stay(
            "checkpoint.again", "the request could not be written; trying again", action, until=ask.deadline_at
        )
    return look.stay("checkpoint.waiting", "waiting for the checkpoint", until=_look_by(look, ask))


def _nothing_answers(look: Look, ask: CheckpointAsk) -> str:
    """Why no answer can come from it, whatever the deadline; empty where one still can.

    One thread of the monitor reads requests every 5 s and writes the heartbeat every 15 s, beside the training thread
    and also while that one saves or is stuck. The run's heartbeats were there, and none has been written for four of
    their intervals (by the store's clock), through all of which the request lay there: that thread is gone, and with
    it the answer. A heartbeat that cannot be read says nothing, nor does a run of which none has ever been read. A
    person who has ordered the checkpoint waits for all of the deadline.
    """
    attempt = look.attempt
    if attempt is None or look.ordered is not None or look.now < ask.asked_at + look.policy.timing.hang_deadline:
        return ""
    if attempt.status is not AttemptStatus.RUNNING or attempt.beat_at is None or look.platform.relays_heartbeats:
        return ""
    if look.now - attempt.beat_at < LIFELESS:
        return ""
    return f"no heartbeat since {attempt.beat_at:%H:%M:%S}: nothing in it reads requests"


def _look_by(look: Look, ask: CheckpointAsk) -> datetime:
    """Nothing tells of the answer to a signal: a checkpoint that appears on a shared path wakes nobody."""
    attempt = look.attempt
    if attempt is not None and not look.platform.relays_heartbeats and attempt.beat_at is not None:
        judged_at = max(attempt.beat_at + LIFELESS, ask.asked_at + look.policy.timing.hang_deadline)
        return min(ask.deadline_at, judged_at) if judged_at > look.now else ask.deadline_at
    start = attempt.start if attempt is not None else None
    if start is None or start.has_mailbox or look.in_phase >= NEAR_FOR:
        return ask.deadline_at
    return min(ask.deadline_at, look.now + max(NEAR, look.policy.timing.look_min))


def _already_answered(look: Look, ask: CheckpointAsk) -> Decision:
    """What its ranks report, or a place to go back to, is waited for; meanwhile the picture may change."""
    attempt = look.attempt
    if attempt is not None and not attempt.status.has_ended and look.ordered is None:
        changed = _no_longer_needed(look, attempt)
        if changed is not None:
            return changed
    return _after_ask(look, ask)


def _reply(look: Look, ask: CheckpointAsk) -> Decision | None:
    reply = getattr(look.seen.reply, "value", None)
    if reply is None or reply.request_id != ask.request_id:
        return None
    return _after_ask(look, _answered(ask, reply.outcome, reply.step, reply.why))


def _somebody_stops(look: Look, attempt: AttemptView) -> Decision:
    """Its owner, or its own time limit: how it ends says which, and a stop of ours would hide it."""
    if look.in_state >= look.policy.timing.stop_limit:
        return look.hand_over(
            "checkpoint.stop_stuck", f"{attempt.name} has been stopping for {span_word(look.in_state)}"
        )
    return look.stay("checkpoint.stopping", f"{attempt.name} is being stopped, and not by us; waiting how it ends")


def _no_longer_needed(look: Look, attempt: AttemptView) -> Decision | None:
    """The picture has changed while the run was asked to save."""
    incident = look.incident
    bout = incident.bout
    if (
        incident.fault is FaultClass.NON_FINITE
        and incident.is_poisoned
        and look.policy.playbook(incident.fault).response in ROLL_BACKS
    ):
        reason = f"{story(look)} What it would save could not be resumed from."
        return roll_back(look, attempt, "checkpoint.poisoned", reason)
    if incident.fault in LOSS_FAULTS and bout is not None and bout.healed_step is not None:
        return _healed_meanwhile(look, attempt)
    finishing = decide_finishing(look, attempt, group="checkpoint")
    if finishing is not None:
        return finishing
    if attempt.status is AttemptStatus.REPAIRING:
        to = Phase.VERIFYING if look.incident.tries else Phase.HOLDING
        return look.changed(**unwatched()).move(
            "defer.platform_repair",
            f"the platform repairs {attempt.name} by itself ({attempt.detail}); two actors must not repair one run",
            to,
        )
    if claims_are_over(look):
        reason = f"{story(look)} But that node is well since, its agents say; {attempt.name} goes on"
        to = Phase.VERIFYING if look.incident.tries else Phase.HOLDING
        return look.changed(**unwatched()).move("checkpoint.node_mended", reason, to)
    if not look.incident.tries:
        moves_again = heal(look, attempt)
        if moves_again is None or moves_again.incident.is_open or bad_fault(attempt) is None:
            return moves_again
        reason = f"{attempt.name} moves again, but its loss is {attempt.loss_health}"
        return look.changed(**unwatched()).move("heal.loss_bad", reason, Phase.HOLDING)
    is_past = has_passed(attempt.last_step, stalled_at(look.incident)) and attempt.work != STALLED
    if look.incident.fault is FaultClass.HANG and is_past:
        return look.changed(**unwatched()).move(
            "verify.moves_again",
            f"{attempt.name} moves again: step {step_word(attempt.last_step)}",
            Phase.VERIFYING,
        )
    return None


def _healed_meanwhile(look: Look, attempt: AttemptView) -> Decision:
    """A first attempt needs nobody any more; a new one still has to pass the step that the old one ended at."""
    if not look.incident.tries:
        return healed(look, attempt)
    look = dataclasses.replace(look, incident=marked_healed(look.incident))
    return look.changed(needs=(), needs_since=None, **unwatched()).move(
        "verify.healed", f"the loss of {attempt.name} is well again; it is not rolled back", Phase.VERIFYING
    )


def _may_still_heal(look: Look, attempt: AttemptView) -> Decision | None:
    """The answer is there, but the run's loss is well or on its way: it is not stopped at such a moment."""
    bout = look.incident.bout
    if bout is None or look.incident.fault not in LOSS_FAULTS:
        return None
    turn = turn_of(bout, attempt, look.policy)
    if turn is Turn.HEALED:
        return _healed_meanwhile(look, attempt)
    is_watched = look.policy.playbook(look.incident.fault).response is Response.WATCH_THEN_ROLL_BACK
    return watch_loss(look, attempt) if turn is Turn.YOUNG and is_watched else None


def _saved_past_it(look: Look, attempt: AttemptView, ask: CheckpointAsk) -> Decision | None:
    """It has saved at a step past the one that it hung at: it moves, though its heartbeats may be late. A stall after
    that is said anew, with a later step.
    """
    stuck = stalled_at(look.incident)
    is_hang = look.incident.fault is FaultClass.HANG and attempt.status is AttemptStatus.RUNNING
    if not is_hang or ask.outcome != "saved" or ask.step is None or not isinstance(stuck, Known):
        return None
    is_said_since = attempt.beat_at is None or attempt.beat_at >= ask.asked_at  # an older heartbeat refutes no answer
    if ask.step <= stuck.value or (attempt.work == STALLED and is_said_since):
        return None
    reason = f"{attempt.name} hung at step {stuck.value}, and has saved at step {ask.step}: it moves again"
    if look.incident.tries:
        return look.changed(**unwatched()).move("verify.moves_again", reason, Phase.VERIFYING)
    if look.now - ask.asked_at < look.policy.timing.silent_limit:
        return look.stay("heal.saved", f"{reason}; waiting for its heartbeats")
    return look.close(
        "heal.saved_limit",
        f"{reason}. No heartbeat shows it, and no stall was told since",
        Phase.STOPPED,
        severity=Severity.WARNING,
    )


def _answered(ask: CheckpointAsk, outcome: str, step: int | None, why_so: str) -> CheckpointAsk:
    return dataclasses.replace(ask, outcome=outcome, step=step, why=why_so[:400])


def _after_ask(look: Look, ask: CheckpointAsk) -> Decision:
    look = look.changed(ask=ask)
    said = f"checkpoint {ask.outcome}" + (f" at step {ask.step}" if ask.step is not None else "")
    said += f" ({ask.why})." if ask.why else "."
    if look.ordered == "checkpoint":
        order = look.incident.order or {}
        saved = ask.outcome == "saved"
        return look.close(
            "order.checkpoint",
            f"the checkpoint ordered by {order.get('who', 'an operator')}: {said}",
            Phase.RECOVERED if saved else Phase.STOPPED,
            severity=Severity.INFO if saved else Severity.WARNING,
        )
    attempt = look.attempt
    if attempt is not None and look.ordered is None:
        if attempt.status is AttemptStatus.COMPLETED:
            return completed_poisoned(look, attempt) or look.close(
                "checkpoint.completed",
                f"{attempt.name} completed while it was asked to save",
                Phase.RECOVERED,
                severity=Severity.INFO,
            )
        if attempt.status is AttemptStatus.STOPPED and not stop_is_ours(look, attempt):
            return look.close(
                "checkpoint.owner_stopped",
                f"{attempt.name} was stopped, and not by us: it is left alone; {said}",
                Phase.STOPPED,
                severity=Severity.INFO,
            )
        if not attempt.status.has_ended:
            changed = _no_longer_needed(look, attempt) or _saved_past_it(look, attempt, ask)
            changed = changed or _may_still_heal(look, attempt)
            if changed is not None:
                return changed
    if look.policy.playbook(look.incident.fault).response in (
        Response.CHECKPOINT_THEN_HAND_OVER,
        Response.HAND_OVER,
    ):
        severity = Severity.WARNING if ask.is_paged else Severity.PAGE
        return look.hand_over("playbook.saved_then_hand_over", f"{story(look)} {said}", severity=severity)
    if attempt is not None and look.has_ended(attempt):
        return prepare_resubmit(look) if look.ordered else attempt_died(look, attempt)
    is_rolled_back = look.policy.playbook(look.incident.fault).response in ROLL_BACKS
    if is_rolled_back and attempt is not None and look.ordered is None:
        return roll_back(look, attempt, f"checkpoint.{ask.outcome}", f"{story(look)} {said}")
    return begin_stop(look, f"checkpoint.{ask.outcome}", said)


# --- stopping -------------------------------------------------------------------------------------------------------


def decide_stopping(look: Look) -> Decision:
    """STOPPING."""
    attempt = look.attempt
    if attempt is not None and attempt.status is AttemptStatus.COMPLETED:
        return completed_poisoned(look, attempt) or look.close(
            "stop.completed",
            f"{attempt.name} completed before the stop reached it",
            Phase.RECOVERED,
            severity=Severity.INFO,
        )
    look = _whose_stop(look, attempt)
    if attempt is not None and look.has_ended(attempt):
        return _cancelled_meanwhile(look, attempt) or prepare_resubmit(look)
    refused = result(look, "StopJob", Done.REFUSED)
    if (
        refused is not None
        and attempt is not None
        and look.platform.orders_wait
        and look.in_phase < look.policy.timing.look_max
    ):
        # Of a start that is over an order is refused as stale; what is shown may lag that answer.
        return look.stay("stop.refused_once", f"the stop was refused ({refused.detail}); looking again")
    if refused is not None:
        return look.hand_over("stop.refused", f"the platform refused to stop it: {refused.detail}")
    if attempt is None:
        reason = f"whether it stopped cannot be told: {why(look.seen.attempt)}; a second one could double the run"
        return look.unread("stop.unseen", "stop.unseen_limit", reason, look.in_phase)
    if look.in_phase >= look.policy.timing.stop_limit:
        return look.hand_over(
            "stop.stuck",
            f"{attempt.name} is still {attempt.status} after {span_word(look.in_phase)}; a second copy must not start",
        )
    if attempt.status in (AttemptStatus.STOPPING, AttemptStatus.GONE):
        return look.stay("stop.waiting", f"{attempt.name} is {attempt.status}")
    moves = _moves_meanwhile(look, attempt)
    if moves is not None:
        return moves
    again = StopJob(attempt=attempt.name, why="not stopping yet", hold=look.incident.stop_hold)
    if result(look, "StopJob", Done.PENDING) is not None:  # the same order, until it is answered
        return look.stay(
            "stop.pending", f"{attempt.name} is still {attempt.status}; the stop is not answered yet", again
        )
    if _stop_is_overdue(look):
        return look.stay(
            "stop.again", f"{attempt.name} is still {attempt.status}; asking again", again, stop_asked_at=look.now
        )
    return look.stay("stop.waiting", f"{attempt.name} is {attempt.status}")


def _whose_stop(look: Look, attempt: AttemptView | None) -> Look:
    """The look with our stop taken back where the run was being stopped before it: its owner was quicker.

    The platform must say both: that our order found it stopping, and that this began before we decided. A stop of ours
    whose answer was lost is found under way as well, but began later.
    """
    begun_at = look.incident.stop_begun_at
    if attempt is None or begun_at is None or attempt.stopping_since is None or look.incident.order is not None:
        return look
    if result(look, "StopJob", Done.ALREADY) is None or attempt.stopping_since >= begun_at:
        return look
    return look.changed(stopped_attempts=tuple(one for one in look.incident.stopped_attempts if one != attempt.name))


def _cancelled_meanwhile(look: Look, attempt: AttemptView) -> Decision | None:
    """Its own user was quicker: a run that was stopped by its user is left alone, whatever we were about to do."""
    start = attempt.start
    if attempt.status is not AttemptStatus.STOPPED or attempt.successor is not None or look.incident.order is not None:
        return None
    is_by_user = start is not None and start.ended_by is EndedBy.USER
    if not is_by_user and (look.platform.tells_who_ended or stop_is_ours(look, attempt)):
        return None
    return look.close(
        "stop.owner_stopped",
        f"{attempt.name} was stopped by its user before our stop reached it: it is left alone",
        Phase.STOPPED,
        severity=Severity.INFO,
    )


def _moves_meanwhile(look: Look, attempt: AttemptView) -> Decision | None:
    """The stop did not get through, and what it was for is over: the run is past the step that it stood at, or what
    was said against its node is taken back.

    An order that waits for its agent is not repeated, and has expired before anything else is decided.
    """
    incident = look.incident
    if incident.order is not None or incident.is_poisoned:
        return None
    if attempt.status is not AttemptStatus.RUNNING or attempt.work == STALLED:
        return None
    moves = incident.fault is FaultClass.HANG and has_passed(attempt.last_step, stalled_at(incident))
    if not moves and not claims_are_over(look):
        return None
    since = f"is at step {step_word(attempt.last_step)}, and moves" if moves else "runs, and its node is well since"
    if look.platform.orders_wait:
        asked_at = look.now if result(look, "StopJob", Done.PENDING) is not None else incident.stop_asked_at
        expires_at = (asked_at or look.now) + STOP_VALID + _UNDER_WAY
        if look.now < expires_at:
            reason = f"{attempt.name} {since}: its stop is not repeated"
            return look.stay("stop.expiring", reason, until=expires_at, stop_asked_at=asked_at)
    elif not _stop_is_overdue(look):
        return None
    return look.changed(
        stopped_attempts=tuple(one for one in incident.stopped_attempts if one != attempt.name), **unwatched()
    ).move(
        "stop.moves_again",
        f"{attempt.name} could not be stopped, and {since}. It is left running",
        Phase.VERIFYING if incident.tries else Phase.HOLDING,
    )


def _stop_is_overdue(look: Look) -> bool:
    """The order may never have arrived: it could not be sent, or we died between recording and sending it."""
    if result(look, "StopJob", Done.UNAVAILABLE) is not None:
        return True
    if result(look, "StopJob", Done.DONE, Done.ALREADY) is not None:
        return False
    return look.now - (look.incident.stop_asked_at or look.incident.phase_entered_at) >= look.policy.timing.look_max
