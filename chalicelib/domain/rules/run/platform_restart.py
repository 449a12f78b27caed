"""What a platform does on its own: it starts an attempt again, lets it wait in a queue, or suspends it.

The platform's own restart and ours never both happen: where it (or a person) has put the job back, that start is
adopted, watched like one of ours, and no other is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import takewhile
from typing import Final, TypeGuard

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, has_passed, result, story, subject
from chalicelib.domain.fault_specs.faults import LOSS_FAULTS
from chalicelib.domain.faults.diagnosis import failure_signature
from chalicelib.domain.faults.heartbeat_claims import has_fresh_heartbeat
from chalicelib.domain.faults.loss import marked_bad
from chalicelib.domain.faults.poison import died_at
from chalicelib.domain.guards.guards import would_hold
from chalicelib.domain.model.action import AdoptAttempt, Done, Notify, Severity, StopJob
from chalicelib.domain.model.incident import Failure, Incident, Phase, Try
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.start_view import Submission
from chalicelib.domain.resume.load_failures import settle_load
from chalicelib.domain.rules.run.budgets import fruitless_of_job, over_budget
from chalicelib.domain.rules.run.loss import roll_back
from chalicelib.domain.rules.run.preparing import left_to, settle_try
from chalicelib.domain.run.bad_nodes import broken_one_of, is_lost
from chalicelib.domain.run.first_response import begin_stop, shadow
from chalicelib.domain.run.liveness import LATE
from chalicelib.domain.run.movement import new_watch
from rekindle.protocol.cluster.documents import EndedBy
from rekindle.protocol.mailbox import LossState
from rekindle.protocol.signals import FaultClass

_WHO: Final = {
    EndedBy.USER: "a person",
    EndedBy.ITSELF: "the job itself",
    EndedBy.ADMIN: "an administrator",
    EndedBy.AGENT: "an earlier order of ours",
    EndedBy.UNKNOWN: "someone",
}
FINITE_FOR: Final = 3  # steps of a start, after which a finite loss says that the weights it has loaded are, too
MAX_CHASED: Final = 5  # starts of a loop that are gone before their stop reaches them, beyond the policy's budget
# States of a start that has begun, or is over: it is not held any more.
_BEGUN: Final = frozenset(AttemptStatus) - {AttemptStatus.STARTING, AttemptStatus.GONE}


# ---- the platform's own restart ----


@rule("adopt.owner_stopped")
def adopt_owner_stopped(context: RuleContext) -> Decision | None:
    """Another start took the attempt's place, and its user canceled it: left alone."""
    if _restarted(context) is None:
        return None
    after = context.seen.successor.value if isinstance(context.seen.successor, Known) else None
    if after is None or after.status is not AttemptStatus.STOPPED or after.successor is not None:
        return None
    who = "its user" if after.start is not None and after.start.ended_by is EndedBy.USER else "someone"
    return context.close(
        "adopt.owner_stopped",
        f"{after.name}, which took the place of {context.attempt_seen.name}, was cancelled by {who}: "
        "the job is left alone",
        Phase.STOPPED,
        severity=Severity.INFO,
    )


@rule("adopt.platform_restart", "adopt.loop", "adopt.loop_limit", "guard.shadow")
def adopt_platform_restart(context: RuleContext) -> Decision | None:
    """The platform or a person started it again: that start is verified, and no other is made.

    One that is put back repeatedly without progress is held; a person if no stop catches it.
    """
    successor = _restarted(context)
    return adopt(context, context.attempt_seen, successor) if successor is not None else None


PLATFORM_RESTARTED: Final = (adopt_owner_stopped, adopt_platform_restart)


def _restarted(context: RuleContext) -> str | None:
    """The start that has taken the attempt's place, where it is not the one that we ordered."""
    attempt, incident = context.attempt, context.incident
    if attempt is None or attempt.successor is None or attempt.start is None or attempt.name != incident.attempt:
        return None
    if context.ordered == "checkpoint":
        return None  # there is nothing left to save; the notice tells the person who gave the order
    if incident.phase is Phase.RESUBMITTING and incident.resubmission.pending is not None:
        return None  # what we ordered is settled first
    after = context.seen.successor.value if isinstance(context.seen.successor, Known) else None
    has_begun = after is not None and after.status in _BEGUN
    return None if is_put_back_by_us(incident, attempt) and not has_begun else attempt.successor


