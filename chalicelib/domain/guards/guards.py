"""What holds a decided step back: shadow mode, an outage of ours, a window, the breaker, a question to people. Pure.

It stands behind the rules and judges what they propose, so that no rule can forget it. A step that is held is not done,
and nothing is recorded as if it had been: the Incident keeps its phase, its tries and its orders, and of this
observation only what was learnt. At the next one the rules propose it again if it is still right then.

The pause and the order to cancel come before all rules (decide.py). What a person has ordered needs no approval, and
neither hours nor the breaker hold it; what the rules themselves forbid stays forbidden.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Final

from chalicelib.domain.decision.rule import Rule, decided_by, first_decision, rule
from chalicelib.domain.decision.steps import Step, ends_what_is_left, new_steps
from chalicelib.domain.decision.verdict import Decision, RuleContext, story, subject
from chalicelib.domain.guards.held import (
    hold_back,
    joined_texts,
    keep_learned,
    newest_approval,
    put_approval,
    state_word,
    with_approval,
)
from chalicelib.domain.guards.risk import (
    are_on_a_bad_node,
    gpu_hours_lost,
    loss_word,
    nodes_taken,
    others_on,
    others_word,
)
from chalicelib.domain.model.action import Action, AskApproval, CordonNode, Notify, Severity, StopJob, action_name
from chalicelib.domain.model.approvals import BREAKER_KEY, POLICY, STOP, Approval, ApprovalAnswer, Guard
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.policy.guard_rules import ApprovalRule, Harm, Window
from chalicelib.domain.run.alerts import alerts_word, own_word, rests_on_alerts
from chalicelib.domain.run.first_response import shadow

# Upon an alert alone, people are asked about what ends a run or takes a node away. What follows from it (the new start,
# a check) was agreed to with it.
ASKED: Final = frozenset({Harm.STOP_JOB, Harm.CORDON_NODE, Harm.REBOOT_NODE, Harm.REPLACE_NODE})
MAX_QUESTIONS: Final = 20  # in one Incident: a person who has answered so many has it in hand
CATCH_UP: Final = timedelta(minutes=1)  # for events that waited for the service


def guarded(context: RuleContext, decision: Decision) -> Decision:
    """`decision`, or what takes its place where a guard holds it: the first of GUARDS."""
    if not decision.incident.is_open and not decision.actions:
        return decision
    if context.policy.shadow:
        return decided_by((guard_shadow,), context, decision)
    steps = () if context.incident.is_ordered else new_steps(context.incident, decision)
    lapsed = _lapsed(decision.incident, context, decision, steps)
    if steps:
        kept, base = (_lapsed(incident, context, decision, steps) for incident in (context.incident, context.base))
        context = dataclasses.replace(context, incident=kept, base=base)
    decision = dataclasses.replace(decision, incident=lapsed)
    return (first_decision(GUARDS, context, decision, steps) if steps else None) or decision


def was_ordered(before: Incident, after: Incident) -> bool:
    """The same of what has been decided: the order as it stands now, but none of what was just put on record."""
    tries, steps = before.resubmission.tries, before.repair.steps if before.repair is not None else ()
    repair = dataclasses.replace(after.repair, steps=steps) if after.repair is not None else None
    return after.changed(tries=tries, repair=repair).is_ordered


def would_hold(context: RuleContext, action: Action) -> bool:
    """Something would hold `action` back, if it were proposed; nothing that was approved is asked for."""
    if context.incident.is_ordered:
        return False
    harm = Harm(action_name(action))
    if context.policy.shadow or _open_breaker(context) is not None or _window_until(context, harm) is not None:
        return True
    step = Step(key="", kind=harm, action=action, what="")
    return _rule_for(context, step) is not None


def may_cordon(context: RuleContext) -> bool:
    """A run's Incident may cordon bad nodes by the way. Where not, their own Incidents ask for that."""
    if context.policy.approvals.others_deadline and not context.incident.is_ordered and are_on_a_bad_node(context):
        return False
    return not would_hold(context, CordonNode(cluster="", node="", why=""))


# ---- shadow mode -----------------------------------------------------------------------------------------------------


