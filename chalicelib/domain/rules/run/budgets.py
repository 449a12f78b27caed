"""The budgets: how often a run is tried again without a gain, rolled back, and submitted in one Incident."""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from chalicelib.domain.decision.rule import first_decision, rule
from chalicelib.domain.decision.verdict import Decision, RuleContext, span_word, step_word, story, whole_story
from chalicelib.domain.faults.failure_reasons import failure_of
from chalicelib.domain.faults.poison import died_at_most
from chalicelib.domain.model.known import Known
from chalicelib.domain.resume.earlier_attempts import tries_in_vain
from chalicelib.domain.resume.resume_point import newest_verified
from chalicelib.domain.run.job_record import LAST_HOURS

NAMED: Final = 8  # attempts in a message
# Of the last hours, once so many restarts of ours fell into them: one slow start says nothing of the run. With 466
# interruptions in 54 days Llama 3 trained for more than 90 percent of the time. Source: arXiv:2407.21783 §3.3.4.
JUDGED: Final = 4
CALLED_AT: Final = 2 * JUDGED
TRAINED_WARNED, TRAINED_CALLED = 0.5, 0.2
DAYS_ROLLBACKS: Final = 3  # times `budgets.max_rollbacks`
CAPPED_WARNED: Final = 3


@rule("budget.rollbacks")
def budget_rollbacks(context: RuleContext) -> Decision | None:
    """`budgets.max_rollbacks` reached, or three times as many within 24 hours, over all Incidents: a person."""
    incident, of_a_day = context.incident, context.seen.record.rollbacks_of_a_day
    if incident.loss.rollbacks and of_a_day >= DAYS_ROLLBACKS * context.policy.budgets.max_rollbacks:
        return context.hand_over(
            "budget.rollbacks",
            f"{of_a_day} rollbacks within 24 hours did not cure it. {restarts_word(context)} {story(context)}",
        )
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
    """Over all Incidents of the Job, `budgets.max_restarts_per_day` restarts within 24 hours, half of them within one
    hour, or eight within six hours of which it trained for a fifth: a person.
    """
    record, limit = context.seen.record, context.policy.budgets.max_restarts_per_day
    if context.incident.order is not None:
        return None
    if record.restarts_of_a_day >= limit:
        what = f"{record.restarts_of_a_day} restarts within 24 hours are the policy's limit"
    elif record.restarts_of_an_hour >= max(limit // 2, 1) and limit > 1:
        what = f"{record.restarts_of_an_hour} restarts within one hour are half of the policy's limit for a day"
    elif record.restarts_of_last_hours >= CALLED_AT and _trained_at_most(context, TRAINED_CALLED):
        what = f"{record.restarts_of_last_hours} restarts within {span_word(LAST_HOURS)}, {_share_word(context)}"
    else:
        return None
    return context.hand_over(
        "budget.restarts",
        f"{what}, whatever each of them gained. {restarts_word(context)} {story(context)} "
        f"{whole_story(context.incident)}",
    )


def thin_progress(context: RuleContext) -> tuple[str, ...]:
    """What a day of recoveries costs, one sentence each, where a warning is due: once, on the way to a budget."""
    record, budgets = context.seen.record, context.policy.budgets
    limit, found = budgets.max_restarts_per_day, []
    if limit > 1 and record.restarts_of_a_day == limit // 2:
        found.append(f"{record.restarts_of_a_day} restarts within 24 hours; at {limit} a person is called.")
    if limit > 3 and record.restarts_of_an_hour == limit // 4:
        found.append(f"{record.restarts_of_an_hour} restarts within one hour; at {limit // 2} a person is called.")
    if record.restarts_of_last_hours == JUDGED and _trained_at_most(context, TRAINED_WARNED):
        found.append(f"{JUDGED} restarts within {span_word(LAST_HOURS)}, {_share_word(context)}.")
    if context.incident.loss.rollbacks and record.rollbacks_of_a_day == budgets.max_rollbacks:
        most = DAYS_ROLLBACKS * budgets.max_rollbacks
        found.append(f"{record.rollbacks_of_a_day} rollbacks within 24 hours; at {most} a person is called.")
    if record.capped == CAPPED_WARNED:
        found.append(
            f"Its own run-time limit has ended it {CAPPED_WARNED} times in a row, and each new attempt has the whole "
            "limit again; where that limit is to bound its cost, order it stopped."
        )
    return tuple(found)


def restarts_word(context: RuleContext) -> str:
    """From where to where the newest attempts came, for people: how far a day of restarts has brought the run."""
    record = context.seen.record
    pairs = list(zip(record.resumed_at, record.came_to, strict=False))[-NAMED:]
    ways = [f"{_word(resumed)} to {_word(came)}" for resumed, came in pairs]
    return f"The newest came from step {', '.join(ways)}." if ways else ""


def _word(step: int | None) -> str:
    return "?" if step is None else str(step)


def _trained_at_most(context: RuleContext, share: float) -> bool:
    trained = context.seen.record.trained
    return isinstance(trained, Known) and trained.value <= share


def _share_word(context: RuleContext) -> str:
    trained = context.seen.record.trained
    return f"of which the steps gained took {trained.value:.0%}" if isinstance(trained, Known) else ""


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
    best = context.seen.record.best_before
    by_steps = 0
    if isinstance(reached, Known) and isinstance(best, Known) and reached.value <= best.value:
        by_steps = context.seen.record.fruitless_before + 1
    return max(by_steps, _without_a_checkpoint(context))


def _without_a_checkpoint(context: RuleContext) -> int:
    """The Job's newest attempts in a row that resumed where the next one would: none of them has saved anything new.

    A step more each time is no progress that lasts, and must not renew the budget in every new Incident. Neither is
    what a trainer saves that begins at the same step each time, whatever its resume plan.
    """
    checkpoints = context.seen.checkpoints
    newest = newest_verified(checkpoints.value, context.incident) if isinstance(checkpoints, Known) else -1
    if newest < 0:  # there is none, and what each attempt began at shows whether anything was kept elsewhere
        return context.seen.record.began_again if isinstance(checkpoints, Known) and not checkpoints.value else 0
    count = 0
    for step in reversed(context.seen.record.resumed_at):
        if step is None or step < newest:
            break
        count += 1
    from_the_start = 0 if _saved_further(context) else context.seen.record.began_again
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
    ran = context.seen.record.ran
    last = max((index for index, name in enumerate(ran) if name in writers or index == 0), default=0)
    return len(ran) - 1 - last if ran else 0
