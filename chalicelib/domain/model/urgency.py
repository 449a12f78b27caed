"""The urgency and order of the notices about one Incident. Pure.

Notices travel over a bus and a queue that keep no order, and one that is tried again comes late: each says where it
stands, so that a receiver can order "recovered" after "opened", whichever arrived first.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

_DIGITS: Final = (4, 6, 3)  # generation, turn, place within the turn


class Severity(StrEnum):
    """How urgent a notice is."""

    INFO = "info"
    WARNING = "warning"
    PAGE = "page"


def sequence_of(token: str, incident_id: str) -> str:
    """Where a notice stands among its Incident's, to be compared as text: later is greater.

    `token` is an Action's, `<incident>.<generation>.<turn>.<index>`, or a change's, `….<turn>.change`, which comes
    before the Actions of its turn. Empty for a token of another form.
    """
    generation, _, rest = token.removeprefix(f"{incident_id}.").partition(".")
    turn, _, last = rest.partition(".")
    place = "0" if last == "change" else f"{int(last) + 1}" if _is_number(last) else ""
    parts = (generation, turn, place)
    if not incident_id or not all(_is_number(part) for part in parts):
        return ""
    return ".".join(part.zfill(digits) for part, digits in zip(parts, _DIGITS, strict=True))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