@rule("guard.shadow")
def guard_shadow(context: RuleContext, decision: Decision) -> Decision:
    """Shadow mode: a step is only told, and nothing is done; in the middle of a recovery a person is paged."""
    doing = [
        action.label
        for action in decision.actions
        if not (isinstance(action, Notify | AskApproval) or ends_what_is_left(context.incident, action))
    ]
    if not doing:
        return decision
    where = f", switched on {context.seen.shadow}" if context.seen.shadow else ""
    would = f"{', '.join(dict.fromkeys(doing))}, by {decision.rule}{where}: {decision.reason}"
    shadowed = shadow(context, would)
    if context.incident.phase in (Phase.OPEN, Phase.HOLDING, Phase.WATCHING):
        return shadowed
    reason = f"{shadowed.reason} {state_word(context)}{_unanswered(context)}"
    return context.hand_over("guard.shadow", reason, severity=Severity.PAGE)


def _unanswered(context: RuleContext) -> str:
    """What was let through before shadow mode was on may have been carried out, with its answer still to come."""
    pending = context.incident.resubmission.pending if context.incident.phase is Phase.RESUBMITTING else None
    if pending is None:
        return ""
    return f" Whether {pending.name}, ordered at {pending.at:%H:%M} UTC, was started is not known."


# ---- catching up -----------------------------------------------------------------------------------------------------


@rule("guard.catch_up")
def guard_catch_up(context: RuleContext, decision: Decision, steps: tuple[Step, ...]) -> Decision | None:
    """The service could not run for a while: what was sent to it meanwhile, withdrawals too, is received first."""
    back_at = context.seen.back_at
    if back_at is None or context.now - back_at >= CATCH_UP:
        return None
    reason = f"the service could not run until {back_at:%H:%M:%S} UTC, and what was sent to it meanwhile is read first"
    return hold_back(
        context,
        decision,
        Guard.CATCH_UP,
        f"{reason}: {joined_texts(steps)}. {decision.reason}",
        steps,
        until=back_at + CATCH_UP,
    )


# ---- windows ---------------------------------------------------------------------------------------------------------


@rule("guard.window")
def guard_window(context: RuleContext, decision: Decision, steps: tuple[Step, ...]) -> Decision | None:
    """A window of the policy holds such a step back now: wait for its end."""
    held = [(until, step) for step in steps if (until := _window_until(context, step.kind)) is not None]
    if not held:
        return None
    until = max(step for step, _ in held)
    kinds = {step.kind for _, step in held}
    names = sorted({row.name for kind in kinds for row in _holding(context, kind)})
    window = f"held back until {until:%a %H:%M} UTC by the window {', '.join(names)}"
    reason = f"{window}: {joined_texts(steps)}. {decision.reason}"
    return hold_back(context, decision, Guard.WINDOW, reason, steps, until=until)


def _holding(context: RuleContext, harm: Harm) -> list[Window]:
    """The windows that hold such a step now."""
    return [
        row
        for row in context.policy.windows
        if (not row.actions or harm in row.actions) and row.holds_until(context.now) is not None
    ]


def _window_until(context: RuleContext, harm: Harm) -> datetime | None:
    ends = (row.holds_until(context.now) for row in _holding(context, harm))
    return max((end for end in ends if end is not None), default=None)


# ---- the breaker -----------------------------------------------------------------------------------------------------


def _open_breaker(context: RuleContext) -> datetime | None:
    breaker = context.seen.breaker
    if breaker is None or not breaker.is_open or not context.policy.breaker.incidents:
        return None
    return breaker.tripped_at


@rule("guard.breaker", "guard.denied", "guard.denied_by_default", "guard.too_many_questions")
def guard_breaker(context: RuleContext, decision: Decision, steps: tuple[Step, ...]) -> Decision | None:
    """The fleet-wide breaker is open: a person is asked first; without a yes, a person takes over."""
    tripped_at = _open_breaker(context)
    if tripped_at is None:
        return None
    own = newest_approval(context.incident, BREAKER_KEY)
    if own is not None and own.covers and own.answered_at is not None and own.answered_at >= tripped_at:
        return None
    if own is not None and _is_of_an_earlier_trip(own, tripped_at, context.seen.breaker_lifted_at):
        context = with_approval(context, dataclasses.replace(own, lapsed_at=context.now))  # people are asked anew
    text = context.seen.breaker.text if context.seen.breaker else ""
    why = f"the fleet-wide breaker is open since {tripped_at:%H:%M} UTC: {text}"
    asking = ApprovalRule(deadline=context.policy.breaker.deadline, default=ApprovalAnswer.DENIED)
    return _question(context, decision, Guard.BREAKER, steps, key=BREAKER_KEY, why=why, asking=asking)


