"""Pickles read without ever being run: their opcodes are walked, and the texts and whole numbers in them looked at.

Unpickling calls whatever the file names; walking calls nothing. The walk is bounded in bytes, and ends at the first
opcode that it cannot read.
"""

from __future__ import annotations

import pickletools
from collections.abc import Collection, Iterator
from typing import Final

from rekindle.checkpoints.pickle_values import outermost

MAX_WALK_BYTES: Final = 4 * 1024 * 1024  # some seconds of pure Python

Token = str | int | None
_TEXTS: Final = frozenset({"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"})
_NUMBERS: Final = frozenset({"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"})
_GETS: Final = frozenset({"GET", "BINGET", "LONG_BINGET"})
_PUTS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_SILENT: Final = frozenset({"PROTO", "FRAME"})


def tokens(raw: bytes) -> Iterator[Token]:
    """Texts, whole numbers, and None for anything else, in the order in which they are written."""
    memo: dict[int, Token] = {}
    memoized = 0
    last: Token = None
    try:
        for opcode, value, _ in pickletools.genops(raw[:MAX_WALK_BYTES]):
            name = opcode.name
            if name == "MEMOIZE":
                memo[memoized] = last
                memoized += 1
            elif name in _PUTS and isinstance(value, int):
                memo[value] = last
            elif name not in _SILENT:
                last = _token(name, value, memo)
                yield last
    except Exception:  # hostile or cut short: what came before it stands
        return


def _token(name: str, value: object, memo: dict[int, Token]) -> Token:
    if name in _TEXTS and isinstance(value, str):
        return value
    if name in _NUMBERS and isinstance(value, int) and not isinstance(value, bool):
        return value
    return memo.get(value) if name in _GETS and isinstance(value, int) else None


def is_cut_short(raw: bytes) -> bool:
    """Whether these bytes are no whole pickle: its STOP, a full stop, is also a byte of many numbers and texts.

    Since protocol 4 the length of each frame is written before it, so that nothing has to be walked. Of one above
    `MAX_WALK_BYTES` that has parts outside of frames only the last byte is judged. Source: pickletools, PEP 3154.
    """
    at = 2 if raw[:1] == b"\x80" else 0
    while raw[at : at + 1] == b"\x95":
        at += 9 + int.from_bytes(raw[at + 1 : at + 9], "little")
    if not raw.endswith(b".") or at > len(raw):
        return True
    if at == len(raw) or len(raw) > MAX_WALK_BYTES:
        return False
    try:
        stop = max(position for _, _, position in pickletools.genops(raw) if position is not None)
    except Exception:  # hostile or cut short
        return True
    return stop + 1 != len(raw)


def numbers_of(raw: bytes, keys: Collection[str]) -> dict[str, set[int]]:
    """The whole numbers that directly follow each of these keys, wherever in the pickle."""
    found: dict[str, set[int]] = {}
    key: str | None = None
    for token in tokens(raw):
        if key is not None and isinstance(token, int):
            found.setdefault(key, set()).add(token)
        key = token if isinstance(token, str) and token in keys else None
    return found


def top_level(raw: bytes) -> dict[str, int]:
    """The whole numbers that the pickled dict itself has, by their keys; not those of the dicts within it. Of a pickle
    that is cut short, what came before.
    """
    return {key: value for key, value in outermost(raw).items() if isinstance(key, str) and type(value) is int}
