"""A notice as plain text, for channels that show one. Pure."""

from __future__ import annotations

import re
from typing import Final

from chalicelib.ports import Notice, NoticeKind

MAX_TITLE_CHARS: Final = 200
MAX_BODY_CHARS: Final = 4000  # what most services show; the whole is in the Incident

# What services that show plain text still act on: a mention that pings everybody or somebody (Discord, Slack, Teams:
# @everyone, @here, <@id>, <!channel>), a link under another name (Slack's <address|name>, Markdown's). Job names and
# log lines are other people's words. The joiner has no width.
_PINGS: Final = re.compile(
    r"@(?=(?:channel|here|everyone|group|all)\b)|(?<=<)(?=[@!#])|(?<=\])(?=\()|(?<=<)(?=https?:)", re.IGNORECASE
)
_JOINER: Final = "\u2060"
# Controls but the line end, and what reorders or hides text.
_HIDDEN: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def title_of(notice: Notice) -> str:
    """One line."""
    return _calm(" ".join(f"[{notice.severity}] {notice.title}".split())[:MAX_TITLE_CHARS])


def body_of(notice: Notice) -> str:
    """What happened, whose it is, and what to paste next."""
    text = notice.text if len(notice.text) <= MAX_BODY_CHARS else notice.text[: MAX_BODY_CHARS - 1] + "…"
    facts = [
        ("Job", notice.job_id),
        ("Incident", notice.incident_id),
        ("Cluster", notice.cluster),
        ("Node", notice.node),
    ]
    lines = [text, "", *(f"{label}: {value}" for label, value in facts if value)]
    if notice.kind is NoticeKind.APPROVAL:
        lines.append(f"To answer: rekindle approve {notice.incident_id} {notice.approval_id} (or: rekindle deny)")
    lines += [f"{label}: {what}" for label, what in notice.paste]
    return _calm("\n".join(lines))


def _calm(text: str) -> str:
    """The words as they are, without a mention, a disguised link or a hidden sign."""
    return _PINGS.sub(lambda found: found[0] + _JOINER, _HIDDEN.sub("", text))
