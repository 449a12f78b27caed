"""A run that an open Incident keeps waiting for long is told once, whatever it waits for. Pure.

The limits of the single phases (capacity, a stop, a start, a queue) are each as long as the slowest good case. Together
they may keep a run down for hours while every rule waits as it should; this is the one clock over all of them.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Final

from chalicelib.domain.decision.verdict import Decision, RuleContext, span_word, subject
from chalicelib.domain.model.action import Action, AskApproval, Notify, Severity
from chalicelib.domain.model.approvals import Guard
from chalicelib.domain.model.incident import Incident

# A stop with its save and its upload, a start on instances that are there, and loading a large checkpoint take less.
TOLD_AFTER: Final = timedelta(minutes=15)
_WAITS_FOR_SPOT: Final = "wait.spot"
_WANTED: Final = (Guard.PAUSE, Guard.WINDOW, Guard.SHADOW, Guard.DENIED)


def no_capacity_key(incident: Incident) -> str:
    """What people are told once of an attempt: that no capacity comes."""
    return f"no_capacity:{incident.attempt}"


def with_down_told(context: RuleContext, decision: Decision) -> Decision:
    """`decision` with one warning where its run has been down for TOLD_AFTER and no person was warned since."""
    incident = decision.incident
    if incident.node is not None:
        return decision
    if any(_is_warning(action) for action in decision.actions):
        return _warned(decision, context)
    since, warned_at = incident.tracking.down_since, incident.tracking.warned_at
    if since is not None and warned_at is not None and warned_at >= since:
        return decision
    if any(hold.until is None and hold.guard in _WANTED for hold in incident.holds):
        return decision  # people want it held back, and hear of that by its own news (guards/holds.py)
    if since is None or context.now - since < TOLD_AFTER or not incident.is_open:
        return decision
    text = f"It has not trained for {span_word(context.now - since)}, and the recovery goes on: {decision.reason}"
    notice = Notify(severity=Severity.WARNING, title=f"{subject(context)}: still down", text=text)
    if decision.rule == _WAITS_FOR_SPOT or incident.resubmission.capacity_since is not None:
        # the reason says so: no second warning for it
        decision = dataclasses.replace(
            decision, incident=incident.changed(told=(*incident.tracking.told, no_capacity_key(incident)))
        )
    return _warned(dataclasses.replace(decision, actions=(*decision.actions, notice)), context)


def _is_warning(action: Action) -> bool:
    """A question to people is one as well, also where the open breaker has asked its own."""
    if isinstance(action, Notify):
        return action.severity is not Severity.INFO
    return isinstance(action, AskApproval)


def _warned(decision: Decision, context: RuleContext) -> Decision:
    if not decision.incident.is_open:
        return decision
    return dataclasses.replace(decision, incident=decision.incident.changed(warned_at=context.now))
