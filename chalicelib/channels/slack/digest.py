"""The digest: one Slack message for many Incidents, while they open too fast for a message each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from chalicelib.channels.slack.blocks import MAX_HEADER_CHARS, Message, approval_blocks, fitted, headline
from chalicelib.channels.slack.text import Element, escape, markup, moment, plain
from chalicelib.domain.model.incident import Incident, Phase

MAX_LINES: Final = 8  # Incidents listed per group
MAX_APPROVALS: Final = 3
_MAX_COUNTS: Final = 8  # lines per column of counts


def digest_message(incidents: Sequence[Incident], *, began_at: datetime, can_press: bool) -> Message:
    """All `incidents` of a storm: counts, faults and phases, the newest, pending approvals, where the full list is.

    `began_at`: when the storm began. `can_press`: whether approvals have buttons.
    """
    still_open = [incident for incident in incidents if incident.is_open]
    pending = [
        (incident, approval) for incident in still_open for approval in incident.approvals if approval.is_pending
    ]
    # Closed as Incidents, but not solved: the service does nothing more, so a person must.
    handed_over = [incident for incident in incidents if incident.phase is Phase.HANDED_OVER]
    closed = len(incidents) - len(still_open) - len(handed_over)
    person = f", {len(handed_over)} need a person" if handed_over else ""
    title = f"⛈ {len(incidents)} Incidents at once: {len(still_open)} open{person}, {closed} closed"
    blocks: list[Element] = [
        {"type": "header", "text": plain(title, MAX_HEADER_CHARS)},
        _context(markup(f"since {moment(began_at)}; this message is kept up to date")),
    ]
    faults = Counter(incident.fault.value.replace("_", " ") for incident in incidents)
    phases = Counter(incident.phase.value.replace("_", " ") for incident in incidents)
    if incidents:
        blocks.append(_counts(("By fault", faults), ("By state", phases)))
    if handed_over:
        blocks += [_section("*Needs a person*"), *_lines(handed_over, "more: `rekindle incidents --closed`")]
        blocks.append(_section("*Open*") if still_open else {"type": "divider"})
    blocks += _lines(still_open, "more that are open")
    if pending:
        blocks += [{"type": "divider"}, _section("*What it needs from you*")]
        for incident, approval in pending[:MAX_APPROVALS]:
            blocks += approval_blocks(incident, approval, can_press=can_press)
        if len(pending) > MAX_APPROVALS:
            blocks.append(_context(markup(f"and {len(pending) - MAX_APPROVALS} more: `rekindle approvals`")))
    blocks.append(
        _section("The whole list: `/rekindle incidents` here, `rekindle incidents` in a shell, or the console.")
    )
    return Message(text=escape(title, 300), blocks=fitted(blocks))


def _lines(incidents: Sequence[Incident], more: str) -> list[Element]:
    """The newest MAX_LINES Incidents, a line each, then "and N `more`" where there are more."""
    newest = sorted(incidents, key=lambda incident: (incident.opened_at, incident.incident_id), reverse=True)
    lines = [_context(plain(headline(incident), 150)) for incident in newest[:MAX_LINES]]
    if len(newest) > MAX_LINES:
        lines.append(_context(markup(f"and {len(newest) - MAX_LINES} {more}")))
    return lines


def _counts(*columns: tuple[str, Counter[str]]) -> Element:
    """Columns of counts, each under its label, the most frequent first."""
    fields = []
    for label, counts in columns:
        lines = [f"{count} × {name}" for name, count in counts.most_common(_MAX_COUNTS)]
        fields.append(markup(f"*{label}*\n" + "\n".join(lines)))
    return {"type": "section", "fields": fields}


def _context(element: Element) -> Element:
    return {"type": "context", "elements": [element]}


def _section(text: str) -> Element:
    return {"type": "section", "text": markup(text)}
