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

# A stop with its save and its upload, a start on instances that are there, and loading a large checkpoint take less.
TOLD_AFTER: Final = timedelta(minutes=15)


def with_down_told(context: RuleContext, decision: Decision) -> Decision:
    """`decision` with one warning where its run has been down for TOLD_AFTER and no person was told anything yet."""
    incident = decision.incident
    if incident.node is not None or incident.tracking.is_warned:
        return decision
    if any(_is_warning(action) for action in decision.actions):
        return _warned(decision)
    if any(hold.until is None for hold in incident.holds):
        return decision  # people hear of what a guard holds back by its own news (guards/holds.py)
    since = incident.tracking.down_since
    if since is None or context.now - since < TOLD_AFTER or not incident.is_open:
        return decision
    text = f"It has not trained for {span_word(context.now - since)}, and the recovery goes on: {decision.reason}"
    notice = Notify(severity=Severity.WARNING, title=f"{subject(context)}: still down", text=text)
    return _warned(dataclasses.replace(decision, actions=(*decision.actions, notice)))


def _is_warning(action: Action) -> bool:
    """A question to people is one as well, also where the open breaker has asked its own."""
    if isinstance(action, Notify):
        return action.severity is not Severity.INFO
    return isinstance(action, AskApproval)


def _warned(decision: Decision) -> Decision:
    if not decision.incident.is_open:
        return decision
    return dataclasses.replace(decision, incident=decision.incident.changed(is_warned=True))
