"""How values read on a page: filters for the templates, and the last cleaning of every text that comes from outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from markupsafe import Markup

from rekindle.client import shapes
from rekindle.client.shapes import moment
from rekindle.client.table import clean
from rekindle.protocol.quantities import duration as span
from rekindle.signatures.words import action_word, fault_word

NOTHING: Final = "–"
MAX_JSON_CHARS: Final = 20_000
# Phase -> how it is shown. Every tone also has a word beside it: colour alone says nothing.
TONES: Final[Mapping[str, str]] = {
    "recovered": "good",
    "stopped": "calm",
    "handed_over": "bad",
    "holding": "wait",
    "active": "good",
    "running": "good",
    "approved": "good",
    "ok": "good",
    "alive": "good",
    "failed": "bad",
    "denied": "bad",
    "error": "bad",
    "warn": "wait",
    "unknown": "wait",
    "paused": "wait",
    "ended": "calm",
    "completed": "calm",
}


def tidy(value: Any) -> Any:
    """The last step before escaping: characters that would reverse, hide or break a text are shown as escapes.

    Line feeds stay, because long texts have them; markup of our own templates stays as it is.
    """
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return "\n".join(clean(line) for line in value.split("\n"))
    return value


def word(body: Any, *names: str) -> str:
    """The member as text, a dash where there is none."""
    text = shapes.word(body, *names)
    return NOTHING if text == shapes.NOTHING else text


def when(value: Any) -> str:
    """`2026-11-20 10:00:00Z`, or a dash."""
    at = moment({"at": value}, "at")
    return f"{at:%Y-%m-%d %H:%M:%S}Z" if at is not None else NOTHING


def clock(value: Any, of: Any = None) -> str:
    """`10:00:00Z`; with its day where that is not the day of `of`; a dash where there is none."""
    at, day = moment({"at": value}, "at"), moment({"at": of}, "at")
    if at is None:
        return NOTHING
    return f"{at:%H:%M:%S}Z" if day is None or day.date() == at.date() else f"{at:%m-%d %H:%M:%S}Z"


def stretches(value: Any) -> str:
    """Windows of steps, the last one of each in it, as the pictures name them: `100-119, 300-309`."""
    pairs = [pair for pair in value if isinstance(pair, list) and len(pair) == 2] if isinstance(value, list) else []
    return ", ".join(f"{low}-{high - 1}" for low, high in pairs if isinstance(low, int) and isinstance(high, int))


def ago(value: Any, now: datetime) -> str:
    """`3 min ago`; in the future: `in 3 min`."""
    at = moment({"at": value}, "at")
    if at is None:
        return NOTHING
    seconds = (now - at).total_seconds()
    return f"{short_span(seconds)} ago" if seconds >= 0 else f"in {short_span(-seconds)}"


def between(first: Any, last: Any) -> str:
    """How long from one time to another, or a dash."""
    begin, end = moment({"at": first}, "at"), moment({"at": last}, "at")
    return span((end - begin).total_seconds()) if begin is not None and end is not None else NOTHING


def short_span(seconds: float) -> str:
    """A duration in its largest unit."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _shown(value: Any, form: Callable[[float], str]) -> str:
    """A number in that form, or why it is not known."""
    number = known(value)
    if isinstance(number, bool) or not isinstance(number, int | float):
        return unknown(value)
    return form(number)


def duration(value: Any) -> str:
    """Seconds, known or not, for people."""
    return _shown(value, span)


def known(value: Any) -> Any:
    """The value in `{"known": …}`, a plain value as it is; None where it is unknown."""
    if isinstance(value, Mapping):
        return value.get("known")
    return value


def unknown(value: Any) -> str:
    """Why a value is not known, as the end of a sentence; a dash where no reason is given."""
    if isinstance(value, Mapping) and value.get("unknown"):
        return f"unknown ({value['unknown']})"
    return NOTHING


def figure(value: Any, digits: int = 0) -> str:
    """A number, known or not."""
    return _shown(value, lambda number: f"{number:,.{digits}f}")


def dollars(value: Any) -> str:
    """Money, known or not."""
    return _shown(value, lambda number: f"${number:,.2f}")


def percent(value: Any) -> str:
    """A share of one as per cent, known or not."""
    return _shown(value, lambda number: f"{100 * number:.1f} %")


def plain(value: Any) -> str:
    """A name of the service without its underscores."""
    return str(value or "–").replace("_", " ")


def fault(value: Any) -> str:
    """What a fault is called."""
    return fault_word(str(value or NOTHING))


def tone(value: Any) -> str:
    """How a word of the service is shown."""
    return TONES.get(str(value).lower(), "busy")


def as_json(value: Any) -> str:
    """JSON to be read; cut where it would fill the page."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return (
        text if len(text) <= MAX_JSON_CHARS else text[:MAX_JSON_CHARS] + "\n… cut here; `rekindle show --json` has all"
    )


FILTERS: Final = {
    "when": when,
    "clock": clock,
    "stretches": stretches,
    "fault": fault,
    "action": action_word,
    "ago": ago,
    "between": between,
    "duration": duration,
    "percent": percent,
    "plain": plain,
    "tone": tone,
    "as_json": as_json,
}
