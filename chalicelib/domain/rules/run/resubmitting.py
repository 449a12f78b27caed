"""Resubmitting: one new attempt, under one name, however often the order has to be sent."""

from __future__ import annotations

import dataclasses

from chalicelib.domain.claims.movement import new_watch
from chalicelib.domain.decision.verdict import Decision, RuleContext, detail, result, story, why_unknown
from chalicelib.domain.model.action import AdoptAttempt, Done, QuarantineCheckpoint, ResubmitJob, Severity, StopJob
from chalicelib.domain.model.incident import Incident, Phase, Try
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.start_view import Submission
from chalicelib.domain.rules.run.ended import back_off_for_capacity, fruitless_of_job, over_budget
from chalicelib.domain.rules.run.starts import left_behind, old_unseen, requeue_refused, resend_order, way_to_start
from chalicelib.domain.run.resume_point import choose_resume_point, left_in_doubt

# Each name asked for is taken by somebody else's job: that is no chance, and asking on would go on for ever.
MAX_TAKEN_NAMES = 5


def decide_resubmitting(context: RuleContext) -> Decision:
    """RESUBMITTING."""
    incident = context.incident
    if incident.resubmission.pending is not None and _has_started(context, incident.resubmission.pending):
        fresh = context.changed(
            seen_as="", seen_since=None, needs=(), needs_since=None, evidence_since=None, **new_watch()
        )
        begun = fresh.move(
            "resubmit.started",
            f"{incident.attempt} is submitted",
            Phase.VERIFYING,
            *left_behind(incident.resubmission.pending),
        )
        return dataclasses.replace(begun, look_again_in=context.policy.timing.look_max)  # it has to start first
    answered = _sibling_lives(context) or _refusals(context)
    if answered is not None:
        return answered
    is_taken = result(context, "ResubmitJob", Done.NAME_TAKEN) is not None
    if (
        incident.resubmission.pending is not None
        and incident.resubmission.pending.how is not Submission.CLONE
        and not is_taken
    ):
        return resend_order(context, incident.resubmission.pending)
    if is_taken:
        context = dataclasses.replace(
            context, incident=undo_try(incident).changed(name_salt=incident.resubmission.name_salt + 1)
        )
        if context.incident.resubmission.name_salt > MAX_TAKEN_NAMES:
            return context.hand_over("resubmit.names_taken", f"{MAX_TAKEN_NAMES} names in a row belong to other jobs")
        return _resubmit(context)
    if incident.resubmission.not_before is not None and context.now < incident.resubmission.not_before:
        # The whole back-off in one wait: nothing can be learnt by looking earlier, and a wake still cuts it short.
        return dataclasses.replace(
            context.stay("resubmit.waiting", f"backing off until {incident.resubmission.not_before:%H:%M:%S}"),
            look_again_in=incident.resubmission.not_before - context.now,
        )
    return _resubmit(context)


def _has_started(context: RuleContext, pending: Try) -> bool:
    """Its submission was answered, or the registry holds it: only our own act puts it there.

    That a job of this name exists proves nothing. It may be another user's; and ours is not protected before the
    registry knows it, so the order is sent again until it does.
    """
    if result(context, "ResubmitJob", Done.DONE, Done.ALREADY) is not None:
        return True
    return context.seen.next_number > pending.number


def _sibling_lives(context: RuleContext) -> Decision | None:
    """The run was started by hand: that attempt is watched, and no other is made."""
    found = result(context, "ResubmitJob", Done.SIBLING)
    if found is not None:
        ours = _ordered_before(context, besides=found.attempt)
        context = dataclasses.replace(context, incident=undo_try(context.incident))
        if not found.attempt:
            reason = f"{found.detail}: nothing is started beside it"
            return context.close("resubmit.goes_on", reason, Phase.STOPPED, *ours, severity=Severity.WARNING)
        adopted = adopt_sibling(context, found.attempt)
        return dataclasses.replace(adopted, actions=(*adopted.actions, *ours))
    if context.incident.resubmission.pending is None and isinstance(context.seen.sibling, Known):
        return adopt_sibling(context, context.seen.sibling.value)
    return None


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


