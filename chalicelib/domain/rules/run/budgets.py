"""The budgets: how often a run is tried again without a gain, rolled back, and submitted in one Incident."""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from chalicelib.domain.decision.rule import first_decision, rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, step_word, story, whole_story
from chalicelib.domain.faults.failure_reasons import failure_of
from chalicelib.domain.faults.poison import died_at_most
from chalicelib.domain.model.known import Known
from chalicelib.domain.run.earlier_attempts import tries_in_vain
from chalicelib.domain.run.resume_point import newest_verified

NAMED: Final = 8  # resume steps in a message


@rule("budget.rollbacks")
def budget_rollbacks(context: RuleContext) -> Decision | None:
    """`budgets.max_rollbacks` reached: a person."""
    incident = context.incident
    if incident.loss.rollbacks <= context.policy.budgets.max_rollbacks:
        return None
    return context.hand_over(
        "budget.rollbacks",
        f"{incident.loss.rollbacks - 1} rollbacks did not cure it. {story(context)} {whole_story(incident)}",
    )


@rule("budget.no_progress")
def budget_no_progress(context: RuleContext) -> Decision | None:
    """`budgets.max_no_progress` attempts in a row, or the playbook's `tries`, gained no step: a person."""
    incident, policy = context.incident, context.policy
    tries = policy.playbook(incident.fault).tries
    limit = policy.budgets.max_no_progress if tries is None else min(tries, policy.budgets.max_no_progress)
    fruitless = max(tries_in_vain(incident), fruitless_of_job(context))
    if fruitless < limit:  # a try that gained a step renews the budget
        return None
    return context.hand_over(
        "budget.no_progress",
        f"{fruitless} attempt(s) in a row gained no step past {step_word(incident.target_step)}. "
        f"{story(context)} {whole_story(incident)}",
    )


@rule("budget.no_progress")
def budget_ended_alike(context: RuleContext) -> Decision | None:
    """Attempts in a row ended as this one, and the playbook of that failure allows no further try: a person."""
    deaths = _deaths_beyond_their_own_limit(context)
    if deaths is None:
        return None
    return context.hand_over(
        "budget.no_progress",
        f"{deaths} attempts in a row ended alike, which is worth fewer tries. {story(context)} "
        f"{whole_story(context.incident)}",
    )


@rule("budget.attempts")
def budget_attempts(context: RuleContext) -> Decision | None:
    """`budgets.max_attempts` resubmissions in one Incident: a person."""
    ran = sum(not item.no_room for item in context.incident.resubmission.tries)
    if ran < context.policy.budgets.max_attempts:
        return None
    return context.hand_over(
        "budget.attempts",
        f"{ran} resubmissions in one Incident are the policy's limit. {story(context)} {whole_story(context.incident)}",
    )


@rule("budget.restarts")
def budget_restarts(context: RuleContext) -> Decision | None:
    """`budgets.max_restarts_per_day` restarts of the Job within 24 hours, over all Incidents: a person."""
    count = context.seen.restarts_of_a_day
    if context.incident.order is not None or count < context.policy.budgets.max_restarts_per_day:
        return None
    return context.hand_over(
        "budget.restarts",
        f"{count} restarts within 24 hours are the policy's limit, whatever each of them gained. "
        f"{restarts_word(context)} {story(context)} {whole_story(context.incident)}",
    )


def restarts_word(context: RuleContext) -> str:
    """Where the newest attempts resumed, for people: how far a day of restarts has brought the run."""
    steps = [str(step) if step is not None else "?" for step in context.seen.resumed_at[-NAMED:]]
    return f"The newest resumed at step {', '.join(steps)}." if steps else ""


BUDGETS: Final = (budget_rollbacks, budget_no_progress, budget_ended_alike, budget_attempts, budget_restarts)
BUDGET_NAMES: Final = ("budget.rollbacks", "budget.no_progress", "budget.attempts", "budget.restarts")


def over_budget(context: RuleContext) -> Decision | None:
    """The hand-over that is due once the policy's budgets are spent; None while they are not."""
    return first_decision(BUDGETS, context)


def _deaths_beyond_their_own_limit(context: RuleContext) -> int | None:
    """How many attempts in a row ended as the newest one has, once its failure's own row allows no further try; None
    while it does. What the Incident is about by then may be another fault, with more tries.
    """
    incident, attempt = context.incident, context.attempt
    failures = incident.resubmission.failures
    if attempt is None or incident.order is not None or not failures or failures[-1].attempt != attempt.name:
        return None
    fault = failure_of(attempt).fault
    tries = context.policy.playbook(fault).tries
    if tries is None or fault is incident.fault or not failures[-1].signature:
        return None
    gained = {item.name for item in incident.resubmission.tries if item.gained}
    alike = takewhile(
        lambda failure: failure.signature == failures[-1].signature and failure.attempt not in gained, failures[::-1]
    )
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
    own = max(
        (checkpoint.step for checkpoint in found if not checkpoint.problems and checkpoint.attempt == name), default=-1
    )
    others = max(
        (checkpoint.step for checkpoint in found if not checkpoint.problems and checkpoint.attempt != name), default=-1
    )
    return own > others


def _since_its_writer(context: RuleContext, newest: int) -> int:
    """Attempts of ours since the one that saved the newest checkpoint, whatever they resumed from."""
    found = context.seen.checkpoints.value if isinstance(context.seen.checkpoints, Known) else ()
    writers = {checkpoint.attempt for checkpoint in found if checkpoint.step == newest and not checkpoint.problems}
    ran = context.seen.ran
    last = max((index for index, name in enumerate(ran) if name in writers or index == 0), default=0)
    return len(ran) - 1 - last if ran else 0
