"""A notice as plain text, for channels that show nothing else (Apprise and what it reaches). Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from chalicelib.ports.notices import Notice, NoticeKind

MAX_TITLE_CHARS: Final = 200
MAX_BODY_CHARS: Final = 4000  # what most services show; the whole is in the Incident
SHORTEST_TEXT_CHARS: Final = 120
LATE: Final = timedelta(minutes=2)  # a first delivery and its first repetitions take less

# What services that show plain text still act on: a mention that notifies people (Discord, Slack, Teams: @everyone,
# @here, <@id>, <!channel>), and a link under another name (Slack's <address|name>, Markdown's). Job names and log lines
# are other people's words, so each is broken up by a joiner, which has no width.
_MARKUP: Final = re.compile(
    r"@(?=(?:channel|here|everyone|group|all)\b)|(?<=<)(?=[@!#])|(?<=\])(?=\()|(?<=<)(?=https?:)", re.IGNORECASE
)
_JOINER: Final = "\u2060"
# Controls but the line end, and what reorders or hides text.
_HIDDEN: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def title_of(notice: Notice, *, now: datetime) -> str:
    """The title in one line. A late notice says so, since it may arrive after a newer one."""
    late = f" (late: of {_clock(notice.at, now)})" if is_late(notice, now=now) else ""
    return _inert(" ".join(f"[{notice.severity}]{late} {notice.title}".split())[:MAX_TITLE_CHARS])


def is_late(notice: Notice, *, now: datetime) -> bool:
    """Whether its channel did not accept it when it was first sent."""
    return now - notice.at > LATE


def body_of(notice: Notice, *, now: datetime, limit: int = MAX_BODY_CHARS) -> str:
    """What happened, about which Job and Incident, and the next commands, in at most `limit` characters.

    Where that is too much, the text of what happened is cut first, to SHORTEST_TEXT_CHARS; then commands are left out
    from the last, so that `rekindle show` stays.
    """
    facts = [f"{label}: {value}" for label, value in _facts(notice, now) if value]
    rest = []
    if notice.kind is NoticeKind.APPROVAL:
        asked = f"{notice.incident_id} {notice.approval_id}"
        rest.append(f"To answer: rekindle approvals approve {asked} (or: rekindle approvals deny)")
    rest += [f"{label}: {what}" for label, what in notice.paste]
    text, room = _inert(notice.text), min(limit, MAX_BODY_CHARS)
    least = min(len(text), SHORTEST_TEXT_CHARS)
    # A link is there whole or not at all: a signed one has some 1,500 characters.
    candidates = [[*facts, *page, *rest] for page in _pages(notice, now)]
    fits = (lines for lines in candidates if least + 2 + len(_inert("\n".join(lines))) <= room)
    lines = next(fits, candidates[-1])
    tail = _inert("\n".join(lines))
    while lines and least + 2 + len(tail) > room:
        lines.pop()
        tail = _inert("\n".join(lines))
    left = max(room - len(tail) - 2, 0)
    shown = text if len(text) <= left else text[: max(left - 1, 0)] + "…"
    return f"{shown}\n\n{tail}"


def _pages(notice: Notice, now: datetime) -> list[list[str]]:
    """The lines about the Incident's page, in forms from the longest to the shortest; the first that fits is used."""
    address = notice.address
    if address is None:
        return [[]]
    brief = f"Page: {address.command}"
    if not address.url:
        return [[brief]]
    ends = (
        f"opens for anyone who has it, until {_clock(address.until, now)} at the latest; then"
        if address.until
        else "or"
    )
    return [[f"Page: {address.url}", f"({ends}: {address.command})"], [brief]]


def _facts(notice: Notice, now: datetime) -> list[tuple[str, str | None]]:
    return [
        ("Job", notice.job_id),
        ("Incident", notice.incident_id),
        ("Cluster", notice.cluster),
        ("Node", notice.node),
        ("Sent", _clock(notice.at, now)),
    ]


def _clock(at: datetime, now: datetime) -> str:
    utc = at.astimezone(UTC)
    return f"{utc:%H:%M:%S} UTC" if utc.date() == now.astimezone(UTC).date() else f"{utc:%Y-%m-%d %H:%M:%S} UTC"


def _inert(text: str) -> str:
    """The same words, in which nothing is a mention, a disguised link or a hidden character."""
    return _MARKUP.sub(lambda found: found[0] + _JOINER, _HIDDEN.sub("", text))
