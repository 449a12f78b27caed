"""Resubmitting: one new attempt, under one name, however often the order has to be sent."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import decided_by, rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, detail, result, story, why_unknown
from chalicelib.domain.model.action import AdoptAttempt, Done, Severity, StopJob
from chalicelib.domain.model.incident import Phase, Try
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import NO_SIBLING
from chalicelib.domain.model.start_view import Submission
from chalicelib.domain.rules.run.new_attempt import NEW_ATTEMPT
from chalicelib.domain.rules.run.preparing import back_off_for_capacity, goes_on, left_to
from chalicelib.domain.rules.run.starts import (
    left_behind,
    requeue_refused,
    resend_order,
    undo_try,
)
from chalicelib.domain.run.movement import new_watch
from rekindle.protocol.cluster.queue_place import losses_text

# So many names in a row are taken by others' jobs: no coincidence, and another try would find the next one taken.
MAX_TAKEN_NAMES = 5
LINK_AWAITED: Final = timedelta(minutes=5)  # a queue looks at dependencies once a minute, and is read as often


@rule("resubmit.started")
def resubmit_started(context: RuleContext) -> Decision | None:
    """The new attempt is submitted: it is verified from here on.

    Its submission was answered, or the registry holds it: only our own act puts it there. That a job of this name
    exists proves nothing. It may be another user's; and ours is not protected before the registry knows it, so the
    order is sent again until it does.
    """
    pending = context.incident.resubmission.pending
    if pending is None:
        return None
    answered = result(context, "ResubmitJob", Done.DONE, Done.ALREADY)
    if answered is None and context.seen.next_number <= pending.number:
        return None
    fresh = context.changed(seen_as="", seen_since=None, needs=(), needs_since=None, evidence_since=None, **new_watch())
    lost = losses_text(answered.queue_losses) if answered is not None else ""
    reason = f"{context.incident.attempt} is submitted{f'; {lost}' if lost else ''}"
    begun = fresh.move("resubmit.started", reason, Phase.VERIFYING, *left_behind(pending))
    return dataclasses.replace(begun, look_again_in=context.policy.timing.look_max)  # it has to start first


@rule("resubmit.sibling", "resubmit.goes_on")
def resubmit_sibling(context: RuleContext) -> Decision | None:
    """The run was started by hand: that attempt is watched, or left to the Job that protects it; no other is made."""
    found = result(context, "ResubmitJob", Done.SIBLING)
    if found is not None:
        ours = _ordered_before(context, besides=found.attempt)
        context = dataclasses.replace(context, incident=undo_try(context.incident))
        if not found.attempt:
            return left_to("resubmit.goes_on", context, found.detail, *ours)
        adopted = adopt_sibling(context, found.attempt)
        return dataclasses.replace(adopted, actions=(*adopted.actions, *ours))
    if context.incident.resubmission.pending is None and isinstance(context.seen.sibling, Known):
        return adopt_sibling(context, context.seen.sibling.value)
    return None


@rule("resubmit.goes_on", "resubmit.link_awaited")
def resubmit_next_link(context: RuleContext) -> Decision | None:
    """The next link of the run's chain continues it: left to the Job that protects it. While the old attempt has just
    ended, and whether a link begins is not known: wait.
    """
    link, old = context.seen.next_link, context.attempt
    if link == NO_SIBLING or context.incident.resubmission.pending is not None:
        return None
    if isinstance(link, Known):
        return goes_on(context)
    if old is None or old.ended_at is None or context.now - old.ended_at >= LINK_AWAITED:
        return None
    return context.stay("resubmit.link_awaited", why_unknown(link))


@rule("resubmit.held")
def resubmit_held(context: RuleContext) -> Decision | None:
    """A person holds the run in the platform's queue: a person, and nothing is started beside it."""
    held = result(context, "ResubmitJob", Done.HELD)
    if held is None:
        return None
    context = dataclasses.replace(context, incident=undo_try(context.incident))
    return context.hand_over("resubmit.held", held.detail, severity=Severity.WARNING)


@rule("resubmit.requeue_refused", "resubmit.refused")
def resubmit_refused(context: RuleContext) -> Decision | None:
    """The platform refuses the new attempt: a person. Where it refuses a requeue, another way is tried first."""
    refused, pending = result(context, "ResubmitJob", Done.REFUSED), context.incident.resubmission.pending
    if refused is None:
        return None
    context = dataclasses.replace(context, incident=undo_try(context.incident))
    if pending is not None and pending.how is Submission.REQUEUE:
        return requeue_refused(context, refused.detail)
    return context.hand_over("resubmit.refused", f"the platform refused the new attempt: {refused.detail}")


@rule("resubmit.unavailable", "resubmit.unavailable_limit")
def resubmit_unavailable(context: RuleContext) -> Decision | None:
    """The platform cannot be reached: tried again; paged at `timing.stop_limit_s`, a person at the capacity limit."""
    incident = context.incident
    if result(context, "ResubmitJob", Done.UNAVAILABLE) is None:
        return None
    since = incident.resubmission.pending.at if incident.resubmission.pending else incident.phase_entered_at
    reason = f"the platform cannot be reached ({detail(context)}); trying again. Whether {incident.attempt} was started"
    return context.unread(
        "resubmit.unavailable", "resubmit.unavailable_limit", f"{reason} is not known", context.now - since
    )