def _refusals(context: RuleContext) -> Decision | None:
    incident = context.incident
    refused = result(context, "ResubmitJob", Done.REFUSED)
    if (
        refused is not None
        and incident.resubmission.pending is not None
        and incident.resubmission.pending.how is Submission.REQUEUE
    ):
        return requeue_refused(dataclasses.replace(context, incident=undo_try(incident)), refused.detail)
    if refused is not None:
        context = dataclasses.replace(context, incident=undo_try(incident))
        return context.hand_over("resubmit.refused", f"the platform refused the new attempt: {refused.detail}")
    if result(context, "ResubmitJob", Done.UNAVAILABLE) is not None:
        since = incident.resubmission.pending.at if incident.resubmission.pending else incident.phase_entered_at
        reason = (
            f"the platform cannot be reached ({detail(context)}); trying again. Whether {incident.attempt} was started"
        )
        return context.unread(
            "resubmit.unavailable", "resubmit.unavailable_limit", f"{reason} is not known", context.now - since
        )
    if result(context, "ResubmitJob", Done.CAPACITY) is not None:
        return back_off_for_capacity(dataclasses.replace(context, incident=undo_try(incident)), detail(context))
    return None


def undo_try(incident: Incident) -> Incident:
    """The try on record never started: forget it, so that budgets count real attempts only."""
    undone = incident.resubmission.pending
    if undone is None:
        return incident
    return incident.changed(
        tries=incident.resubmission.tries[:-1], attempt=undone.clone_of, attempt_number=undone.number - 1
    )


def _resubmit(context: RuleContext) -> Decision:
    # A try that is recorded, but neither started nor refused: the act crashed, before or after its call took effect.
    # The same order under the same name is sent again. A new name here would be a second run.
    resent = context.incident.resubmission.pending
    incident = undo_try(context.incident)
    context = dataclasses.replace(context, incident=incident)
    old = context.attempt
    if old is not None and old.name == incident.attempt and not old.status.has_ended:
        return context.changed(**new_watch()).move(
            "resubmit.old_lives",
            f"{old.name} is {old.status} after all: a second copy must not start",
            Phase.VERIFYING,
        )
    unseen = old_unseen(context)
    if unseen is not None:
        return unseen
    checkpoints = context.seen.checkpoints
    if not isinstance(checkpoints, Known):
        return _checkpoints_unseen(context, resent)
    if resent is None and not incident.resubmission.tries and incident.order is None:
        # What the attempts before have gained could not be told while the checkpoints were unread.
        context = context.changed(
            fruitless_before=max(incident.resubmission.fruitless_before, fruitless_of_job(context))
        )
        incident = context.incident
        verdict = over_budget(context)
        if verdict is not None:
            return verdict
    if not checkpoints.value and context.seen.had_checkpoints and not _is_fresh_order(incident):
        return context.hand_over(
            "resume.gone",
            f"{story(context)} There were checkpoints, and none is found any more: it would begin at step 0. What "
            "has become of them, and whether to begin again, is for a person to decide; an order to resubmit begins "
            "again",
        )
    point = choose_resume_point(checkpoints.value, incident, context.policy)
    if point is None and not checkpoints.value:
        return context.hand_over(
            "resume.no_manifest",
            f"{story(context)} No checkpoint manifest exists, so nothing tells from before which "
            "step the trainer's own newest checkpoint is; what to resume from is for a person to choose",
        )
    if point is None:
        return context.hand_over(
            "resume.none_fit",
            f"{len(checkpoints.value)} checkpoint(s) exist, but none is verified and allowed for "
            f"{incident.fault}; what to resume from is for a person to choose",
        )
    doubtful = left_in_doubt(checkpoints.value, incident) if resent is None else None
    if doubtful is not None:
        return context.hand_over(
            "resume.in_doubt",
            f"{story(context)} An earlier Incident left {incident.attempt} with a bad loss, and "
            "nothing tells whether it "
            f"healed: its newest checkpoint is of step {doubtful}, the newest from before that loss is "
            f"{point.text}. Which of them to take is for a person to choose; an order to resubmit takes the older",
        )
    number = resent.number if resent else max(context.seen.next_number, incident.attempt_number + 1)
    way = way_to_start(context, number, point, checkpoints.value)
    if isinstance(way, Decision):
        return way
    name = resent.name if resent else way.name
    clone_of = incident.attempt or ""
    action = ResubmitJob(
        clone_of=clone_of,
        number=number,
        name=name,
        resume_step=point.step,
        resume_root=point.root,
        resume_manifest=point.manifest,
        skips=incident.loss.skips,
        why=f"{incident.fault}: {point.rule}",
        goes_back=point.goes_back,
        how=way.how,
        exclude=way.exclude,
    )
    attempt = Try(
        number=number,
        name=name,
        clone_of=clone_of,
        at=resent.at if resent else context.now,
        resume_step=point.step,
        resume_manifest=point.key,
        resume_root=point.root,
        went_back=point.goes_back,
        how=way.how,
        exclude=way.exclude,
        leaves=way.leaves,
        left_nodes=way.left_nodes,
    )
    skipping = "".join(f" Skipping the data of steps {w.from_step}-{w.to_step - 1}." for w in incident.loss.skips)
    return context.move(
        "resubmit.now",
        f"{name} resumes {point.text}.{skipping}{way.text}",
        Phase.RESUBMITTING,
        *_quarantine_again(context),
        action,
        at_once=True,
        tries=(*_by_what_they_left(incident.resubmission.tries, attempt), attempt),
        attempt=name,
        attempt_number=number,
        not_before=None,
    )


