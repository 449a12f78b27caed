"""Before a new attempt: the books on the old one are closed, and the budgets are minded; then it is prepared."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.rule import rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, span_word, story, whole_story
from chalicelib.domain.faults.poison import as_begun, died_at, died_at_most, without_loaded
from chalicelib.domain.model.action import Action, QuarantineCheckpoint, Severity
from chalicelib.domain.model.incident import Incident, Phase, best_step
from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.model.observation import AttemptStatus, AttemptView, Observation
from chalicelib.domain.model.start_view import StartState
from chalicelib.domain.resume.load_failures import Condemned, condemned, settle_load
from chalicelib.domain.resume.resume_point import newest_verified
from chalicelib.domain.resume.rollback import account_rollback, has_skipped_enough
from chalicelib.domain.rules.run.budgets import BUDGET_NAMES, fruitless_of_job, over_budget
from chalicelib.domain.rules.run.queued import capacity_told
from rekindle.protocol.signals import FaultClass


@rule("job.gone")
def job_gone(context: RuleContext) -> Decision | None:
    """The platform no longer knows the old attempt: a person.

    Nothing is left to clone, and nothing proves that it is not running: a second run would cost more than a page.
    """
    if context.attempt is None or context.attempt.status is not AttemptStatus.GONE:
        return None
    return context.hand_over("job.gone", f"the platform no longer knows {context.attempt.name}. {story(context)}")


@rule()
def old_attempt_settled(context: RuleContext) -> RuleContext:
    """What the old attempt gained, and whether it died of its checkpoint, is put on record."""
    attempt = context.attempt
    begun = as_begun(context.incident, attempt) if attempt is not None else context.incident
    incident = settle_load(settle_try(begun, attempt, context.seen), attempt)
    if not context.incident.resubmission.tries:  # what its Incidents before have spent counts on in this one
        spent = max(incident.resubmission.fruitless_before, fruitless_of_job(context))
        incident = incident.changed(fruitless_before=spent)
    if attempt is not None and isinstance(context.seen.checkpoints, Known):
        incident = without_loaded(incident, attempt, context.seen.checkpoints.value)
    return dataclasses.replace(context, incident=incident)


@rule(*BUDGET_NAMES, "budget.skips", "resubmit.goes_on")
def budget_spent(context: RuleContext) -> Decision | RuleContext:
    """A [budget](#budgets) of the policy is spent, or ten times `loss.skip_steps` of data are skipped: a person, unless
    the next link of the run's chain has begun.
    """
    before = context.incident
    incident = account_rollback(before, context.policy).changed(capacity_since=None, capacity_refusals=0)
    context = dataclasses.replace(context, incident=incident)
    spent = over_budget(context)
    if spent is None and incident.loss.skips != before.loss.skips and has_skipped_enough(before, context.policy):
        spent = context.hand_over(
            "budget.skips",
            f"so much data is left out already that leaving out more is for a person to decide. {story(context)} "
            f"{whole_story(before)}",
        )
    if spent is None:
        return context
    spent = goes_on(context) or spent
    # The mark outlives this Incident: the Job's next one, or a person's, must not resume from there again.
    marks = _mark(condemned(incident, context.seen.checkpoints, context.policy))
    return dataclasses.replace(spent, actions=(*marks, *spent.actions))


@rule("resubmit.prepare", "resubmit.back_off")
def resubmit_prepare(context: RuleContext) -> Decision:
    """The new attempt is prepared: at once, or after a back-off where attempts before gained nothing.

    A checkpoint that has killed enough attempts is passed over from now on, and quarantined where that is proven.
    """
    incident, text = context.incident, ""
    bad = condemned(incident, context.seen.checkpoints, context.policy)
    actions = _mark(bad)
    if bad is not None:
        incident = incident.changed(excluded_checkpoints=(*incident.resubmission.excluded_checkpoints, bad.key))
        what = "quarantined" if bad.is_proven else "passed over"
        text = f" {bad.why}: {what}, and the next older one is taken."
        if actions:
            incident = incident.changed(quarantined=(*incident.resubmission.quarantined, bad.key))
        context = dataclasses.replace(context, incident=incident)
    without_gain = incident.resubmission.without_gain
    wait = backoff(context.policy.resubmission.backoff, without_gain - 1) if without_gain else timedelta(0)
    if wait:
        moved = context.move(
            "resubmit.back_off",
            f"{without_gain} attempt(s) are not known to have gained a step; the next one "
            f"starts in {span_word(wait)}.{text}",
            Phase.RESUBMITTING,
            *actions,
            not_before=context.now + wait,
        )
        return dataclasses.replace(moved, look_again_in=wait)  # nothing can be learnt by looking earlier
    return context.move(
        "resubmit.prepare",
        f"{story(context)}{text} Looking for the resume point.",
        Phase.RESUBMITTING,
        *actions,
        not_before=context.now,
        at_once=True,
    )


def goes_on(context: RuleContext) -> Decision | None:
    """The end of the Incident where the next link of the run's chain, which another Job protects, continues it."""
    if not isinstance(context.seen.next_link, Known):
        return None
    link = context.seen.next_link.value
    why = f"{link}, which is protected as a Job of its own, continues in the same mailbox"
    return left_to("resubmit.goes_on", context, why)


def left_to(rule_name: str, context: RuleContext, why: str, *actions: Action) -> Decision:
    """The end of the Incident of a run that another Job continues."""
    reason = f"{why}: nothing is started beside it"
    return context.close(rule_name, reason, Phase.STOPPED, *actions, severity=Severity.WARNING)


BEFORE_ATTEMPT: Final = (job_gone, old_attempt_settled, budget_spent, resubmit_prepare)


def _mark(bad: Condemned | None) -> tuple[QuarantineCheckpoint, ...]:
    if bad is None or bad.root is None or not bad.is_proven:
        return ()
    return (QuarantineCheckpoint(root=bad.root, why=bad.why),)


def back_off_for_capacity(context: RuleContext, text: str) -> Decision:
    """Wait ever longer, until the policy's limit. The Incident names the attempt to clone, not one that never began."""
    incident = context.incident
    since = incident.resubmission.capacity_since or context.now
    if context.now - since >= context.policy.resubmission.capacity_limit:
        return context.hand_over("capacity.limit", f"no capacity for {span_word(context.now - since)}: {text}")
    wait = backoff(context.policy.resubmission.capacity_backoff, incident.resubmission.capacity_refusals)
    context, notices = capacity_told(context, context.now - since, f"no capacity ({text})")
    moved = context.move(
        "capacity.back_off",
        f"no capacity now ({text}); trying again in {span_word(wait)}",
        Phase.RESUBMITTING,
        *notices,
        capacity_since=since,
        capacity_refusals=incident.resubmission.capacity_refusals + 1,
        not_before=context.now + wait,
    )
    return dataclasses.replace(moved, look_again_in=wait)


def settle_try(incident: Incident, attempt: AttemptView | None, seen: Observation) -> Incident:
    """Close the books on the attempt that has just ended: did it gain anything over what there was?"""
    if attempt is None:
        return incident
    ended_at_step = died_at(incident, attempt)
    # The mark to pass is the furthest it may have come; a step is gained only if it is sure to be.
    target = best_step(incident.target_step, died_at_most(incident, attempt))
    if (
        not incident.resubmission.tries
        or incident.resubmission.tries[-1].name != attempt.name
        or incident.resubmission.tries[-1].ended
    ):
        return dataclasses.replace(incident, target_step=target)
    last = incident.resubmission.tries[-1]
    checkpoints = seen.checkpoints
    gained = _gained(ended_at_step, incident.target_step, attempt.first_step, seen.record.began_before)
    if attempt.made_no_step:
        gained = False
    if isinstance(checkpoints, Known) and checkpoints.value and isinstance(last.resume_step, Known):
        has_saved = newest_verified(checkpoints.value, incident, of=attempt.name) > last.resume_step.value
        gained = has_saved and (gained is not False or not last.went_back)
    if not gained and _lost_its_node_first(incident, attempt):
        gained = None
    settled = dataclasses.replace(last, ended=True, last_step=ended_at_step, gained=gained)
    return incident.changed(tries=(*incident.resubmission.tries[:-1], settled), target_step=target)


def _lost_its_node_first(incident: Incident, attempt: AttemptView) -> bool:
    """It was over for lack of a node before its first heartbeat: that says nothing of what the run would have gained,
    and is no try of the budget for attempts that gain nothing.
    """
    if attempt.heartbeat_at is not None or isinstance(attempt.last_step, Known):
        return False
    start = attempt.start
    is_lost = start is not None and (start.state is StartState.LOST_NODE or start.lost_node)
    return is_lost or any(
        signal.attempt == attempt.name and signal.fault is FaultClass.NODE_LOST for signal in incident.signals
    )


def _gained(last: Maybe[int], target: Maybe[int], began: Maybe[int], began_before: Maybe[int]) -> bool | None:
    """By steps, where no checkpoint shows it. None where it is unknown: Unknown is never "no progress".

    An attempt that began where the one before it had begun shows that nothing is kept of what is trained.
    """
    if not isinstance(last, Known) or not isinstance(target, Known):
        return None
    is_repeated = isinstance(began, Known) and isinstance(began_before, Known) and began.value <= began_before.value
    return last.value > target.value and not is_repeated


def backoff(steps: tuple[timedelta, ...], index: int) -> timedelta:
    """The wait at `index`; the last repeats."""
    return steps[min(max(index, 0), len(steps) - 1)]
