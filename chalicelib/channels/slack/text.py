"""Other people's words in Slack's text: job names, log lines and comments come out as the characters they are.

Source: docs.slack.dev, formatting message text: `&`, `<` and `>` are the control characters, and the only ones to be
written as entities; everything that links, mentions or pings is spelled with `<…>`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

_ENTITIES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# Clients turn a bare @channel into a ping where a message asks for names to be linked. None of ours does; the joiner
# makes sure that none ever will. It has no width.
_PINGS: Final = re.compile(r"@(?=(?:channel|here|everyone|group)\b)", re.IGNORECASE)
_JOINER: Final = "\u2060"
# C0, C1 and what reorders or hides text: a job's name must not make the line around it read otherwise.
_HIDDEN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")

Element = dict[str, Any]


def escape(text: str, limit: int) -> str:
    """`text` as Slack shows it verbatim, at most `limit` characters as sent; an entity is never cut in two."""
    clean = _PINGS.sub("@" + _JOINER, _HIDDEN.sub("", text))
    room, pieces, used = limit - 1, [], 0
    for index, char in enumerate(clean):
        piece = _ENTITIES.get(char, char)
        if used + len(piece) > room:
            rest = "".join(_ENTITIES.get(later, later) for later in clean[index : index + 2])
            if used + len(rest) <= limit and len(clean) - index <= 2:
                pieces.append(rest)
            else:
                pieces.append("…")
            break
        pieces.append(piece)
        used += len(piece)
    return "".join(pieces)


def plain(text: str, limit: int) -> Element:
    """A text object that knows no formatting at all; for words that are not ours."""
    return {"type": "plain_text", "text": escape(_HIDDEN.sub("", text).strip() or "-", limit), "emoji": False}


def markup(text: str) -> Element:
    """A text object of our own words. `verbatim`: Slack makes no links of addresses, channels or names in it."""
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def code(text: str, limit: int) -> str:
    """Other people's words as code, for use within `markup`: one line, and no way out of the backticks."""
    line = " ".join(_HIDDEN.sub("", text).replace("`", "'").split())
    return f"`{escape(line or '-', limit)}`"


def verbatim(text: str, limit: int) -> str | None:
    """A command as code for use within `markup`, exactly as it is; None where Slack cannot show it so.

    A command that was changed or cut is worse than none: a quotation mark in place of a backtick would end the quotes
    that keep a person's name from being a mention.
    """
    exact = "`" + "".join(_ENTITIES.get(char, char) for char in text) + "`"
    return exact if text and exact == code(text, limit) else None


def moment(at: datetime) -> str:
    """A time for use within `markup`: each reader sees it in their own zone, UTC where a client cannot."""
    utc = at.astimezone(UTC)
    return f"<!date^{int(utc.timestamp())}^{{date_short}} {{time_secs}}|{utc:%Y-%m-%d %H:%M:%S} UTC>"
