"""Reading the API's answers without trusting their shape: a newer or older service must not end in a traceback."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rekindle.compat import UTC, from_iso

NOTHING = "-"


def member(body: Any, *names: str) -> Any:
    """The member at this path, None where anything on the way is missing or no object."""
    for name in names:
        if not isinstance(body, Mapping):
            return None
        body = body.get(name)
    return body


def objects(body: Any, *names: str) -> list[Mapping[str, Any]]:
    """The objects in the list at this path; an empty list where there is none."""
    found = member(body, *names)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def texts(body: Any, *names: str) -> list[str]:
    """A list's members as text; empty where there is none."""
    found = member(body, *names)
    return [str(item) for item in found] if isinstance(found, list) else []


def word(body: Any, *names: str) -> str:
    """The member as text, a dash where there is none."""
    value = member(body, *names)
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def step(body: Any, *names: str) -> str:
    """A step that is known, or not: `{"known": 7}` is 7, `{"unknown": why}` says why."""
    value = member(body, *names)
    if isinstance(value, Mapping):
        if "known" in value:
            return str(value["known"])
        return f"unknown ({value.get('unknown', 'no reason given')})"
    return NOTHING


def short_step(body: Any, *names: str) -> str:
    """As `step`, for a column: a question mark where it is unknown."""
    value = member(body, *names)
    return str(value["known"]) if isinstance(value, Mapping) and "known" in value else "?"


def windows(value: Any) -> str:
    """Step windows as people type them: `100:120 300:310`."""
    pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2] if isinstance(value, list) else []
    return " ".join(f"{low}:{high}" for low, high in pairs)


def bad_steps(incident: Any) -> list[tuple[str, int, int | None]]:
    """Steps of an attempt, [from, to), whose checkpoints are not resumed from, because the loss was bad there; `to` is
    None where they go on. What a newer service says behind these three is left out.
    """
    found = member(incident, "loss", "stretches")
    rows = [row[:3] for row in found if isinstance(row, list) and len(row) >= 3] if isinstance(found, list) else []
    return [
        (str(attempt), low, high if isinstance(high, int) else None)
        for attempt, low, high in rows
        if isinstance(low, int)
    ]


def moment(body: Any, *names: str) -> datetime | None:
    """An aware UTC time, None where there is none that can be read."""
    value = member(body, *names)
    try:
        at = from_iso(value) if isinstance(value, str) else None
        return at.astimezone(UTC) if at is not None and at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def day_and_time(body: Any, *names: str) -> str:
    """`2026-11-20 10:00:00Z`, or a dash."""
    at = moment(body, *names)
    return f"{at:%Y-%m-%d %H:%M:%S}Z" if at is not None else NOTHING


def what_was_seen(entry: Any) -> str:
    """What an observation showed of the run, on one line; empty where it showed nothing."""
    attempt = member(entry, "facts", "attempt")
    if not isinstance(attempt, Mapping):
        return ""
    if "unknown" in attempt:
        return f"nothing, {attempt['unknown']}"
    parts = [f"{word(attempt, 'name')} {word(attempt, 'status')}"]
    if member(attempt, "last_step", "known") is not None:
        parts.append(f"at step {short_step(attempt, 'last_step')}")
    if word(attempt, "loss_state") in ("nan", "inf"):
        parts.append(f"loss {word(attempt, 'loss_state')}")
    if member(attempt, "loss_health") is not None:
        parts.append(f"loss {word(attempt, 'loss_health')}")
    reason = word(entry, "facts", "failure_reason")
    return ", ".join(parts) + (f"; failed: {reason}" if reason != NOTHING else "")
