"""An attempt has ended without an action of ours: is it replaced, and what does a person decide?"""

from __future__ import annotations

import dataclasses
from typing import Final

from chalicelib.domain.decision.rule import decided_by, rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, step_word, story
from chalicelib.domain.fault_specs.faults import EXPLAINS_NO_END
from chalicelib.domain.faults.diagnosis import failure_signature
from chalicelib.domain.faults.failure_reasons import failure_of
from chalicelib.domain.faults.loss import marked_bad
from chalicelib.domain.faults.poison import died_at
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.incident import Failure, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.model.observation import FINISHED, AttemptStatus
from chalicelib.domain.model.start_view import StartState
from chalicelib.domain.policy.playbooks import Response
from chalicelib.domain.rules.run.preparing import BEFORE_ATTEMPT, back_off_for_capacity, settle_try
from chalicelib.domain.run.first_response import shadow
from rekindle.protocol.signals import FaultClass


@rule("start.revoked")
def start_revoked(context: RuleContext) -> Decision | None:
    """Another cluster of the federation runs it: left alone."""
    attempt = context.attempt_seen
    if attempt.start is None or attempt.start.state is not StartState.WITHDRAWN:
        return None
    reason = f"{attempt.name} was revoked: another cluster of the federation runs it"
    return context.close("start.revoked", reason, Phase.STOPPED, severity=Severity.INFO)


@rule("start.deadline")
def start_deadline(context: RuleContext) -> Decision | None:
    """Its own `--deadline` has passed: a person."""
    attempt = context.attempt_seen
    if attempt.start is None or attempt.start.state is not StartState.PAST_DEADLINE:
        return None
    return context.hand_over(
        "start.deadline", f"{attempt.name} was ended at its own deadline (--deadline), which is past"
    )


@rule("ended.finished")
def ended_finished(context: RuleContext) -> Decision | None:
    """It failed after its training had finished, by its own heartbeat: not trained again; a person."""
    attempt = context.attempt_seen
    if attempt.work != FINISHED or attempt.status is not AttemptStatus.FAILED or context.incident.is_poisoned:
        return None
    return context.hand_over(
        "ended.finished",
        f"{attempt.name} had finished its training at step {step_word(attempt.last_step)}, and failed afterwards: "
        f"{attempt.failure_reason[:300] or 'no reason given'}. It is not trained again",
        severity=Severity.WARNING,
    )


@rule()
def ended_recorded(context: RuleContext) -> RuleContext:
    """Its end is put on record: how, at which step, and which of its steps were bad."""
    incident, attempt = context.incident, context.attempt_seen
    if incident.fault in EXPLAINS_NO_END:
        incident = dataclasses.replace(incident, fault=FaultClass.SOFTWARE_CRASH, fault_rule=f"ended.{incident.fault}")
    failure = Failure(
        attempt=attempt.name,
        signature=failure_signature(attempt.failure_reason),
        step=died_at(incident, attempt),
    )
    before = (item for item in incident.resubmission.failures if item.attempt != attempt.name)
    incident = incident.changed(failures=(*before, failure))
    # What it saved while its loss was bad is not resumed from, whatever it died of.
    return dataclasses.replace(context, incident=incident.changed(stretches=marked_bad(incident).loss.stretches))


@rule("playbook.hand_over")
def ended_hand_over(context: RuleContext) -> Decision | None:
    """The playbook says: a person."""
    response = context.policy.playbook(context.incident.fault).response
    if response not in (Response.HAND_OVER, Response.CHECKPOINT_THEN_HAND_OVER):
        return None
    return context.hand_over("playbook.hand_over", story(context))


@rule("playbook.notified_dead")
def playbook_notified_dead(context: RuleContext) -> Decision | None:
    """The playbook only tells: a person, because the run is dead."""
    if context.policy.playbook(context.incident.fault).response is not Response.TELL:
        return None
    return context.hand_over("playbook.notified_dead", f"{story(context)} The playbook says: tell.")


@rule("guard.shadow")
def ended_shadow(context: RuleContext) -> Decision | None:
    """Shadow mode: only told."""
    return shadow(context, f"resubmit {context.attempt_seen.name}") if context.policy.shadow else None


@rule("crash.person_needed")
def crash_person_needed(context: RuleContext) -> Decision | None:
    """It failed in a way that a resubmission cannot fix: a person."""
    attempt = context.attempt_seen
    if not failure_of(attempt).person_needed:
        return None
    return context.hand_over(
        "crash.person_needed",
        f"{attempt.name} failed in a way that a resubmission cannot fix: {attempt.failure_reason[:300]}",
    )


@rule("crash.same_again")
def crash_same_again(context: RuleContext) -> Decision | None:
    """It crashed in the same words at the same step as an earlier attempt: a person."""
    incident, attempt = context.incident, context.attempt_seen
    *before, failure = incident.resubmission.failures
    twin = _same_failure_before(before, failure)
    if twin is None or incident.fault is not FaultClass.SOFTWARE_CRASH:
        return None
    return context.hand_over(
        "crash.same_again",
        f"{attempt.name} and {twin.attempt} ended alike at step {step_word(failure.step)}: "
        f"{failure.signature[:200]!r}. Trying again cannot help; the owner is notified.",
    )


@rule("capacity.back_off", "capacity.limit")
def capacity_back_off(context: RuleContext) -> Decision | None:
    """The platform accepted it and had no capacity: tried again ever later; a person at the capacity limit."""
    attempt = context.attempt_seen
    if failure_of(attempt).rule != "capacity" or isinstance(attempt.last_step, Known):
        return None
    incident = settle_try(context.incident, attempt, context.seen)
    if incident.resubmission.tries and incident.resubmission.tries[-1].name == attempt.name:
        settled = dataclasses.replace(incident.resubmission.tries[-1], no_room=True, gained=None)
        incident = incident.changed(tries=(*incident.resubmission.tries[:-1], settled))
    return back_off_for_capacity(dataclasses.replace(context, incident=incident), attempt.failure_reason[:200])


@rule()
def ended_resubmitted(context: RuleContext) -> Decision:
    """What is left: a new attempt: [before a new attempt](#before-a-new-attempt)."""
    return decided_by(BEFORE_ATTEMPT, context)


ENDED: Final = (
    start_revoked,
    start_deadline,
    ended_finished,
    ended_recorded,
    ended_hand_over,
    playbook_notified_dead,
    ended_shadow,
    crash_person_needed,
    crash_same_again,
    capacity_back_off,
    ended_resubmitted,
)


def _same_failure_before(before: list[Failure], failure: Failure) -> Failure | None:
    """An earlier failure with the same signature at the same known step. An unknown step is never "the same"."""
    if not isinstance(failure.step, Known) or not failure.signature:
        return None
    return next((item for item in before if item.signature == failure.signature and item.step == failure.step), None)
