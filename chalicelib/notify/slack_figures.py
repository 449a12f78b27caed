"""What a closed Incident took and cost, as the last block of its Slack message. Pure.

The figures are the ledger's, under its names (rekindle.quantities); what is not known says so, and is never a zero.
"""

from __future__ import annotations

import re
from typing import Final

from chalicelib.domain.known import Known, Maybe
from chalicelib.domain.ledger import IncidentLedger
from chalicelib.notify.slack_text import Element, escape, markup, plain
from rekindle.quantities import heading

_MAX_WHY_CHARS: Final = 120
# A link of ours into the user's own console; an Incident's id is made of the same signs.
CONSOLE: Final = re.compile(r"https://[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]{0,300})?\Z")
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")


def figures(ledger: IncidentLedger) -> tuple[Element, ...]:
    """The block of figures, and why those that are missing are not known."""
    took = "mttr_s" if isinstance(ledger.mttr_s, Known) else "elapsed_s"
    rows: tuple[tuple[str, Maybe[float], str], ...] = (
        (took, ledger.mttr_s if took == "mttr_s" else ledger.elapsed_s, "duration"),
        ("steps_lost", ledger.steps_lost, "{:,.0f}"),
        ("gpu_hours_lost", ledger.gpu_hours_lost, "{:,.1f}"),
        ("dollars_lost", ledger.dollars_lost, "{:,.2f}"),
    )
    fields = [markup(f"*{heading(name)}*\n{_worth(value, form)}") for name, value, form in rows]
    missing = dict.fromkeys(value.why for _, value, _ in rows if not isinstance(value, Known))
    why = [plain(text, _MAX_WHY_CHARS) for text in list(missing)[:3]]
    return (
        {"type": "section", "fields": fields},
        *([{"type": "context", "elements": [markup("Not known, because:"), *why]}] if why else []),
    )


def in_words(ledger: IncidentLedger) -> str:
    """The same for the one line that a phone shows: what is known alone."""
    parts = []
    if isinstance(ledger.mttr_s, Known):
        parts.append(f"recovered in {duration(ledger.mttr_s.value)}")
    if isinstance(ledger.steps_lost, Known):
        parts.append(f"{ledger.steps_lost.value:,} steps lost")
    if isinstance(ledger.dollars_lost, Known):
        parts.append(f"{ledger.dollars_lost.value:,.2f} US dollars lost")
    return ", ".join(parts)


def link(console_url: str, incident_id: str) -> str:
    """The Incident's page as a link of Slack's; empty where no address is set, or one of both cannot be shown so."""
    address = f"{console_url.rstrip('/')}/incidents/{incident_id}"
    if not console_url or not CONSOLE.match(console_url) or not _ID.match(incident_id):
        return ""
    return f"<{address}|This Incident in the console>"


def duration(seconds: float) -> str:
    """12 s, 4 min 5 s, 2 h 10 min, 3 d 4 h."""
    whole = round(seconds)
    for unit, size, lower, small in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {lower}" if rest else "")
    return f"{whole} s"


def _worth(value: Maybe[float], form: str) -> str:
    if not isinstance(value, Known):
        return "not known"
    return escape(duration(value.value) if form == "duration" else form.format(value.value), 60)
