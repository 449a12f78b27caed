"""What a platform does on its own: it starts an attempt again, lets it wait in a queue, or suspends it.

The platform's own restart and ours never both happen: where it (or a person) has put the job back, that start is
adopted, watched like one of ours, and no other is made.
"""

from __future__ import annotations

import dataclasses
from typing import Final, TypeGuard

from chalicelib.domain.claims.bad_nodes import is_lost, lost_one_of
from chalicelib.domain.claims.movement import new_watch
from chalicelib.domain.decision.verdict import Decision, RuleContext, has_passed, result, span_word, story, subject
from chalicelib.domain.fault_specs.faults import LOSS_FAULTS
from chalicelib.domain.faults.diagnosis import failure_signature
from chalicelib.domain.faults.loss import marked_bad
from chalicelib.domain.faults.poison import died_at
from chalicelib.domain.guards.guards import would_hold
from chalicelib.domain.model.action import AdoptAttempt, Done, ExcludeNodes, Notify, Severity, StopJob
from chalicelib.domain.model.incident import Failure, Incident, Phase, Try
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus, AttemptView
from chalicelib.domain.model.start_view import StartState, Submission, Waits
from chalicelib.domain.rules.run.ended import fruitless_of_job, over_budget, settle_try
from chalicelib.domain.rules.run.loss import roll_back
from chalicelib.domain.run.first_response import begin_stop, shadow
from chalicelib.domain.run.load_failures import settle_load
from rekindle.protocol.cluster.documents import EndedBy
from rekindle.protocol.mailbox import LossState
from rekindle.protocol.signals import FaultClass

_WHO: Final = {
    EndedBy.USER: "a person",
    EndedBy.ITSELF: "the job itself",
    EndedBy.AGENT: "an earlier order of ours",
    EndedBy.UNKNOWN: "someone",
}
FINITE_FOR: Final = 3  # steps of a start, after which a finite loss says that the weights it has loaded are, too
MAX_CHASED: Final = 5  # starts of a loop that are gone before their stop reaches them, beyond the policy's budget
# States of a start that has begun, or is over: nobody holds it back any more.
_BEGUN: Final = frozenset(AttemptStatus) - {AttemptStatus.STARTING, AttemptStatus.GONE}


# --- the platform's own restart -------------------------------------------------------------------------------------


def platform_restarted(context: RuleContext) -> Decision | None:
    """Another start has taken the attempt's place, and it is not the one that we ordered."""
    attempt, incident = context.attempt, context.incident
    if attempt is None or attempt.successor is None or attempt.start is None or attempt.name != incident.attempt:
        return None
    if context.ordered == "checkpoint":
        return None  # there is nothing left to save; whoever gave the order is told that
    if incident.phase is Phase.RESUBMITTING and incident.resubmission.pending is not None:
        return None  # what we ordered is settled first
    after = context.seen.successor.value if isinstance(context.seen.successor, Known) else None
    has_begun = after is not None and after.status in _BEGUN
    if is_put_back_by_us(incident, attempt) and not has_begun:
        return None
    if after is not None and after.status is AttemptStatus.STOPPED and after.successor is None:
        who = "its user" if after.start is not None and after.start.ended_by is EndedBy.USER else "someone"
        return context.close(
            "adopt.owner_stopped",
            f"{after.name}, which took the place of {attempt.name}, was cancelled by {who}: the job is left alone",
            Phase.STOPPED,
            severity=Severity.INFO,
        )
    return _adopt(context, attempt, attempt.successor)


