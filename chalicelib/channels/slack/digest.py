"""The one message that tells of many Incidents while they come too fast for one message each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from chalicelib.channels.slack.blocks import MAX_HEADER_CHARS, Message, approval_blocks, fitted, headline
from chalicelib.channels.slack.text import Element, escape, markup, moment, plain
from chalicelib.domain.model.incident import Incident, Phase

MAX_LINES: Final = 8
MAX_APPROVALS: Final = 3
_KINDS: Final = 8


def digest_message(incidents: Sequence[Incident], *, began_at: datetime, can_press: bool) -> Message:
    """The storm as it stands: how many, which kinds, the newest, what waits for an answer, where the list is."""
    still = [incident for incident in incidents if incident.is_open]
    asked = [(incident, approval) for incident in still for approval in incident.approvals if approval.is_pending]
    # Closed, and yet not over: nothing more is done by itself.
    left = [incident for incident in incidents if incident.phase is Phase.HANDED_OVER]
    over = len(incidents) - len(still) - len(left)
    person = f", {len(left)} need a person" if left else ""
    title = f"⛈ {len(incidents)} Incidents at once: {len(still)} open{person}, {over} closed"
    blocks: list[Element] = [
        {"type": "header", "text": plain(title, MAX_HEADER_CHARS)},
        _context(markup(f"since {moment(began_at)}; this message is kept up to date")),
    ]
    faults = Counter(incident.fault.value.replace("_", " ") for incident in incidents)
    phases = Counter(incident.phase.value.replace("_", " ") for incident in incidents)
    if incidents:
        blocks.append(_counts(("By fault", faults), ("By state", phases)))
    if left:
        blocks += [_ours("*Needs a person*"), *_lines(left, "more: `rekindle incidents --closed`")]
        blocks.append(_ours("*Open*") if still else {"type": "divider"})
    blocks += _lines(still, "more that are open")
    if asked:
        blocks += [{"type": "divider"}, _ours("*What it needs from you*")]
        for incident, approval in asked[:MAX_APPROVALS]:
            blocks += approval_blocks(incident, approval, can_press=can_press)
        if len(asked) > MAX_APPROVALS:
            blocks.append(_context(markup(f"and {len(asked) - MAX_APPROVALS} more: `rekindle approvals`")))
    blocks.append(_ours("The whole list: `/rekindle incidents` here, `rekindle incidents` in a shell, or the console."))
    return Message(text=escape(title, 300), blocks=fitted(blocks))


def _lines(incidents: Sequence[Incident], more: str) -> list[Element]:
    """The newest, a line each, and how many besides."""
    newest = sorted(incidents, key=lambda incident: (incident.opened_at, incident.incident_id), reverse=True)
    lines = [_context(plain(headline(incident), 150)) for incident in newest[:MAX_LINES]]
    if len(newest) > MAX_LINES:
        lines.append(_context(markup(f"and {len(newest) - MAX_LINES} {more}")))
    return lines


def _counts(*columns: tuple[str, Counter[str]]) -> Element:
    fields = []
    for label, counts in columns:
        lines = [f"{count} × {name}" for name, count in counts.most_common(_KINDS)]
        fields.append(markup(f"*{label}*\n" + "\n".join(lines)))
    return {"type": "section", "fields": fields}


def _context(element: Element) -> Element:
    return {"type": "context", "elements": [element]}


def _ours(words: str) -> Element:
    return {"type": "section", "text": markup(words)}
