"""An attempt has ended: account for it, mind the budgets, then resubmit or hand over."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from itertools import takewhile

from chalicelib.domain.decision.verdict import Decision, RuleContext, span_word, step_word, story, whole_story
from chalicelib.domain.fault_specs.faults import EXPLAINS_NO_END
from chalicelib.domain.faults.diagnosis import failure_signature
from chalicelib.domain.faults.failure_reasons import classify_failure_reason
from chalicelib.domain.faults.loss import marked_bad
from chalicelib.domain.faults.poison import as_begun, died_at, died_at_most, without_loaded
from chalicelib.domain.model.action import QuarantineCheckpoint, Severity
from chalicelib.domain.model.evidence import FORENSIC
from chalicelib.domain.model.incident import Failure, Incident, Phase, best_step
from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.model.observation import FINISHED, AttemptStatus, AttemptView, CheckpointView, Observation
from chalicelib.domain.model.start_view import StartState
from chalicelib.domain.policy.playbooks import Response
from chalicelib.domain.run.earlier_attempts import tries_in_vain
from chalicelib.domain.run.first_response import shadow
from chalicelib.domain.run.load_failures import Condemned, condemned, settle_load
from chalicelib.domain.run.rollback import account_rollback, has_skipped_enough
from rekindle.protocol.signals import FaultClass


def attempt_died(context: RuleContext, attempt: AttemptView) -> Decision:
    """The attempt under care has ended without an action of ours."""
    incident = context.incident
    if incident.fault in EXPLAINS_NO_END:
        incident = dataclasses.replace(incident, fault=FaultClass.SOFTWARE_CRASH, fault_rule=f"ended.{incident.fault}")
    untouched = left_alone(context, attempt) or _had_finished(context, attempt)
    if untouched is not None:
        return untouched
    row = context.policy.playbook(incident.fault)
    failure = Failure(
        attempt=attempt.name,
        signature=failure_signature(attempt.failure_reason),
        step=died_at(incident, attempt),
    )
    known_before = [item for item in incident.resubmission.failures if item.attempt != attempt.name]
    incident = _died_bad(incident.changed(failures=(*known_before, failure)))
    context = dataclasses.replace(context, incident=incident)
    if row.response in (Response.HAND_OVER, Response.CHECKPOINT_THEN_HAND_OVER):
        return context.hand_over("playbook.hand_over", story(context))
    if row.response is Response.TELL:
        return context.hand_over("playbook.notified_dead", f"{story(context)} The playbook says: tell.")
    if context.policy.shadow:
        return shadow(context, f"resubmit {attempt.name}")
    verdict = classify_failure_reason(attempt.failure_reason)
    if verdict.person_needed:
        return context.hand_over(
            "crash.person_needed",
            f"{attempt.name} failed in a way that a resubmission cannot fix: {attempt.failure_reason[:300]}",
        )
    twin = _same_failure_before(known_before, failure)
    if twin is not None and incident.fault is FaultClass.SOFTWARE_CRASH:
        return context.hand_over(
            "crash.same_again",
            f"{attempt.name} and {twin.attempt} ended alike at step {step_word(failure.step)}: "
            f"{failure.signature[:200]!r}. Trying again cannot help; the owner is notified.",
        )
    if verdict.rule == "capacity" and not isinstance(attempt.last_step, Known):
        return _no_room(context, attempt)
    return prepare_resubmit(context)


def _had_finished(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """Its own heartbeat reports the end of training: what failed came after, and training again would not fix it."""
    if attempt.work != FINISHED or attempt.status is not AttemptStatus.FAILED or context.incident.is_poisoned:
        return None
    return context.hand_over(
        "ended.finished",
        f"{attempt.name} had finished its training at step {step_word(attempt.last_step)}, and failed afterwards: "
        f"{attempt.failure_reason[:300] or 'no reason given'}. It is not trained again",
        severity=Severity.WARNING,
    )


def left_alone(context: RuleContext, attempt: AttemptView) -> Decision | None:
    """Ends that are not undone: a sibling of a federation runs instead, or the job's own deadline has passed."""
    if attempt.start is None:
        return None
    if attempt.start.state is StartState.WITHDRAWN:
        reason = f"{attempt.name} was revoked: another cluster of the federation runs it"
        return context.close("start.revoked", reason, Phase.STOPPED, severity=Severity.INFO)
    if attempt.start.state is StartState.PAST_DEADLINE:
        return context.hand_over(
            "start.deadline", f"{attempt.name} was ended at its own deadline (--deadline), which is past"
        )
    return None