def is_put_back_by_us(incident: Incident, attempt: AttemptView) -> bool:
    """It went back into the queue because we stopped it so. The answer to that order may have been lost."""
    if attempt.start is None:
        return False
    by = attempt.start.requeued_by
    asked = attempt.name in incident.halt.stopped_attempts and incident.halt.stop_hold
    return by is EndedBy.AGENT or (asked and by is EndedBy.UNKNOWN)


def adopt(context: RuleContext, attempt: AttemptView, name: str) -> Decision:
    """Continue with `name`, a start that has taken the attempt's place: it is watched, or held where it is a loop.

    A stop order for the run covers a start that a stop of ours has left in the queue, held.
    """
    who = _WHO.get(attempt.start.requeued_by if attempt.start else EndedBy.UNKNOWN, context.platform.title)
    if context.policy.shadow:
        return shadow(context, f"continue with {name}, which {who} started in place of {attempt.name}")
    incident = _books_closed(context, attempt)
    theirs = _their_try(context, incident, attempt, name)
    tries = (*incident.resubmission.tries, theirs)
    spent = over_budget(dataclasses.replace(context, incident=incident.changed(tries=tries)))
    if spent is not None and len(tries) > context.policy.budgets.max_attempts + MAX_CHASED:
        return context.hand_over(
            "adopt.loop_limit", f"{name} is the next of a loop that no stop has caught. {spent.reason}"
        )
    actions = (AdoptAttempt(name=name, number=theirs.number, clone_of=attempt.name, why=f"{who} put the job back"),)
    stop = StopJob(attempt=name, why="put back again and again without a gain", hold=True)
    after = context.seen.successor.value if isinstance(context.seen.successor, Known) else None
    is_loop = _is_loop(spent, context, tries) and not _may_have_gained(after, incident, context)
    holds = is_loop and incident.phase is not Phase.RESUBMITTING and not would_hold(context, stop)
    adopted = _under_care(dataclasses.replace(context, incident=incident), attempt, theirs, holds=holds)
    if holds and spent is not None:  # a loop may be faster than our looks: not after the next one, but now
        reason = f"{who} puts it back again and again, and it gains nothing: {name} is held. {spent.reason}"
        return adopted.move("adopt.loop", reason, Phase.STOPPING, *actions, *_order_dropped(context, name, who), stop)
    return adopted.move(
        "adopt.platform_restart",
        f"{story(context)} {who} has put the job back automatically: {name} takes the place of "
        f"{attempt.name} and is watched; "
        f"no other is started.{zombies(context, attempt)}",
        Phase.VERIFYING,
        *actions,
        *_order_dropped(context, name, who),
    )


def _their_try(context: RuleContext, incident: Incident, attempt: AttemptView, name: str) -> Try:
    number = context.seen.next_number - 1 if context.seen.current == name else context.seen.next_number
    return Try(
        number=max(number, 1),
        name=name,
        clone_of=attempt.name,
        at=context.now,
        resume_step=Unknown("it continues from where its script finds"),
        how=Submission.REQUEUE,
        is_theirs=True,
        left_nodes=broken_one_of(incident, attempt),
    )


def _order_dropped(context: RuleContext, name: str, who: str) -> tuple[Notify, ...]:
    """The notice to the person who has ordered a resubmission, which is not carried out."""
    if context.ordered != "resubmit":
        return ()
    text = f"{who} has started {name} before the order to resubmit could be carried out: it is not carried out."
    return (Notify(severity=Severity.WARNING, title=f"{subject(context)}: an order was not taken", text=text),)


