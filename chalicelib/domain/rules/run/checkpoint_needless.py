"""Rules for an attempt that was asked to save, and for which the picture has changed meanwhile."""

from __future__ import annotations

import dataclasses
from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import (
    Decision,
    RuleContext,
    step_word,
    story,
    subject,
)
from chalicelib.domain.fault_specs.faults import LOSS_FAULTS
from chalicelib.domain.faults.loss import bad_fault, marked_healed
from chalicelib.domain.faults.stalls import STALLED_HEARTBEAT, is_past_stall, stalls_of
from chalicelib.domain.model.action import Action, Notify, Severity
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.model.observation import STALLED, TRAINING, AttemptStatus, AttemptView
from chalicelib.domain.policy.playbooks import ROLL_BACKS, Response
from chalicelib.domain.rules.run.loss import close_healed, roll_back
from chalicelib.domain.rules.run.refuted import recovered_itself
from chalicelib.domain.run.finishing import ended_finished_poisoned, ended_finishing
from chalicelib.domain.run.liveness import began_anew, claims_are_over, has_outlived_claim
from chalicelib.domain.run.movement import new_watch
from rekindle.protocol.signals import FaultClass


@rule("checkpoint.poisoned")
def checkpoint_poisoned(context: RuleContext) -> Decision | None:
    """Its loss is not finite, so that what it would save could not be resumed from: [rolled back](#rolling-back)."""
    incident = context.incident
    if incident.fault is not FaultClass.NON_FINITE or not incident.is_poisoned:
        return None
    if context.policy.playbook(incident.fault).response not in ROLL_BACKS:
        return None
    reason = f"{story(context)} What it would save could not be resumed from."
    return roll_back(context, "checkpoint.poisoned", reason)


@rule("spike.healed", "spike.healed_stalled", "verify.healed")
def checkpoint_healed(context: RuleContext) -> Decision | None:
    """Its bad loss has healed: closed; a new attempt still has to pass the step that the old one ended at."""
    episode = context.incident.loss.episode
    if context.incident.fault not in LOSS_FAULTS or episode is None or episode.healed_step is None:
        return None
    return healed_meanwhile(context)


@rule("defer.platform_repair")
def checkpoint_platform_repair(context: RuleContext) -> Decision | None:
    """The platform repairs it: left to the platform."""
    attempt = context.attempt_seen
    if attempt.status is not AttemptStatus.REPAIRING:
        return None
    reason = f"the platform repairs {attempt.name} automatically ({attempt.detail}); two actors must not repair one run"
    return _watched(context, "defer.platform_repair", reason)


@rule("checkpoint.began_anew")
def checkpoint_began_anew(context: RuleContext) -> Decision | None:
    """What starts it again in its place has done so: the new processes are watched, not stopped."""
    if not began_anew(context):
        return None
    reason = f"{context.attempt_seen.name} was started again in its place (life {context.attempt_seen.life})"
    return _watched(context, "checkpoint.began_anew", reason)


@rule("checkpoint.node_mended")
def checkpoint_node_mended(context: RuleContext) -> Decision | None:
    """Every report against its node is over: left running."""
    if not claims_are_over(context):
        return None
    name = context.attempt_seen.name
    reason = f"{story(context)} But that node is well since, its agents say; {name} continues"
    return _watched(context, "checkpoint.node_mended", reason)


@rule("checkpoint.tell")
def checkpoint_tell(context: RuleContext) -> Decision | None:
    """The stall for which it was asked to save is over, and what is left is only told: notified, left running."""
    attempt, fault = context.attempt_seen, context.incident.fault
    if context.incident.resubmission.tries or attempt.status is not AttemptStatus.RUNNING or attempt.work == STALLED:
        return None
    is_told = context.policy.playbook(fault).response is Response.TELL
    if not is_told or not is_past_stall(context.incident, attempt.last_step):
        return None
    notice = Notify(severity=Severity.WARNING, title=f"{subject(context)}: {fault}", text=story(context))
    reason = f"{attempt.name} moves again. {story(context)} The playbook says: tell, do nothing."
    return _watched(context, "checkpoint.tell", reason, notice)


@rule("healed", "heal.confirm", "heal.loss_bad")
def checkpoint_moves_again(context: RuleContext) -> Decision | None:
    """It moves again: confirmed by its next heartbeats, then closed; held where its loss is bad."""
    if context.incident.resubmission.tries:
        return None
    attempt = context.attempt_seen
    moves_again = recovered_itself(context, attempt)
    if moves_again is None or moves_again.incident.is_open or bad_fault(attempt) is None:
        return moves_again
    return _watched(context, "heal.loss_bad", f"{attempt.name} moves again, but its loss is {attempt.loss_health}")


@rule("verify.moves_again")
def checkpoint_verify_moves_again(context: RuleContext) -> Decision | None:
    """A new attempt that hung moves again: verified on."""
    attempt = context.attempt_seen
    if not context.incident.resubmission.tries or not _has_moved_on(context, attempt):
        return None
    reason = f"{attempt.name} moves again: step {step_word(attempt.last_step)}"
    return _watched(context, "verify.moves_again", reason)


NEEDLESS: Final = (
    checkpoint_poisoned,
    checkpoint_healed,
    ended_finished_poisoned,
    ended_finishing,
    checkpoint_platform_repair,
    checkpoint_began_anew,
    checkpoint_node_mended,
    checkpoint_tell,
    checkpoint_moves_again,
    checkpoint_verify_moves_again,
)


def healed_meanwhile(context: RuleContext) -> Decision:
    """A first attempt needs no further action; a new one still has to pass the step that the old one ended at."""
    if not context.incident.resubmission.tries:
        return close_healed(context, context.attempt_seen)
    context = dataclasses.replace(context, incident=marked_healed(context.incident))
    reason = f"the loss of {context.attempt_seen.name} is well again; it is not rolled back"
    return _watched(context.changed(needs=(), needs_since=None), "verify.healed", reason)


def _watched(context: RuleContext, name: str, reason: str, *actions: Action) -> Decision:
    """Watched anew: a new attempt in VERIFYING, a first one in HOLDING."""
    to = Phase.VERIFYING if context.incident.resubmission.tries else Phase.HOLDING
    return context.changed(**new_watch()).move(name, reason, to, *actions)


def _has_moved_on(context: RuleContext, attempt: AttemptView) -> bool:
    """A new attempt that hung has made a step since. Where its node was reported lost, later heartbeats show it."""
    incident = context.incident
    if attempt.work == STALLED:
        return False
    if not is_past_stall(incident, attempt.last_step):
        return _heartbeat_takes_it_back(context, attempt)
    if incident.fault is FaultClass.NODE_LOST:
        return has_outlived_claim(context, attempt)
    return incident.fault is FaultClass.HANG


def _heartbeat_takes_it_back(context: RuleContext, attempt: AttemptView) -> bool:
    """Its heartbeats alone showed it stuck, and the newest one, written after that, that it trains."""
    ask, written_at = context.incident.halt.ask, attempt.heartbeat_at
    if context.incident.fault_rule != STALLED_HEARTBEAT or stalls_of(context.incident) or ask is None:
        return False
    return attempt.work == TRAINING and written_at is not None and written_at > ask.asked_at