def _died_bad(incident: Incident) -> Incident:
    """It died while its loss was bad: what it saved meanwhile is not resumed from, whatever it died of."""
    return incident.changed(stretches=marked_bad(incident).loss.stretches)


def _same_failure_before(before: list[Failure], failure: Failure) -> Failure | None:
    """An earlier failure with the same signature at the same known step. An unknown step is never "the same"."""
    if not isinstance(failure.step, Known) or not failure.signature:
        return None
    return next((item for item in before if item.signature == failure.signature and item.step == failure.step), None)


def _no_room(context: RuleContext, attempt: AttemptView) -> Decision:
    """Accepted by the platform, then failed for lack of capacity before it ran: waited for like a refusal."""
    incident = settle_try(context.incident, attempt, context.seen)
    if incident.resubmission.tries and incident.resubmission.tries[-1].name == attempt.name:
        settled = dataclasses.replace(incident.resubmission.tries[-1], no_room=True, gained=None)
        incident = incident.changed(tries=(*incident.resubmission.tries[:-1], settled))
    return back_off_for_capacity(dataclasses.replace(context, incident=incident), attempt.failure_reason[:200])


def back_off_for_capacity(context: RuleContext, text: str) -> Decision:
    """Wait ever longer, until the policy's limit. The Incident names the attempt to clone, not one that never began."""
    incident = context.incident
    since = incident.resubmission.capacity_since or context.now
    if context.now - since >= context.policy.resubmission.capacity_limit:
        return context.hand_over("capacity.limit", f"no capacity for {span_word(context.now - since)}: {text}")
    wait = backoff(context.policy.resubmission.capacity_backoff, incident.resubmission.capacity_refusals)
    moved = context.move(
        "capacity.back_off",
        f"no capacity now ({text}); trying again in {span_word(wait)}",
        Phase.RESUBMITTING,
        capacity_since=since,
        capacity_refusals=incident.resubmission.capacity_refusals + 1,
        not_before=context.now + wait,
    )
    return dataclasses.replace(moved, look_again_in=wait)


def prepare_resubmit(context: RuleContext) -> Decision:
    """Budgets and back-off; then the resubmission itself on the look after."""
    if context.attempt is not None and context.attempt.status is AttemptStatus.GONE:
        # Nothing is left to clone, and nothing proves that it is not running: a second run would cost more than a page.
        return context.hand_over("job.gone", f"the platform no longer knows {context.attempt.name}. {story(context)}")
    begun = as_begun(context.incident, context.attempt) if context.attempt is not None else context.incident
    incident = settle_load(settle_try(begun, context.attempt, context.seen), context.attempt)
    if not context.incident.resubmission.tries:  # what its Incidents before have spent counts on in this one
        spent = max(incident.resubmission.fruitless_before, fruitless_of_job(context))
        incident = incident.changed(fruitless_before=spent)
    if context.attempt is not None and isinstance(context.seen.checkpoints, Known):
        incident = without_loaded(incident, context.attempt, context.seen.checkpoints.value)
    before = incident
    incident = account_rollback(incident, context.policy)
    incident = incident.changed(capacity_since=None, capacity_refusals=0)
    context = dataclasses.replace(context, incident=incident)
    bad = condemned(incident, context.seen.checkpoints, context.policy)
    verdict = over_budget(context)
    if verdict is None and incident.loss.skips != before.loss.skips and has_skipped_enough(before, context.policy):
        verdict = context.hand_over(
            "budget.skips",
            f"so much data is left out already that leaving out more is for a person to decide. {story(context)} "
            f"{whole_story(before)}",
        )
    if verdict is None:
        return _prepared(context, incident, bad)
    # The mark outlives this Incident: the Job's next one, or a person's, must not resume from there again.
    return dataclasses.replace(verdict, actions=(*_mark(bad), *verdict.actions))