def _under_care(context: RuleContext, attempt: AttemptView, theirs: Try, *, holds: bool) -> RuleContext:
    """The context with the new start as the attempt under care; `holds`: it is stopped at once."""
    incident, name = context.incident, theirs.name
    poisoned = incident.loss.onset_attempt == attempt.name
    return context.changed(
        tries=(*incident.resubmission.tries, theirs),
        attempt=name,
        attempt_number=theirs.number,
        # What it resumes from by itself may be as bad as what it was taken from.
        onset_attempt=name if poisoned else incident.loss.onset_attempt,
        phase_entered_at=context.now,
        seen_as="",
        seen_since=None,
        not_before=None,
        stop_hold=holds,
        stopped_attempts=(*incident.halt.stopped_attempts, name) if holds else incident.halt.stopped_attempts,
        stop_asked_at=context.now if holds else incident.halt.stop_asked_at,
        deferred_since=None,
        requeue_refused=False,
        **new_watch(),
    )


def _is_loop(spent: Decision | None, context: RuleContext, tries: Sequence[Try]) -> TypeGuard[Decision]:
    """The spent budget is one of attempts without a gain, and this is not the first start that others make after ours:
    one that is put back once has not failed, however many of ours have. `max_attempts` bounds our own submissions,
    whatever they gained: it is no reason to stop a start that the platform makes automatically.
    """
    if spent is None or spent.rule == "budget.attempts" or not tries:
        return False
    of_this_incident = sum(1 for _ in takewhile(lambda item: item.is_theirs, reversed(tries)))
    is_new = tries[-1].name != context.seen.current
    return max(of_this_incident, context.seen.record.started_by_others + is_new) > 1


def _may_have_gained(after: AttemptView | None, incident: Incident, context: RuleContext) -> bool:
    """The start that the platform has made is past where the old one ended: it was long unseen, and is no loop. Nor is
    it shown to be one where it has run for minutes, and no heartbeat of now says how far it came.
    """
    if after is None or after.status.has_ended:
        return False
    began_at = after.training_since
    is_unseen = (
        began_at is not None and context.now - began_at >= LATE and not has_fresh_heartbeat(after, now=context.now)
    )
    return is_unseen or has_passed(after.last_step, incident.target_step)


def _books_closed(context: RuleContext, attempt: AttemptView) -> Incident:
    """The old attempt has ended: how far it came, and whether it gained anything."""
    incident = context.incident
    carried = incident.resubmission.fruitless_before if incident.resubmission.tries else fruitless_of_job(context)
    failure = Failure(
        attempt=attempt.name, signature=failure_signature(attempt.failure_reason), step=died_at(incident, attempt)
    )
    others = tuple(item for item in incident.resubmission.failures if item.attempt != attempt.name)
    incident = marked_bad(incident.changed(failures=(*others, failure)))
    settled = settle_load(settle_try(incident, attempt, context.seen), attempt)
    return settled.changed(fruitless_before=carried)


def zombies(context: RuleContext, attempt: AttemptView) -> str:
    """For the timeline: ranks of the old attempt that may live on unseen."""
    if attempt.start is None or not isinstance(context.seen.nodes, Known):
        return ""
    lost = [
        facts.name for facts in context.seen.nodes.value.facts if facts.name in attempt.start.nodes and is_lost(facts)
    ]
    if not lost:
        return ""
    return f" Its ranks on {', '.join(lost[:8])} may live on, out of reach: they may not save any more."


# ---- VERIFYING a start that the platform made: is it registered, and may it go on? ----


def _theirs(context: RuleContext) -> Try | None:
    """The newest start, where the platform, or a person, has made it and it lives."""
    attempt = context.attempt_seen
    last = context.incident.resubmission.tries[-1] if context.incident.resubmission.tries else None
    if last is None or not last.is_theirs or last.name != attempt.name or attempt.status.has_ended:
        return None
    return last


def _put_back(context: RuleContext) -> Try | None:
    """The same, of a start that begins by itself where its script finds: not one that a person has submitted, nor one
    that is being held already.
    """
    last = _theirs(context)
    if last is None or last.how is not Submission.REQUEUE or last.name in context.incident.halt.stopped_attempts:
        return None
    return last