def _by_what_they_left(tries: tuple[Try, ...], following: Try) -> tuple[Try, ...]:
    """A step further on is no gain where the next start resumes no further on: nothing was saved that it could use."""
    last = tries[-1] if tries else None
    if last is None or not last.gained or following.went_back:
        return tries
    kept, before = following.resume_step, last.resume_step
    if not isinstance(kept, Known) or not isinstance(before, Known) or kept.value > before.value:
        return tries
    return (*tries[:-1], dataclasses.replace(last, gained=False))


def _is_fresh_order(incident: Incident) -> bool:
    return incident.order is not None and not incident.resubmission.tries


def _quarantine_again(context: RuleContext) -> tuple[QuarantineCheckpoint, ...]:
    """The mark could not be written. It is tried once more; this Incident does not resume from there in any case."""
    if result(context, "QuarantineCheckpoint", Done.UNAVAILABLE) is None:
        return ()
    bad = next(
        (item for item in reversed(context.incident.resubmission.tries) if item.died_at_load and item.resume_root), None
    )
    if bad is None or bad.resume_root is None:
        return ()
    return (QuarantineCheckpoint(root=bad.resume_root, why=f"{bad.name} died on it before it had made a step"),)


def _checkpoints_unseen(context: RuleContext, resent: Try | None) -> Decision:
    reason = f"the checkpoints cannot be read: {why_unknown(context.seen.checkpoints)}"
    # `not_before` is when the last back-off ended: waiting for capacity is no failure to read.
    since = resent.at if resent else context.incident.resubmission.not_before or context.incident.phase_entered_at
    if resent is not None:  # it stays on record: under this name it may have started
        context = dataclasses.replace(
            context,
            incident=context.incident.changed(
                tries=(*context.incident.resubmission.tries, resent), attempt=resent.name, attempt_number=resent.number
            ),
        )
    return context.unread(
        "resume.unseen",
        "resume.unseen_limit",
        f"{reason}; starting from step 0 is for a person to choose",
        context.now - since,
    )