def _mark(bad: Condemned | None) -> tuple[QuarantineCheckpoint, ...]:
    if bad is None or bad.root is None or not bad.is_proven:
        return ()
    return (QuarantineCheckpoint(root=bad.root, why=bad.why),)


def _prepared(context: RuleContext, incident: Incident, bad: Condemned | None) -> Decision:
    actions = _mark(bad)
    text = ""
    if bad is not None:
        incident = incident.changed(excluded_checkpoints=(*incident.resubmission.excluded_checkpoints, bad.key))
        what = "quarantined" if bad.is_proven else "passed over"
        text = f" {bad.why}: {what}, and the next older one is taken."
        if actions:
            incident = incident.changed(quarantined=(*incident.resubmission.quarantined, bad.key))
        context = dataclasses.replace(context, incident=incident)
    wait = (
        backoff(context.policy.resubmission.backoff, incident.resubmission.without_gain - 1)
        if incident.resubmission.without_gain
        else timedelta(0)
    )
    not_before = context.now + wait
    if wait:
        moved = context.move(
            "resubmit.back_off",
            f"{incident.resubmission.without_gain} attempt(s) are not known to have gained a step; the next one "
            f"starts in {span_word(wait)}.{text}",
            Phase.RESUBMITTING,
            *actions,
            not_before=not_before,
        )
        return dataclasses.replace(moved, look_again_in=wait)  # nothing can be learnt by looking earlier
    return context.move(
        "resubmit.prepare",
        f"{story(context)}{text} Looking for the resume point.",
        Phase.RESUBMITTING,
        *actions,
        not_before=not_before,
        at_once=True,
    )


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
    gained = _gained(ended_at_step, incident.target_step, attempt.first_step, seen.began_before)
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
    return is_lost or any(one.attempt == attempt.name and one.fault is FaultClass.NODE_LOST for one in incident.signals)


def newest_verified(checkpoints: tuple[CheckpointView, ...], incident: Incident, *, of: str | None = None) -> int:
    """The step of the newest checkpoint that may be resumed from, of one attempt or of any; -1 where there is none."""
    onset = incident.loss.onset_step
    return max(
        (
            item.step
            for item in checkpoints
            if of in (None, item.attempt)
            and not item.problems
            and not item.fenced
            and item.kind != FORENSIC
            and not any(one.holds(item.attempt, item.step) for one in incident.loss.stretches)
            and not (
                item.attempt == incident.loss.onset_attempt and isinstance(onset, Known) and item.step >= onset.value
            )
        ),
        default=-1,
    )


def _gained(last: Maybe[int], target: Maybe[int], began: Maybe[int], began_before: Maybe[int]) -> bool | None:
    """By steps, where no checkpoint shows it. None where it is unknown: Unknown is never "no progress".

    An attempt that began where the one before it had begun shows that nothing is kept of what is trained.
    """
    if not isinstance(last, Known) or not isinstance(target, Known):
        return None
    is_repeated = isinstance(began, Known) and isinstance(began_before, Known) and began.value <= began_before.value
    return last.value > target.value and not is_repeated


def over_budget(context: RuleContext) -> Decision | None:
    """The hand-over that is due once the policy's budgets are spent; None while they are not."""
    incident, policy = context.incident, context.policy
    if incident.loss.rollbacks > policy.budgets.max_rollbacks:
        return context.hand_over(
            "budget.rollbacks",
            f"{incident.loss.rollbacks - 1} rollbacks did not cure it. {story(context)} {whole_story(incident)}",
        )
    tries = policy.playbook(incident.fault).tries
    limit = policy.budgets.max_no_progress if tries is None else min(tries, policy.budgets.max_no_progress)
    fruitless = max(tries_in_vain(incident), fruitless_of_job(context))
    if fruitless >= limit:  # a try that gained a step renews the budget
        return context.hand_over(
            "budget.no_progress",
            f"{fruitless} attempt(s) in a row gained no step past {step_word(incident.target_step)}. "
            f"{story(context)} {whole_story(incident)}",
        )
    if (deaths := _deaths_beyond_their_own_limit(context)) is not None:
        return context.hand_over(
            "budget.no_progress",
            f"{deaths} attempts in a row ended alike, which is worth fewer tries. {story(context)} "
            f"{whole_story(incident)}",
        )
    ran = sum(not item.no_room for item in incident.resubmission.tries)
    if ran >= policy.budgets.max_attempts:
        return context.hand_over(
            "budget.attempts",
            f"{ran} resubmissions in one Incident are the policy's limit. {story(context)} {whole_story(incident)}",
        )
    return None