@rule("adopt.again", "adopt.refused", "adopt.goes_on")
def adopt_again(context: RuleContext) -> Decision | None:
    """A start that others made is not registered yet: repeated; a person where another attempt is the newest. One that
    was protected as a Job of its own meanwhile is left to that."""
    attempt, last = context.attempt_seen, _theirs(context)
    if last is None:
        return None
    elsewhere = result(context, "AdoptAttempt", Done.SIBLING)
    if elsewhere is not None:
        return left_to("adopt.goes_on", context, elsewhere.detail)
    is_lost = result(context, "AdoptAttempt", Done.UNAVAILABLE) is not None
    if not is_lost and (not context.seen.current or context.seen.current == attempt.name):
        return None
    if result(context, "AdoptAttempt", Done.REFUSED) is not None:
        return context.hand_over(
            "adopt.refused",
            f"{attempt.name} runs, but {context.seen.current} is the Job's newest attempt: two may run",
        )
    again = AdoptAttempt(name=last.name, number=last.number, clone_of=last.clone_of, why="not registered yet")
    return context.stay("adopt.again", f"{attempt.name} is not registered yet; trying again", again)


@rule("adopt.clean")
def adopt_clean(context: RuleContext) -> Decision | None:
    """It resumed before the bad state, or its loss is finite after it: it continues."""
    last = _put_back(context)
    if last is None or not context.incident.is_poisoned:
        return None
    clean = _clean_start(context, context.attempt_seen)
    if clean is None:
        return None
    return context.changed(onset_attempt=last.clone_of).stay("adopt.clean", f"{clean}: it continues")


@rule("adopt.unseen")
def adopt_unseen(context: RuleContext) -> Decision | None:
    """After a bad state, where it began is not known: observed again, until `timing.silent_limit_s`."""
    attempt, last = context.attempt_seen, _put_back(context)
    if last is None or not context.incident.is_poisoned:
        return None
    if not isinstance(attempt.first_step, Unknown) or context.in_state >= context.policy.timing.silent_limit:
        return None
    reason = f"{last.clone_of} had gone bad, and where {attempt.name} begins is not known yet"
    return context.stay("adopt.unseen", reason)


@rule("adopt.poisoned")
def adopt_poisoned(context: RuleContext) -> Decision | None:
    """It resumed from the bad state: [rolled back](#rolling-back)."""
    attempt, last = context.attempt_seen, _put_back(context)
    if last is None or not context.incident.is_poisoned:
        return None
    reason = f"{attempt.name} continues from what {last.clone_of} left, which had gone bad."
    return roll_back(context, "adopt.poisoned", reason)


@rule("adopt.loop")
def adopt_loop(context: RuleContext) -> Decision | None:
    """It is requeued repeatedly without progress: stopped, and held."""
    if _put_back(context) is None:
        return None
    closed, tries = over_budget(context), context.incident.resubmission.tries
    if not _is_loop(closed, context, tries) or _may_have_gained(context.attempt_seen, context.incident, context):
        return None
    return begin_stop(context, "adopt.loop", f"It is put back again and again and gains nothing: {closed.reason}")


ADOPTED: Final = (adopt_again, adopt_clean, adopt_unseen, adopt_poisoned, adopt_loop)


def _clean_start(context: RuleContext, attempt: AttemptView) -> str | None:
    """Why it has not loaded what went bad; None while that is not known. A bad loss of its own is a new one."""
    loss, first = context.incident.loss, attempt.first_step
    onset, last = loss.onset_step, attempt.last_step
    trained = last.value - first.value if isinstance(first, Known) and isinstance(last, Known) else 0
    is_finite = attempt.loss_state == LossState.FINITE
    # Weights that are not finite give no finite loss, from the first step on.
    if loss.onset_fault is FaultClass.NON_FINITE and is_finite and trained >= FINITE_FOR:
        return f"{attempt.name} has trained {trained} steps on from where it began, and its loss is finite"
    if attempt.loss_state not in (LossState.NONE, LossState.FINITE) or not isinstance(onset, Known):
        return None
    # A loss that is no number shows a step after the update that made it so; one that is only high, at once.
    is_at_once = loss.onset_fault in LOSS_FAULTS
    if isinstance(first, Known) and first.value < onset.value + is_at_once:
        return f"{attempt.name} began at step {first.value}, before what went bad at step {onset.value}"
    found = context.seen.checkpoints
    if isinstance(first, Unknown) and isinstance(found, Known) and not found.value:
        return f"no checkpoint is there that {attempt.name} could have loaded"
    return None
