"""The answers to `/rekindle` slash commands, which only the person who gave the command sees. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from chalicelib.channels.slack.blocks import Message, headline
from chalicelib.channels.slack.text import Element, code, escape, markup, moment, plain
from chalicelib.domain.model.incident import Incident

MAX_ROWS: Final = 10
HELP: Final = (
    "`/rekindle status`  the state of the service\n"
    "`/rekindle incidents`  the newest open Incidents\n"
    "`/rekindle pause why`  do nothing to any Job until it is lifted\n"
    "`/rekindle resume`  lift the pause\n"
    "`/rekindle help`  this"
)


def ephemeral(message: Message) -> dict[str, Any]:
    """The body of an answer that only the person who asked sees, and that does not replace the message asked from."""
    return {
        "response_type": "ephemeral",
        "replace_original": False,
        "text": message.text,
        **({"blocks": list(message.blocks)} if message.blocks else {}),
    }


def text_message(text: str) -> Message:
    """A sentence as plain text: it may hold other people's words, which must not become markup."""
    return Message(text=escape(text, 1000), blocks=({"type": "section", "text": plain(text, 1000)},))


def help_message() -> Message:
    """The list of commands."""
    return Message(text="What Rekindle understands", blocks=(_section(HELP),))


def status_message(
    switches: Mapping[str, Any], *, open_count: int, active_jobs: int, newest: Sequence[Incident]
) -> Message:
    """The state of the service: pause, shadow mode, breaker, how many Incidents are open, and the newest ones."""
    text = f"{active_jobs} Jobs are protected, {open_count} Incidents are open"
    blocks: list[Element] = [{"type": "section", "text": plain(text, 200)}]
    if switches.get("paused"):
        why = f": {switches['paused_why']}" if switches.get("paused_why") else ""
        blocks.append(_context(f"⏸ paused by {code(str(switches.get('paused_by') or '-'), 130)}", why))
    shadow = switches.get("shadow") or {}
    if shadow.get("everywhere"):
        blocks.append(_context("👥 shadow mode everywhere: everything is decided and notified, nothing is done"))
    elif shadow.get("jobs") or shadow.get("clusters"):
        names = ", ".join([*map(str, shadow.get("jobs") or ()), *map(str, shadow.get("clusters") or ())])
        blocks.append(_context("👥 shadow mode for", names))
    if (switches.get("breaker") or {}).get("open"):
        blocks.append(_context("⚡ the breaker has tripped: nothing is done until a person lifts it"))
    blocks += _rows(newest[:3])
    return Message(text=escape(text, 300), blocks=tuple(blocks))


def incidents_message(incidents: Sequence[Incident], *, open_count: int) -> Message:
    """The newest open Incidents, and where the others are."""
    if not incidents:
        return text_message("No Incident is open.")
    text = f"{open_count} Incidents are open" if open_count != 1 else "1 Incident is open"
    blocks = [_section(f"*{text}*"), *_rows(incidents[:MAX_ROWS])]
    left = open_count - min(len(incidents), MAX_ROWS)
    if left > 0:
        blocks.append(_context(f"and {left} more: `rekindle incidents` in a shell, or the console"))
    return Message(text=text, blocks=tuple(blocks))


def _rows(incidents: Sequence[Incident]) -> list[Element]:
    return [
        {
            "type": "context",
            "elements": [
                plain(headline(incident), 200),
                markup(f"{code(incident.incident_id, 80)}  ·  since {moment(incident.opened_at)}"),
            ],
        }
        for incident in incidents
    ]


def _context(trusted: str, untrusted: str = "") -> Element:
    """A small line: markup of ours, then other people's words as plain text."""
    elements = [markup(trusted)]
    if untrusted.strip():
        elements.append(plain(untrusted, 300))
    return {"type": "context", "elements": elements}


def _section(text: str) -> Element:
    return {"type": "section", "text": markup(text)}