def _deaths_beyond_their_own_limit(context: RuleContext) -> int | None:
    """How many attempts in a row ended as the newest one has, once its failure's own row allows no further try; None
    while it does. What the Incident is about by then may be another fault, with more tries.
    """
    incident, attempt = context.incident, context.attempt
    failures = incident.resubmission.failures
    if attempt is None or incident.order is not None or not failures or failures[-1].attempt != attempt.name:
        return None
    fault = classify_failure_reason(attempt.failure_reason).fault
    tries = context.policy.playbook(fault).tries
    if tries is None or fault is incident.fault or not failures[-1].signature:
        return None
    gained = {item.name for item in incident.resubmission.tries if item.gained}
    alike = takewhile(lambda one: one.signature == failures[-1].signature and one.attempt not in gained, failures[::-1])
    deaths = sum(1 for _ in alike)
    return deaths if deaths > tries else None


def fruitless_of_job(context: RuleContext) -> int:
    """Attempts of the Job, across Incidents, that ended without passing what had been reached; Unknown counts none."""
    if context.incident.resubmission.tries or context.incident.order is not None or context.attempt is None:
        return 0  # this Incident's own tries are counted by themselves
    reached = died_at_most(context.incident, context.attempt)
    best = context.seen.best_before
    by_steps = 0
    if isinstance(reached, Known) and isinstance(best, Known) and reached.value <= best.value:
        by_steps = context.seen.fruitless_before + 1
    return max(by_steps, _without_a_checkpoint(context))


def _without_a_checkpoint(context: RuleContext) -> int:
    """The Job's newest attempts in a row that resumed where the next one would: none of them has saved anything new.

    A step more each time is no progress that lasts, and must not renew the budget in every new Incident. Neither is
    what a trainer saves that begins at the same step each time, whatever its resume plan.
    """
    checkpoints = context.seen.checkpoints
    newest = newest_verified(checkpoints.value, context.incident) if isinstance(checkpoints, Known) else -1
    if newest < 0:  # there is none, and what each attempt began at shows whether anything was kept elsewhere
        return context.seen.began_again if isinstance(checkpoints, Known) and not checkpoints.value else 0
    count = 0
    for step in reversed(context.seen.resumed_at):
        if step is None or step < newest:
            break
        count += 1
    from_the_start = 0 if _saved_further(context) else context.seen.began_again
    return max(count, _since_its_writer(context, newest), from_the_start)


def _saved_further(context: RuleContext) -> bool:
    """The attempt has saved a step that none before it had: where it began, there may have been nothing to load."""
    found = context.seen.checkpoints.value if isinstance(context.seen.checkpoints, Known) else ()
    name = context.attempt.name if context.attempt is not None else None
    own = max((one.step for one in found if not one.problems and one.attempt == name), default=-1)
    others = max((one.step for one in found if not one.problems and one.attempt != name), default=-1)
    return own > others


def _since_its_writer(context: RuleContext, newest: int) -> int:
    """Attempts of ours since the one that saved the newest checkpoint, whatever they resumed from."""
    found = context.seen.checkpoints.value if isinstance(context.seen.checkpoints, Known) else ()
    writers = {one.attempt for one in found if one.step == newest and not one.problems}
    ran = context.seen.ran
    last = max((index for index, name in enumerate(ran) if name in writers or index == 0), default=0)
    return len(ran) - 1 - last if ran else 0


def backoff(steps: tuple[timedelta, ...], index: int) -> timedelta:
    """The wait at `index`; the last repeats."""
    return steps[min(max(index, 0), len(steps) - 1)]
