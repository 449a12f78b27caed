"""The Slack message of one Incident: fault, evidence, what is happening, what it needs from people. Pure.

Source of the limits: docs.slack.dev, Block Kit reference (blocks, elements, composition objects) and chat.postMessage;
of the whole message's, which that does not name: slackapi/bolt-js issue 2509 (msg_blocks_too_long, 13,172 characters).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from chalicelib.channels.address import in_console
from chalicelib.channels.slack.figures import figures, in_words, page_link
from chalicelib.channels.slack.text import Element, code, escape, markup, moment, plain, verbatim
from chalicelib.domain.model.approvals import Approval, ApprovalAnswer, Guard
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.known import Known
from chalicelib.domain.notices.threads import LatestNotice
from chalicelib.domain.reporting.ledger import IncidentLedger
from chalicelib.domain.reporting.sentence import HAPPENING
from chalicelib.ports.notices import Address
from rekindle.protocol.addresses import is_address

MAX_HEADER_CHARS: Final = 150
MAX_SECTION_CHARS: Final = 3000
MAX_MESSAGE_CHARS: Final = 12_500  # of all blocks as JSON
MAX_NOTIFICATION_CHARS: Final = 600  # `text` beside blocks is what a phone shows

MAX_EVIDENCE: Final = 3
MAX_APPROVALS: Final = 3
_NOTICE_CHARS: Final = 900
_LINE_CHARS: Final = 300
_SHORT_CHARS: Final = 160
_SHORTEST_CHARS: Final = 150
_MAX_PASTED: Final = 7
_COMMAND_CHARS: Final = 600
_PASTE_CHARS: Final = 1500  # of all of them


class Button(StrEnum):
    """The buttons, by their `action_id`."""

    APPROVE = "rekindle_approve"
    DENY = "rekindle_deny"
    CANCEL = "rekindle_cancel"
    PAUSE = "rekindle_pause"
    RESUME = "rekindle_resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What chat.postMessage and chat.update take. `text` is what notifications and screen readers get."""

    text: str
    blocks: tuple[Element, ...]


_SIGN: Final = {Phase.RECOVERED: "✅", Phase.STOPPED: "⬛", Phase.HANDED_OVER: "🟠"}
_OPEN_SIGN: Final = "🔴"
_ASKS_SIGN: Final = "✋"


def name_of(incident: Incident) -> str:
    """What the Incident is about, for people: the Job, else the node, else the cluster."""
    if incident.job_id is not None:
        return incident.job_id
    cluster = (incident.cluster or "").rsplit("/", 1)[-1]
    return f"{incident.node} ({cluster})" if incident.node else cluster or "nothing named"


def headline(incident: Incident) -> str:
    """One line: what, where, how it stands."""
    fault = incident.fault.value.replace("_", " ")
    return f"{sign_of(incident)} {name_of(incident)}: {fault}, {incident.phase.value.replace('_', ' ')}"


def sign_of(incident: Incident) -> str:
    """Beside the words, never instead of them."""
    if incident.is_open and any(item.is_pending for item in incident.approvals):
        return _ASKS_SIGN
    return _SIGN.get(incident.phase, _OPEN_SIGN)


def incident_message(
    incident: Incident,
    *,
    latest: LatestNotice | None,
    can_press: bool,
    ledger: IncidentLedger | None = None,
    console_url: str = "",
    address: Address | None = None,
) -> Message:
    """The Incident's one message. Without `can_press` it has no buttons, but says how to answer.

    `ledger`: what a closed Incident took and cost. `console_url`: where the user serves a console, if anywhere;
    `address`: where the Incident can be looked at without one.
    """
    pending = tuple(item for item in incident.approvals if item.is_pending) if incident.is_open else ()
    blocks: list[Element] = [
        {"type": "header", "text": plain(headline(incident), MAX_HEADER_CHARS)},
        _fields(incident),
    ]
    blocks += _evidence(incident)
    blocks += _happening(incident, latest)
    blocks += _asked(incident, pending, can_press=can_press)
    blocks += [_answered(item) for item in incident.approvals[-MAX_APPROVALS:] if item.answer is not None]
    if can_press and incident.is_open:
        blocks.append(_order_buttons(incident))
    if ledger is not None:
        blocks += figures(ledger)
    blocks += _paste(latest)
    blocks += _footer(incident, console_url, address)
    what = f" It needs an answer: may Rekindle {pending[0].what}?" if pending else ""
    counted = in_words(ledger) if ledger is not None else ""
    figured = f" {counted[0].upper()}{counted[1:]}." if counted else ""
    text = escape(f"{headline(incident)}. {HAPPENING[incident.phase]}{figured}{what}", MAX_NOTIFICATION_CHARS)
    return Message(text=text, blocks=fitted(blocks))


