"""Pickles read without ever being run: their opcodes are walked, and the texts and whole numbers in them looked at.

Unpickling calls whatever the file names; walking calls nothing. The walk is bounded in bytes, and ends at the first
opcode that it cannot read.
"""

from __future__ import annotations

import pickletools
from collections.abc import Collection, Iterator
from typing import Final

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


_MARK: Final = object()
_OTHER: Final = object()  # whatever is no plain text, number or dict: nothing of it is made


def top_level(raw: bytes) -> dict[str, int]:
    """The whole numbers that the pickled dict itself has, by their keys; not those of the dicts within it.

    The opcodes are followed with a stack of plain values. Of a pickle that is cut short, what came before.
    """
    walk = _StackWalk()
    try:
        for opcode, value, _ in pickletools.genops(raw):
            walk.see(opcode, value)
    except Exception:  # hostile or cut short
        return walk.numbers()
    return walk.numbers()


class _StackWalk:
    """The stack of the machine that a pickle is a program for, with dicts of texts and numbers as all that is built."""

    def __init__(self) -> None:
        self._stack: list[object] = []
        self._memo: dict[int, object] = {}

    def see(self, opcode: pickletools.OpcodeInfo, value: object) -> None:
        name, stack = opcode.name, self._stack
        if name in _TEXTS or name in _NUMBERS:
            stack.append(value)
        elif name in ("NEWTRUE", "NEWFALSE"):
            stack.append(_OTHER)
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in _PUTS and isinstance(value, int):
            self._memo[value] = stack[-1]
        elif name in _GETS and isinstance(value, int):
            stack.append(self._memo.get(value, _OTHER))
        elif name == "SETITEM":
            of = stack[-2:]
            del stack[-2:]
            _fill(stack[-1], of)
        elif name == "SETITEMS":
            of = self._since_mark()
            _fill(stack[-1], of)
        elif name != "STOP":
            self._generic(opcode)

    def _generic(self, opcode: pickletools.OpcodeInfo) -> None:
        before = list(opcode.stack_before)
        if pickletools.markobject in before:
            self._since_mark()
            before = before[: before.index(pickletools.markobject)]
        del self._stack[len(self._stack) - len(before) :]
        # What is put back in the place of a list or an object that was filled is no dict of ours either.
        self._stack += [_OTHER] * len(opcode.stack_after)

    def _since_mark(self) -> list[object]:
        at = len(self._stack) - 1
        while self._stack[at] is not _MARK:
            at -= 1
        found = self._stack[at + 1 :]
        del self._stack[at:]
        return found

    def numbers(self) -> dict[str, int]:
        """What is at the bottom of the stack, also before its last items were set."""
        outermost = self._stack[0] if self._stack else None
        if not isinstance(outermost, dict):
            return {}
        if len(self._stack) > 1 and self._stack[1] is _MARK:
            _fill(outermost, self._stack[2:])
        return {key: value for key, value in outermost.items() if isinstance(key, str) and type(value) is int}


def _fill(target: object, items: list[object]) -> None:
    if isinstance(target, dict):
        for key, value in zip(items[::2], items[1::2], strict=False):
            if isinstance(key, str):
                target[key] = value
