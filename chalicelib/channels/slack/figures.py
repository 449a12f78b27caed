"""What a closed Incident took and cost, as the last block of its Slack message. Pure.

The figures are the ledger's, under its names (rekindle.protocol.quantities). An unknown figure is shown as unknown.
"""

from __future__ import annotations

import re
from typing import Final

from chalicelib.channels.address import in_console
from chalicelib.channels.slack.text import Element, escape, markup, moment, plain
from chalicelib.domain.model.known import Known, Maybe
from chalicelib.domain.reporting.ledger import IncidentLedger
from chalicelib.ports.notices import Address
from rekindle.protocol.quantities import amount, heading

_MAX_WHY_CHARS: Final = 120
# Signed, as S3's clients make it: no character that ends a link of Slack's. It is long: it carries a session's token.
_SIGNED: Final = re.compile(r"https?://[A-Za-z0-9.:-]{1,300}/[A-Za-z0-9/._~%?&=+-]{1,2600}\Z")


def figures(ledger: IncidentLedger) -> tuple[Element, ...]:
    """The block of figures, and why those that are missing are not known."""
    rows = ledger.named(ledger.took, "steps_lost", "gpu_hours_lost", "dollars_lost")
    fields = [markup(f"*{heading(name)}*\n{_worth(name, value)}") for name, value in rows]
    missing = dict.fromkeys(value.why for _, value in rows if not isinstance(value, Known))
    why = [plain(text, _MAX_WHY_CHARS) for text in list(missing)[:3]]
    return (
        {"type": "section", "fields": fields},
        *([{"type": "context", "elements": [markup("Not known, because:"), *why]}] if why else []),
    )


def in_words(ledger: IncidentLedger) -> str:
    """The same for the one line that a phone shows: what is known alone."""
    words = {"mttr_s": "recovered in {}", "steps_lost": "{} steps lost", "dollars_lost": "{} US dollars lost"}
    parts = [
        words[name].format(amount(name, value.value))
        for name, value in ledger.named(*words)
        if isinstance(value, Known)
    ]
    return ", ".join(parts)


def page_link(console_url: str, incident_id: str, address: Address | None) -> str:
    """The Incident's page as a link of Slack's: the user's own console, else a signed link and when it ends.

    Empty where there is neither, or one that cannot be shown so.
    """
    console = in_console(console_url, incident_id)
    if console:
        return f"<{console}|This Incident in the console>"
    if address is None or not _SIGNED.match(address.url):
        return ""
    ends = f" (opens for anyone who has it, until {moment(address.until)} at the latest)" if address.until else ""
    return f"<{address.url.replace('&', '&amp;')}|This Incident's page>{ends}"


def _worth(name: str, value: Maybe[float]) -> str:
    return escape(amount(name, value.value), 60) if isinstance(value, Known) else "not known"
