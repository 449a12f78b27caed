"""What `rekindle show` says of the guards: what holds an Incident back, and what people were asked and answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rekindle.client.shapes import NOTHING, day_and_time, member, objects, word

MAX_OVER: Final = 5  # holds that are over, the newest; the story below has each with its time


def held(incident: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A line and the words under it per hold: what holds now comes first."""
    holds = objects(incident, "holds")
    now = [hold for hold in holds if not member(hold, "until")]
    over = [hold for hold in holds if member(hold, "until")][-MAX_OVER:]
    for hold in [*now, *reversed(over)]:
        actions = member(hold, "actions")
        names = (
            f": {', '.join(str(name) for name in actions)} not done" if isinstance(actions, list) and actions else ""
        )
        until = f" until {day_and_time(hold, 'until')}" if member(hold, "until") else ", and still does"
        yield f"{word(hold, 'guard')} since {day_and_time(hold, 'since')}{until}{names}", word(hold, "text")
    left = len(holds) - len(now) - len(over)
    if left > 0:
        yield f"and {left} more before; --json has them", ""


def questions(incident: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A line and the words under it per question, the newest first: an open one with the commands that answer it."""
    for approval in reversed(objects(incident, "approvals")):
        name = word(approval, "approval_id")
        if member(approval, "answer"):
            comment = f" ({word(approval, 'comment')})" if word(approval, "comment") != NOTHING else ""
            answered_at = day_and_time(approval, "answered_at")
            ended = f"{word(approval, 'answer')} by {word(approval, 'by')} at {answered_at}{comment}"
        elif member(approval, "lapsed_at"):
            ended = f"not asked any more since {day_and_time(approval, 'lapsed_at')}"
        else:
            order = f"{word(incident, 'incident_id')} {name}"
            ended = (
                f"WAITS FOR AN ANSWER until {day_and_time(approval, 'deadline_at')}, then {word(approval, 'default')}: "
                f"`rekindle approvals approve {order}` or `rekindle approvals deny {order}`"
            )
        yield f"{name}  {word(approval, 'what')}: {ended}", word(approval, "why")