def reply_message(
    title: str, text: str, *, paste: Sequence[tuple[str, str]] = (), late_of: datetime | None = None
) -> Message:
    """A notice in full, for the thread or without an Incident. `late_of`: when it was sent first, if it is late."""
    blocks: list[Element] = [_section(title, _LINE_CHARS)]
    if late_of is not None:
        blocks.append(_context(markup(f"late: sent {moment(late_of)}; what stands above may be newer")))
    if text.strip() and text.strip() != title.strip():
        blocks.append(_section(text, MAX_SECTION_CHARS))
    blocks += _paste_lines(paste)
    return Message(text=escape(title, MAX_NOTIFICATION_CHARS), blocks=fitted(blocks))


def approval_blocks(incident: Incident, approval: Approval, *, can_press: bool) -> list[Element]:
    """One question with its buttons."""
    by_default = "approved" if approval.default is ApprovalAnswer.APPROVED else "denied"
    until = f"Until {moment(approval.deadline_at)}; without an answer it counts as *{by_default}*."
    asked = f"May Rekindle {approval.what}?"
    blocks = [_section(asked, _LINE_CHARS), _context(plain(approval.why, _SHORT_CHARS), markup(until))]
    if not can_press:
        order = f"rekindle approvals approve {incident.incident_id} {approval.approval_id}"
        return [*blocks, _context(markup(f"Answer with {code(order, 200)} or `rekindle approvals deny …`"))]
    value = value_of(incident.incident_id, approval.approval_id)
    held = _held_now(incident, besides=approval.key)
    done = f"Held now by {held}: done once that lets go. {asked}" if held else f"{asked} Approved, it does so at once."
    left = "It is not done: this Incident is closed, and everything is left as it is."
    approve = _button(Button.APPROVE, "Approve", value, style="primary", ask="Approve this?", more=done, yes="Approve")
    deny = _button(Button.DENY, "Deny", value, style="danger", ask="Deny this?", more=left, yes="Deny")
    return [*blocks, {"type": "actions", "elements": [approve, deny]}]


def _held_now(incident: Incident, *, besides: str) -> str:
    """What holds the Incident's next step, besides the question itself, as it was last observed."""
    guards = [hold.guard.value for hold in incident.holds if hold.until is None and hold.guard is not Guard.APPROVAL]
    names = dict.fromkeys([*(["pause"] if incident.paused_since is not None else []), *guards])
    return ", ".join(name.replace("_", " ") for name in names if name != besides)


def value_of(incident_id: str, approval_id: str = "") -> str:
    """A button's value: what it is about. `read_value` is the inverse."""
    return json.dumps({"i": incident_id, "a": approval_id}, separators=(",", ":"))


def read_value(value: str) -> tuple[str, str]:
    """Incident and Approval of a button's value. Raises ValueError for anything that is not ours."""
    body = json.loads(value)
    if not isinstance(body, dict) or set(body) != {"i", "a"} or not all(isinstance(v, str) for v in body.values()):
        raise ValueError("is not a value of ours")
    return body["i"], body["a"]


