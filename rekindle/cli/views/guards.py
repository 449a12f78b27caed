"""What `rekindle show` says of the guards: what holds an Incident back, and what people were asked and answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rekindle.client.shapes import NOTHING, day_and_time, member, objects, word

MAX_OVER: Final = 5  # holds that are over, the newest; the story below has each with its time


def held(incident: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A line and the words under it per hold: what holds now comes first."""
    holds = objects(incident, "holds")
    now = [one for one in holds if not member(one, "until")]
    over = [one for one in holds if member(one, "until")][-MAX_OVER:]
    for one in [*now, *reversed(over)]:
        actions = member(one, "actions")
        names = (
            f": {', '.join(str(name) for name in actions)} not done" if isinstance(actions, list) and actions else ""
        )
        until = f" until {day_and_time(one, 'until')}" if member(one, "until") else ", and still does"
        yield f"{word(one, 'guard')} since {day_and_time(one, 'since')}{until}{names}", word(one, "text")
    left = len(holds) - len(now) - len(over)
    if left > 0:
        yield f"and {left} more before; --json has them", ""


def questions(incident: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A line and the words under it per question, the newest first: an open one with the commands that answer it."""
    for one in reversed(objects(incident, "approvals")):
        name = word(one, "approval_id")
        if member(one, "answer"):
            comment = f" ({word(one, 'comment')})" if word(one, "comment") != NOTHING else ""
            ended = f"{word(one, 'answer')} by {word(one, 'by')} at {day_and_time(one, 'answered_at')}{comment}"
        elif member(one, "lapsed_at"):
            ended = f"not asked any more since {day_and_time(one, 'lapsed_at')}"
        else:
            order = f"{word(incident, 'incident_id')} {name}"
            ended = (
                f"WAITS FOR AN ANSWER until {day_and_time(one, 'deadline_at')}, then {word(one, 'default')}: "
                f"`rekindle approvals approve {order}` or `rekindle approvals deny {order}`"
            )
        yield f"{name}  {word(one, 'what')}: {ended}", word(one, "why")