def adopt_held(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """Continue with the start that a stop of ours has left in the queue, held: a stop order for the run covers that
    start as well. None where nothing has taken the attempt's place.
    """
    return None if attempt.successor is None else _adopt(context, attempt, attempt.successor)


def is_put_back_by_us(incident: Incident, attempt: AttemptView) -> bool:
    """It went back into the queue because we stopped it so. The answer to that order may have been lost."""
    if attempt.start is None:
        return False
    by = attempt.start.requeued_by
    asked = attempt.name in incident.halt.stopped_attempts and incident.halt.stop_hold
    return by is EndedBy.AGENT or (asked and by is EndedBy.UNKNOWN)


def _adopt(context: RuleContext, attempt: AttemptView, name: str) -> Decision:
    who = _WHO.get(attempt.start.requeued_by if attempt.start else EndedBy.UNKNOWN, context.platform.title)
    if context.policy.shadow:
        return shadow(context, f"continue with {name}, which {who} started in place of {attempt.name}")
    number = context.seen.next_number - 1 if context.seen.current == name else context.seen.next_number
    number = max(number, 1)
    carried = (
        context.incident.resubmission.fruitless_before
        if context.incident.resubmission.tries
        else fruitless_of_job(context)
    )
    incident = _books_closed(context, attempt).changed(fruitless_before=carried)
    theirs = Try(
        number=number,
        name=name,
        clone_of=attempt.name,
        at=context.now,
        resume_step=Unknown("it continues from where its script finds"),
        how=Submission.REQUEUE,
        is_theirs=True,
        left_nodes=lost_one_of(incident, attempt),
    )
    poisoned = incident.loss.onset_attempt == attempt.name
    actions: tuple[AdoptAttempt | Notify | StopJob, ...] = (
        AdoptAttempt(name=name, number=number, clone_of=attempt.name, why=f"{who} put the job back"),
    )
    if context.ordered == "resubmit":
        text = f"{who} has started {name} before the order to resubmit could be carried out: it is not carried out."
        actions = (
            *actions,
            Notify(severity=Severity.WARNING, title=f"{subject(context)}: an order was not taken", text=text),
        )
    tries = (*incident.resubmission.tries, theirs)
    spent = over_budget(
        dataclasses.replace(
            context,
            incident=incident.changed(tries=tries),
        )
    )
    if spent is not None and len(tries) > context.policy.budgets.max_attempts + MAX_CHASED:
        return context.hand_over(
            "adopt.loop_limit", f"{name} is the next of a loop that no stop has caught. {spent.reason}"
        )
    stop = StopJob(attempt=name, why="put back again and again without a gain", hold=True)
    after = context.seen.successor.value if isinstance(context.seen.successor, Known) else None
    is_loop = _is_loop(spent) and not _has_gained(after, incident)
    holds = is_loop and incident.phase is not Phase.RESUBMITTING and not would_hold(context, stop)
    if holds:  # a loop may be faster than our looks: not after the next one, but now
        actions = (*actions, stop)
    fresh = dataclasses.replace(context, incident=incident)
    adopted = fresh.changed(
        tries=tries,
        attempt=name,
        attempt_number=number,
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
    if holds and _is_loop(spent):
        reason = f"{who} puts it back again and again, and it gains nothing: {name} is held. {spent.reason}"
        return adopted.move("adopt.loop", reason, Phase.STOPPING, *actions)
    return adopted.move(
        "adopt.platform_restart",
        f"{story(context)} {who} has put the job back automatically: {name} takes the place of "
        f"{attempt.name} and is watched; "
        f"no other is started.{zombies(context, attempt)}",
        Phase.VERIFYING,
        *actions,
    )


def _is_loop(spent: Decision | None) -> TypeGuard[Decision]:
    """The spent budget is one of attempts without a gain. `max_attempts` bounds our own submissions, whatever they
    gained: it is no reason to stop a start that the platform makes automatically.
    """
    return spent is not None and spent.rule != "budget.attempts"


def _has_gained(after: AttemptView | None, incident: Incident) -> bool:
    """The start that the platform has made is past where the old one ended: it was long unseen, and is no loop."""
    if after is None or after.status.has_ended:
        return False
    return has_passed(after.last_step, incident.target_step)


def _books_closed(context: RuleContext, attempt: AttemptView) -> Incident:
    """The old attempt has ended: how far it came, and whether it gained anything."""
    incident = context.incident
    failure = Failure(
        attempt=attempt.name, signature=failure_signature(attempt.failure_reason), step=died_at(incident, attempt)
    )
    others = tuple(item for item in incident.resubmission.failures if item.attempt != attempt.name)
    incident = marked_bad(incident.changed(failures=(*others, failure)))
    return settle_load(settle_try(incident, attempt, context.seen), attempt)


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


def adopted_trouble(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """VERIFYING a start that the platform made: is it registered, and may it go on?"""
    last = context.incident.resubmission.tries[-1] if context.incident.resubmission.tries else None
    if last is None or not last.is_theirs or last.name != attempt.name or attempt.status.has_ended:
        return None
    lost = result(context, "AdoptAttempt", Done.UNAVAILABLE) is not None
    if lost or (context.seen.current and context.seen.current != attempt.name):
        again = AdoptAttempt(name=last.name, number=last.number, clone_of=last.clone_of, why="not registered yet")
        if result(context, "AdoptAttempt", Done.REFUSED) is not None:
            return context.hand_over(
                "adopt.refused",
                f"{attempt.name} runs, but {context.seen.current} is the Job's newest attempt: two may run",
            )
        return context.stay("adopt.again", f"{attempt.name} is not registered yet; trying again", again)
    if attempt.name in context.incident.halt.stopped_attempts:
        return None
    if last.how is not Submission.REQUEUE:
        return None  # a person has started it, from where they chose
    if context.incident.is_poisoned and (clean := _clean_start(context, attempt)) is not None:
        return context.changed(onset_attempt=last.clone_of).stay("adopt.clean", f"{clean}: it continues")
    if context.incident.is_poisoned:
        if isinstance(attempt.first_step, Unknown) and context.in_state < context.policy.timing.silent_limit:
            reason = f"{last.clone_of} had gone bad, and where {attempt.name} begins is not known yet"
            return context.stay("adopt.unseen", reason)
        reason = f"{attempt.name} continues from what {last.clone_of} left, which had gone bad."
        return roll_back(context, attempt, "adopt.poisoned", reason)
    closed = over_budget(context)
    if _is_loop(closed) and not _has_gained(attempt, context.incident):
        return begin_stop(context, "adopt.loop", f"It is put back again and again and gains nothing: {closed.reason}")
    return None


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


# --- waiting in the queue -------------------------------------------------------------------------------------------


def waiting_in_queue(context: RuleContext, attempt: AttemptView, *, group: str) -> Decision | None:
    """What a pending job waits for: its turn, a person, or nothing that will ever come. None: it is not pending.

    `group` is the phase's own: `verify` for a new attempt, `open` for the one that the Incident is about.
    """
    if attempt.start is None or not attempt.start.is_queued:
        return None
    wait = attempt.start.wait
    waits = Waits.HELD if attempt.start.held else wait.waits
    text = f"{attempt.name} waits in {context.platform.title}'s queue ({wait.word or 'no reason given'}): {wait.text}"
    is_sure = context.in_state >= 2 * context.policy.timing.look_max
    if waits is Waits.HELD and is_sure:
        release = f"`{context.platform.release_command.format(id=attempt.start.handle)}` lets it go"
        return context.hand_over(
            f"{group}.held", f"{text}; the person who holds it decides, {release}", severity=Severity.WARNING
        )
    if waits is Waits.NEVER and is_sure:
        return context.hand_over(f"{group}.pending_for_ever", f"{text}; waiting cannot help")
    limit = context.policy.timing.start_limit if waits is Waits.DOUBTFUL else context.policy.resubmission.capacity_limit
    if context.in_state >= limit:
        return context.hand_over(f"{group}.queue_limit", f"{text}; for {span_word(context.in_state)} now")
    if group == "open" and context.incident.phase in (Phase.OPEN, Phase.WATCHING):
        return context.move("open.queued", f"{text}; nothing of it runs that could be repaired", Phase.HOLDING)
    queued = context.stay(f"{group}.queued", text)
    return dataclasses.replace(queued, look_again_in=context.policy.timing.look_max)  # its start is news that wakes us


def superfluous_exclusion(context: RuleContext, attempt: AttemptView, still_bad: tuple[str, ...]) -> Decision | None:
    """A pending job that excludes a node longer than needed might never start on a full cluster."""
    last = context.incident.resubmission.tries[-1] if context.incident.resubmission.tries else None
    if last is None or last.name != attempt.name or not last.exclude:
        return None
    if attempt.start is None or not attempt.start.is_queued:
        return None
    keep = tuple(node for node in last.exclude if node in still_bad)
    if keep == last.exclude or not isinstance(context.seen.nodes, Known):
        return None
    lifted = [node for node in last.exclude if node not in keep]
    nodes = tuple(node for node in attempt.start.exclude if node not in lifted)
    action = ExcludeNodes(attempt=attempt.name, handle=attempt.start.handle, nodes=nodes, why="cordoned by now")
    tries = (*context.incident.resubmission.tries[:-1], dataclasses.replace(last, exclude=keep))
    reason = f"{', '.join(lifted)}: cordoned or repaired by now, so {attempt.name} need not stay away from it"
    return context.stay("verify.exclusion_lifted", reason, action, tries=tries)


# --- what must not be taken for a fault -----------------------------------------------------------------------------


def suspended(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """A person, or a scheduler that takes turns, has suspended the job: it does not move, and nothing is wrong."""
    if attempt.start is None or attempt.start.state is not StartState.SUSPENDED or context.ordered is not None:
        return None
    by = f"{context.platform.title} (by a person, or for another job)"
    reason = f"{attempt.name} is suspended by {by}: it is not stuck, and is left so"
    if context.in_state >= context.policy.resubmission.capacity_limit:
        return context.hand_over(
            "start.suspended_limit", f"{reason}; for {span_word(context.in_state)} now", severity=Severity.WARNING
        )
    if context.incident.phase in (Phase.OPEN, Phase.WATCHING):
        return context.move("start.suspended", reason, Phase.HOLDING)
    # It stood still for a reason: once it continues, that is counted from then.
    return context.changed(**new_watch()).stay("start.suspended", reason)