def fitted(blocks: Iterable[Element]) -> tuple[Element, ...]:
    """The blocks within what one message may weigh: the longest texts are cut first, and no block is left out.

    The makers above bound what they make, so that short texts everywhere always fit (a test tries the worst).
    """
    kept = list(blocks)
    while _weight(kept) > MAX_MESSAGE_CHARS:
        wordy = [index for index, block in enumerate(kept) if _is_wordy(block)]
        longest = max(wordy, key=lambda index: len(kept[index]["text"]["text"]), default=None)
        words = "" if longest is None else kept[longest]["text"]["text"]
        if longest is None or len(words) <= _SHORTEST_CHARS:
            break
        cut = words[: len(words) // 2]
        # Already escaped: an entity that was cut in two would show as it is.
        text = cut[: cut.rfind("&")] if "&" in cut[-6:] else cut
        kept[longest] = {**kept[longest], "text": {**kept[longest]["text"], "text": text + "…"}}
    return tuple(kept)


def _is_wordy(block: Element) -> bool:
    return bool(block["type"] == "section" and block.get("text", {}).get("type") == "plain_text")


def _weight(blocks: Sequence[Element]) -> int:
    return len(json.dumps(blocks, ensure_ascii=False))


def _fields(incident: Incident) -> Element:
    rows = [
        ("About", name_of(incident)),
        ("Fault", incident.fault.value.replace("_", " ")),
        ("State", incident.phase.value.replace("_", " ")),
    ]
    if incident.node and incident.job_id is not None:
        rows.append(("Node", incident.node))
    if incident.attempt:
        rows.append(("Attempt", incident.attempt))
    tries = len(incident.repair.steps) if incident.repair else len(incident.resubmission.tries)
    if tries:
        rows.append(("Tries", str(tries)))
    if isinstance(incident.target_step, Known):
        rows.append(("Must pass step", str(incident.target_step.value)))
    fields = [markup(f"*{label}*\n{code(value, 90)}") for label, value in rows]
    fields.append(markup(f"*Since*\n{moment(incident.opened_at)}"))
    return {"type": "section", "fields": fields[:10]}


def _evidence(incident: Incident) -> list[Element]:
    newest = incident.signals[-MAX_EVIDENCE:]
    if not newest:
        return []
    blocks = [_context(markup("*Evidence*"))]
    blocks += [_context(markup(moment(item.occurred_at)), plain(item.summary, _SHORT_CHARS)) for item in newest]
    if incident.evidence.conclusion:
        blocks.append(_section(incident.evidence.conclusion, _LINE_CHARS))
    return blocks


def _happening(incident: Incident, newest: LatestNotice | None) -> list[Element]:
    blocks = [_section_of_ours(f"*What is happening*\n{HAPPENING[incident.phase]}")]
    if newest is not None:
        blocks.append(_context(markup(moment(newest.at)), plain(newest.title, _LINE_CHARS)))
        if newest.text.strip() != newest.title.strip():
            blocks.append(_section(newest.text, _NOTICE_CHARS))
    held = [hold for hold in incident.holds if hold.until is None] if incident.is_open else []
    return blocks + [
        _context(markup(f"⏸ held back by *{hold.guard.value.replace('_', ' ')}*"), plain(hold.text, _SHORT_CHARS))
        for hold in held[-2:]
    ]


def _asked(incident: Incident, pending: Sequence[Approval], *, can_press: bool) -> list[Element]:
    if not pending:
        return []
    blocks: list[Element] = [{"type": "divider"}, _section_of_ours("*What it needs from you*")]
    for approval in pending[:MAX_APPROVALS]:
        blocks += approval_blocks(incident, approval, can_press=can_press)
    if len(pending) > MAX_APPROVALS:
        blocks.append(_context(markup(f"and {len(pending) - MAX_APPROVALS} more: `rekindle approvals`")))
    return blocks


def _answered(approval: Approval) -> Element:
    text = "approved" if approval.answer is ApprovalAnswer.APPROVED else "denied"
    when = f" {moment(approval.answered_at)}" if approval.answered_at else ""
    by = code(approval.by or "a person who is not named", 120)
    return _context(markup(f"*{text}* by {by}{when}"), plain(approval.what, 200))


def _order_buttons(incident: Incident) -> Element:
    value = value_of(incident.incident_id)
    cancel = _button(
        Button.CANCEL,
        "Cancel this recovery",
        value,
        style="danger",
        ask="Cancel this recovery?",
        more="What has been done stays done; nothing more is done about this Incident.",
        yes="Cancel it",
        no="Go on",
    )
    if incident.paused_since is not None:
        lift = _button(
            Button.RESUME,
            "Lift the pause",
            value,
            ask="Lift the global pause?",
            more="Recoveries of all Jobs go on.",
            yes="Lift",
        )
        return {"type": "actions", "elements": [cancel, lift]}
    pause = _button(
        Button.PAUSE,
        "Pause all recoveries",
        value,
        ask="Pause all recoveries?",
        more="Rekindle continues watching every Job, and does nothing to any until the pause is lifted.",
        yes="Pause all",
    )
    return {"type": "actions", "elements": [cancel, pause]}


def _paste(newest: LatestNotice | None) -> list[Element]:
    return _paste_lines(newest.paste) if newest is not None else []


def _paste_lines(paste: Sequence[tuple[str, str]]) -> list[Element]:
    """Commands whole or not at all, and what is to be opened as links; `rekindle show` has what does not fit."""
    lines: list[str] = []
    for label, what in paste[:_MAX_PASTED]:
        command = verbatim(what, _COMMAND_CHARS)
        if is_address(label, what):
            lines.append(f"<{what.replace('&', '&amp;')}|{escape(label, 400)}>")
        elif command is not None:
            lines.append(f"{escape(label, 80).replace('*', '')}: {command}")
        if sum(map(len, lines)) > _PASTE_CHARS:
            lines.pop()
    return [_section_of_ours("\n".join(lines))] if lines else []


def _footer(incident: Incident, console_url: str, address: Address | None) -> list[Element]:
    """Where the whole story is; of a closed Incident the post-mortem too. The page's link is a block of its own."""
    page = page_link(console_url, incident.incident_id, address)
    parts = [code(f"rekindle show {incident.incident_id}", 120)]
    if address is not None and not in_console(console_url, incident.incident_id):
        parts.append(code(address.command, 160))
    if not incident.is_open:
        parts.append(code(f"rekindle ledger postmortem {incident.incident_id}", 120))
    footer = _context(markup("  ·  ".join([*parts, f"change {incident.version}"])))
    return [_section_of_ours(page), footer] if page else [footer]


def _section(words: str, limit: int) -> Element:
    return {"type": "section", "text": plain(words, limit)}


def _section_of_ours(words: str) -> Element:
    return {"type": "section", "text": markup(words)}


def _context(*elements: Element) -> Element:
    return {"type": "context", "elements": list(elements)}


def _button(
    press: Button, label: str, value: str, *, ask: str, more: str, yes: str, no: str = "Back", style: str | None = None
) -> Element:
    button: dict[str, Any] = {
        "type": "button",
        "action_id": press.value,
        "text": plain(label, 75),
        "value": value,
        "confirm": {
            "title": plain(ask, 100),
            "text": plain(more, 200),
            "confirm": plain(yes, 30),
            "deny": plain(no, 30),
        },
    }
    if style is not None:
        button["style"] = style
        button["confirm"]["style"] = style
    return button
