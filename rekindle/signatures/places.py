"""The source of a log line, and its step: read from the line itself, where it names them."""

from __future__ import annotations

import re
from typing import Final

MAX_READ_CHARS: Final = 2000

_RANK: Final = re.compile(
    r"\[(?:default|rank\s?)(\d{1,6})\]|\[(?:PG [^\]]{0,40})?Rank (\d{1,6})\]|\brank[ =:]{1,3}(\d{1,6})\b", re.IGNORECASE
)
_NODE: Final = re.compile(
    r"\A(?:\[\d{1,5},\d{1,5}\]<std(?:out|err)>:)?([A-Za-z0-9][\w.-]{0,62}):\d{1,9}:\d{1,9} \[\d{1,3}\]"  # NCCL's prefix
    r"|\bNode failure on ([\w.-]{1,63})|\bON ([\w.-]{1,63}) CANCELLED\b|\bsrun: error: ([\w.-]{1,63}): tasks?\b"
    r"|\bnodes? ([\w.-]{1,63}) (?:is )?not responding|\bnode: ?([\w.-]{1,63})\b"
)
_STEP: Final = re.compile(
    r"\b(?:iteration|global[_ ]step|step|iter)s?['\"]?\s{0,3}[:=#]?\s{0,12}(\d{1,12})(?![\d.])", re.IGNORECASE
)


def rank_in(text: str) -> int | None:
    """The rank that a line names, if it names one."""
    found = _RANK.search(text[:MAX_READ_CHARS])
    return int(next(group for group in found.groups() if group)) if found else None


def node_in(text: str) -> str | None:
    """The host that a line names, if it names one."""
    found = _NODE.search(text[:MAX_READ_CHARS])
    return next(group for group in found.groups() if group) if found else None


def step_in(text: str) -> int | None:
    """The training step that a line names, if it names one."""
    found = _STEP.search(text[:MAX_READ_CHARS])
    return int(found[1]) if found else None