def _is_of_an_earlier_trip(own: Approval, tripped_at: datetime, lifted_at: datetime | None) -> bool:
    """The yes came before this trip, or a lift has answered the question since it was asked."""
    if own.is_pending:
        return lifted_at is not None and own.asked_at < lifted_at
    return own.covers and own.answered_at is not None and own.answered_at < tripped_at


# ---- approvals -------------------------------------------------------------------------------------------------------


@rule("guard.approval", "guard.denied", "guard.denied_by_default", "guard.too_many_questions")
def guard_approval(context: RuleContext, decision: Decision, steps: tuple[Step, ...]) -> Decision | None:
    """The policy asks before such a step, or only alerts speak for it: a person is asked, whose answer counts."""
    wanted = [(step, asking) for step in steps if (asking := _rule_for(context, step)) is not None]
    for step, asking in wanted:
        own = newest_approval(context.incident, step.key)
        if own is None or not own.covers:
            why = f"{_who_asks(context, asking, step)}. {decision.reason}"
            return _question(context, decision, Guard.APPROVAL, steps, key=step.key, why=why, asking=asking)
    return None


def _rule_for(context: RuleContext, step: Step) -> ApprovalRule | None:
    """The policy's first row that applies; where none does, what rests on an alert alone is asked about as well, and
    so is what keeps other people's jobs from a node, and a start that throws away more training than it may."""
    row = next((row for row in context.policy.approvals.rules if _applies(context, row, step)), None)
    if row is not None:
        return row
    if context.policy.approvals.alert_deadline and step.kind in ASKED and _rests_on_alerts(context, step):
        return ApprovalRule(deadline=context.policy.approvals.alert_deadline, default=ApprovalAnswer.DENIED)
    if context.policy.approvals.others_deadline and others_on(context, step.action):
        return ApprovalRule(deadline=context.policy.approvals.others_deadline, default=ApprovalAnswer.DENIED)
    if loss_word(context, step.action):
        return ApprovalRule(deadline=context.policy.approvals.loss_deadline, default=ApprovalAnswer.DENIED)
    return None


def _rests_on_alerts(context: RuleContext, step: Step) -> bool:
    """Not what makes way for an attempt that lives by the platform's word, nor the end of a start that is ordered and
    not answered: it makes way for one by hand, whatever was claimed of the run before."""
    incident = context.incident
    if isinstance(context.seen.sibling, Known):
        return False
    unanswered = incident.resubmission.pending if incident.phase is Phase.RESUBMITTING else None
    if unanswered is not None and isinstance(step.action, StopJob) and step.action.attempt == unanswered.name:
        return False
    return rests_on_alerts(context)


def _who_asks(context: RuleContext, asking: ApprovalRule, step: Step) -> str:
    if asking in context.policy.approvals.rules:
        return f"the policy {context.policy.name} asks first"
    if not (context.policy.approvals.alert_deadline and _rests_on_alerts(context, step)):
        others = others_on(context, step.action) if context.policy.approvals.others_deadline else ()
        return others_word(others) if others else loss_word(context, step.action)
    return f"{alerts_word(context)}; {own_word(context)}"


def _applies(context: RuleContext, asking: ApprovalRule, step: Step) -> bool:
    """What is not known is never small."""
    if asking.when.actions and step.kind not in asking.when.actions:
        return False
    if asking.when.faults and context.incident.fault not in asking.when.faults:
        return False
    if asking.when.min_nodes is not None:
        nodes = nodes_taken(context, step.action)
        if isinstance(nodes, Known) and nodes.value < asking.when.min_nodes:
            return False
    if asking.when.min_gpu_hours is not None:
        hours = gpu_hours_lost(context, step.action)
        if isinstance(hours, Known) and hours.value < asking.when.min_gpu_hours:
            return False
    return True


