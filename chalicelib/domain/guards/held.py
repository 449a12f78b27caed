"""What a held step leaves on the Incident: the hold, what was learnt meanwhile, and the questions to people. Pure."""

from __future__ import annotations

import dataclasses
from datetime import datetime

from chalicelib.domain.decision.steps import Step
from chalicelib.domain.decision.verdict import Decision, RuleContext, state_of_the_run
from chalicelib.domain.model.action import Action
from chalicelib.domain.model.approvals import Approval, Guard, Hold
from chalicelib.domain.model.incident import Incident
from chalicelib.domain.model.repair import StepState
from chalicelib.domain.node.memory import state_of_the_node


def hold_back(
    context: RuleContext,
    decision: Decision,
    guard: Guard,
    reason: str,
    steps: tuple[Step, ...],
    *actions: Action,
    until: datetime,
) -> Decision:
    """While the same guard holds on, no limit runs, and nothing is written down but what is new."""
    is_on = any(hold.guard is guard and hold.until is None for hold in context.base.holds)
    incident = context.base if is_on else context.incident
    if not is_on:
        names = tuple(dict.fromkeys(step.kind.value for step in steps))
        hold = Hold(guard=guard, since=context.now, text=reason[:400], actions=names)
        incident = dataclasses.replace(incident, holds=(*incident.holds, hold))
    incident = keep_learned(incident, decision.incident)
    since = next(hold.since for hold in reversed(incident.holds) if hold.guard is guard and hold.until is None)
    high = context.policy.timing.look_max if incident.node is None else context.policy.node_look_max
    interval = min(max(context.now - since, context.policy.timing.look_min), high)
    again = max(min(interval, until - context.now), context.policy.timing.look_min)
    return context.decided(f"guard.{guard}", reason, incident, actions, again)


def keep_learned(kept: Incident, proposed: Incident) -> Incident:
    """Keep what only this observation knew: an answer to a request, an order's outcome. The rest is read again."""
    ask, answered = kept.halt.ask, proposed.halt.ask
    if ask is not None and answered is not None and ask.request_id == answered.request_id and ask.outcome is None:
        kept = kept.changed(ask=answered)
    if kept.repair is None or proposed.repair is None:
        return kept
    new = {step.number: step.state for step in proposed.repair.steps}
    open_ones = (StepState.ASKED, StepState.DOUBTFUL)
    steps = tuple(
        dataclasses.replace(step, state=new.get(step.number, step.state)) if step.state in open_ones else step
        for step in kept.repair.steps
    )
    return dataclasses.replace(kept, repair=dataclasses.replace(kept.repair, steps=steps))


def newest_approval(incident: Incident, key: str) -> Approval | None:
    fit = (approval for approval in reversed(incident.approvals) if approval.key == key and approval.lapsed_at is None)
    return next(fit, None)


def with_approval(context: RuleContext, approval: Approval) -> RuleContext:
    kept, base = put_approval(context.incident, approval), put_approval(context.base, approval)
    return dataclasses.replace(context, incident=kept, base=base)


def put_approval(incident: Incident, approval: Approval) -> Incident:
    """The same with `approval` in the place of its former self, or at the end."""
    ids = [known.approval_id for known in incident.approvals]
    if approval.approval_id not in ids:
        return dataclasses.replace(incident, approvals=(*incident.approvals, approval))
    approvals = tuple(approval if known.approval_id == approval.approval_id else known for known in incident.approvals)
    return dataclasses.replace(incident, approvals=approvals)


def joined_texts(steps: tuple[Step, ...]) -> str:
    return "; ".join(dict.fromkeys(step.what for step in steps))


def state_word(context: RuleContext) -> str:
    return state_of_the_node(context) if context.incident.node is not None else f"{state_of_the_run(context)}."