@rule("capacity.back_off", "capacity.limit")
def resubmit_no_capacity(context: RuleContext) -> Decision | None:
    """The platform has no capacity: tried again ever later; a person at `resubmission.capacity_limit_s`."""
    if result(context, "ResubmitJob", Done.CAPACITY) is None:
        return None
    return back_off_for_capacity(dataclasses.replace(context, incident=undo_try(context.incident)), detail(context))


@rule("resubmit.checking")
def resubmit_checking(context: RuleContext) -> Decision | None:
    """The nodes that it died on are checked first; at `nodes.deep_health_check_s` it starts whatever the check says."""
    if result(context, "ResubmitJob", Done.CHECKING) is None:
        return None
    waits = dataclasses.replace(context, incident=undo_try(context.incident))
    waits = waits.changed(
        capacity_since=context.incident.resubmission.capacity_since or context.now,
        not_before=context.now + context.policy.timing.look_max,
    )
    return waits.stay("resubmit.checking", f"it starts when its hardware is checked: {detail(context)}")


@rule("resubmit.again", "resubmit.unanswered")
def resubmit_again(context: RuleContext) -> Decision | None:
    """An agent has not answered: the same order again; after `timing.stop_limit_s` a person, as the order expires."""
    pending = context.incident.resubmission.pending
    if pending is None or pending.how is Submission.CLONE or _is_name_taken(context):
        return None
    return resend_order(context, pending)


@rule("resubmit.names_taken")
def resubmit_names_taken(context: RuleContext) -> Decision | RuleContext | None:
    """Its name is another job's: another name is tried, five at most; then a person."""
    if not _is_name_taken(context):
        return None
    incident = undo_try(context.incident)
    context = dataclasses.replace(context, incident=incident.changed(name_salt=incident.resubmission.name_salt + 1))
    if context.incident.resubmission.name_salt <= MAX_TAKEN_NAMES:
        return context
    return context.hand_over("resubmit.names_taken", f"{MAX_TAKEN_NAMES} names in a row belong to other jobs")


@rule("resubmit.waiting")
def resubmit_waiting(context: RuleContext) -> Decision | None:
    """A back-off is not over yet: wait."""
    not_before = context.incident.resubmission.not_before
    if not_before is None or context.now >= not_before or _is_name_taken(context):
        return None
    # The whole back-off in one wait: nothing can be learnt by looking earlier, and a wake still cuts it short.
    waiting = context.stay("resubmit.waiting", f"backing off until {not_before:%H:%M:%S}")
    return dataclasses.replace(waiting, look_again_in=not_before - context.now)


@rule()
def resubmit_submitted(context: RuleContext) -> Decision:
    """What is left: [a new attempt](#a-new-attempt).

    A try that is recorded, but neither started nor refused: the act crashed, before or after its call took effect. The
    same order under the same name is sent again. A new name here would be a second run.
    """
    incident = context.incident
    undone = dataclasses.replace(context, incident=undo_try(incident))
    return decided_by(NEW_ATTEMPT, undone, incident.resubmission.pending)


RESUBMITTING: Final = (
    resubmit_started,
    resubmit_sibling,
    resubmit_next_link,
    resubmit_held,
    resubmit_refused,
    resubmit_unavailable,
    resubmit_checking,
    resubmit_no_capacity,
    resubmit_again,
    resubmit_names_taken,
    resubmit_waiting,
    resubmit_submitted,
)


def _is_name_taken(context: RuleContext) -> bool:
    return result(context, "ResubmitJob", Done.NAME_TAKEN) is not None


def _ordered_before(context: RuleContext, *, besides: str | None) -> tuple[StopJob, ...]:
    """The end of our own start, where its order was sent at an earlier observation: it may have been carried out, or
    be carried out yet, and wait in the queue.
    """
    pending = context.incident.resubmission.pending
    if pending is None or pending.at >= context.now or pending.name == besides:
        return ()
    return (StopJob(attempt=pending.name, why="the run was started by hand"),)


def adopt_sibling(context: RuleContext, name: str) -> Decision:
    """Take `name`, an attempt that others have submitted, for the new attempt, and verify it.

    It is recorded as theirs: what it resumes from was their choice, and it is not stopped for that.
    """
    incident = context.incident
    number = max(context.seen.next_number, incident.attempt_number + 1)
    if context.seen.current == name:
        number = context.seen.next_number - 1
    theirs = Try(
        number=number,
        name=name,
        clone_of=incident.attempt or "",
        at=context.now,
        resume_step=Unknown("it was submitted by hand"),
        is_theirs=True,
    )
    old = incident.attempt
    return context.changed(
        tries=(*incident.resubmission.tries, theirs),
        attempt=name,
        attempt_number=number,
        seen_as="",
        seen_since=None,
        not_before=None,
        capacity_since=None,
        needs=(),
        needs_since=None,
        evidence_since=None,
        **new_watch(),
    ).move(
        "resubmit.sibling",
        f"{story(context)} {name} was submitted by hand in place of {old}: it is watched, and no other is started.",
        Phase.VERIFYING,
        AdoptAttempt(name=name, number=number, clone_of=old or "", why="submitted by hand"),
    )