def _question(
    context: RuleContext,
    decision: Decision,
    guard: Guard,
    steps: tuple[Step, ...],
    *,
    key: str,
    why: str,
    asking: ApprovalRule,
) -> Decision:
    """Ask, wait, or act upon the answer."""
    own = newest_approval(context.incident, key)
    what = joined_texts(steps) if key == BREAKER_KEY else next(step.what for step in steps if step.key == key)
    is_due = own is not None and own.is_pending and context.now >= own.deadline_at
    if own is not None and is_due and own.default is ApprovalAnswer.APPROVED and not own.notified:
        # Silence of people who were never asked is no yes. The same question goes out again, with its time anew.
        own, is_due = dataclasses.replace(own, deadline_at=context.now + asking.deadline), False
        context = with_approval(context, own)
    if own is not None and is_due:
        own = dataclasses.replace(own, answer=own.default, by=POLICY, answered_at=context.now)
        context = with_approval(context, own)
        if own.covers:
            return guarded(context, dataclasses.replace(decision, incident=put_approval(decision.incident, own)))
    if own is not None and own.answer is ApprovalAnswer.DENIED:
        return _denied(context, decision, own)
    if own is None:
        if len(context.incident.approvals) >= MAX_QUESTIONS:
            reason = (
                f"people were asked {MAX_QUESTIONS} times in this Incident; the person who answered takes it from here."
            )
            return context.hand_over("guard.too_many_questions", f"{reason} {state_word(context)}")
        own = Approval(
            approval_id=f"a{len(context.incident.approvals) + 1}",
            key=key,
            actions=tuple(dict.fromkeys(step.kind.value for step in steps)),
            what=what,
            why=why[:400],
            asked_at=context.now,
            deadline_at=context.now + asking.deadline,
            default=asking.default,
            phase=context.incident.phase.value,
        )
        context = with_approval(context, own)
    words = {ApprovalAnswer.APPROVED: "it is done all the same", ApprovalAnswer.DENIED: "a person has to take over"}
    reason = f"May Rekindle {what}? {why} Without an answer by {own.deadline_at:%a %H:%M} UTC, {words[own.default]}."
    ask: tuple[Action, ...] = ()
    if not own.notified:  # whether it went out is known only once its answer is seen: until then the same is said again
        ask = (
            AskApproval(
                approval_id=own.approval_id,
                title=f"{subject(context)}: may Rekindle {what}?",
                text=f"{reason} {story(context)}",
                deadline_at=own.deadline_at,
            ),
        )
    return hold_back(context, decision, guard, reason, steps, *ask, until=own.deadline_at)


def _denied(context: RuleContext, decision: Decision, own: Approval) -> Decision:
    comment = f" ({own.comment})" if own.comment else ""
    context = dataclasses.replace(context, incident=keep_learned(context.incident, decision.incident))
    if own.by == POLICY:
        reason = (
            f"no one has answered whether Rekindle may {own.what}, and the policy then says no. {state_word(context)}"
        )
        return context.close("guard.denied_by_default", reason, Phase.HANDED_OVER, severity=Severity.PAGE)
    reason = f"{own.by} denied: {own.what}{comment}. {state_word(context)}"
    return context.close("guard.denied", reason, Phase.STOPPED, severity=Severity.WARNING)


# ---- questions that are over -----------------------------------------------------------------------------------------


def _lapsed(incident: Incident, context: RuleContext, decision: Decision, steps: tuple[Step, ...]) -> Incident:
    """A question, and its answer, are about one step in one situation: when that is over, they cover nothing more.
    What was denied stays so.
    """
    if all(approval.lapsed_at is not None for approval in incident.approvals):
        return incident
    keys = {step.key for step in steps}
    approvals = tuple(
        dataclasses.replace(approval, lapsed_at=context.now)
        if approval.lapsed_at is None
        and not approval.forbids
        and approval.key not in keys
        and _is_over(approval, context, decision)
        else approval
        for approval in incident.approvals
    )
    return incident if approvals == incident.approvals else dataclasses.replace(incident, approvals=approvals)


def _is_over(approval: Approval, context: RuleContext, decision: Decision) -> bool:
    if approval.key == BREAKER_KEY:
        return _open_breaker(context) is None
    if approval.key.startswith(f"{STOP}:"):  # a run may have come well by itself; one that cannot be seen has not
        return isinstance(context.seen.attempt, Known)
    return decision.incident.phase.value != approval.phase


# Asked in this order about steps that are not on record yet.
GUARDS: Final[tuple[Rule[[Decision, tuple[Step, ...]]], ...]] = (
    guard_catch_up,
    guard_window,
    guard_breaker,
    guard_approval,
)
