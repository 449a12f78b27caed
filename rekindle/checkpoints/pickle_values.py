"""Reads the plain values of a pickle without running it: dicts, lists, tuples, texts, numbers.

Python's own unpickler calls what a file names, and takes memory that a file only claims to need (a memo of four
billion places, a bytearray of any length). This reader knows the opcodes of plain values only. At any other it either
refuses the pickle, or puts `OTHER` in place of what the opcode would have made.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any, Final

MAX_OPCODES: Final = 4_000_000  # some seconds of pure Python
OTHER: Final = object()  # stands for anything that is not a plain value
_MARK: Final = object()
_VALUES: Final = frozenset({
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "BINFLOAT", "FLOAT", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8",
})  # fmt: skip
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: Final[dict[str, Callable[[], Any]]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_PUTS: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS: Final = frozenset({"GET", "BINGET", "LONG_BINGET"})
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_SILENT: Final = frozenset({"PROTO", "FRAME"})


class NotPlain(ValueError):
    """A pickle that is damaged, too long, or holds anything but plain values; nothing of it has been run."""


def plain_value(raw: bytes) -> Any:
    """The value of the pickle. It may contain itself, so that a caller must bound its own depth.

    Raises: NotPlain, a ValueError.
    """
    machine = _Machine(refuses=True)
    try:
        for opcode, value, _ in islice(pickletools.genops(raw), MAX_OPCODES):
            if opcode.name == "STOP":
                return machine.top()
            machine.execute(opcode, value)
    except NotPlain:
        raise
    except Exception as err:  # whatever a hostile or a cut pickle leads to
        raise NotPlain("a damaged pickle") from err
    raise NotPlain(f"a pickle that is cut short, or has more than {MAX_OPCODES} opcodes")


def outermost(raw: bytes) -> dict[Any, Any]:
    """The outermost dict of the pickle, with `OTHER` for each value that is not plain. Of a pickle that is damaged or
    cut short, the items before that. Empty for a pickle of anything but a dict.
    """
    machine = _Machine(refuses=False)
    with suppress(Exception):  # whatever a hostile or a cut pickle leads to: what was read before it counts
        for opcode, value, _ in islice(pickletools.genops(raw), MAX_OPCODES):
            if opcode.name == "STOP":
                break
            machine.execute(opcode, value)
    return machine.bottom()


class _Machine:
    """The stack and the memo of the machine that runs a pickle's opcodes."""

    def __init__(self, *, refuses: bool) -> None:
        """refuses: raise NotPlain at an opcode that no plain value needs; otherwise its result is `OTHER`."""
        self._refuses = refuses
        self._stack: list[Any] = []
        self._memo: dict[Any, Any] = {}

    def execute(self, opcode: pickletools.OpcodeInfo, value: Any) -> None:
        """Execute one opcode. Raises: NotPlain; IndexError, KeyError and the like for a damaged pickle."""
        name, stack = opcode.name, self._stack
        if name in _VALUES:
            stack.append(value)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _GETS:
            stack.append(self._memo[value])
        elif name in _PUTS:
            self._memo[value] = self.top()
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self.top()
        elif name not in _SILENT:
            self._build(opcode)

    def _build(self, opcode: pickletools.OpcodeInfo) -> None:
        """One opcode that puts values together."""
        name, stack = opcode.name, self._stack
        if name == "MARK":
            stack.append(_MARK)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            size = _TUPLES[name]
            items = stack[-size:]
            if len(items) < size or any(item is _MARK for item in items):
                raise NotPlain("a damaged pickle")
            stack[-size:] = [tuple(items)]
        elif name in ("TUPLE", "LIST", "DICT"):
            items = self._since_mark()
            stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else _pairs(items))
        elif name in ("APPEND", "APPENDS"):
            items = self._since_mark() if name == "APPENDS" else [stack.pop()]
            if (into := self._top_of(list)) is not None:
                into.extend(items)
        elif name in ("SETITEM", "SETITEMS"):
            items = self._since_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
            if (into := self._top_of(dict)) is not None:
                into.update(_pairs(items))
        else:
            self._skip(opcode)

    def _skip(self, opcode: pickletools.OpcodeInfo) -> None:
        """Take from the stack what the opcode takes, and put `OTHER` there for each of its results."""
        if self._refuses:
            raise NotPlain(f"the opcode {opcode.name}, which no plain value needs")
        takes = list(opcode.stack_before)
        if pickletools.markobject in takes:
            self._since_mark()
            takes = takes[: takes.index(pickletools.markobject)]
        del self._stack[len(self._stack) - len(takes) :]
        self._stack += [OTHER] * len(opcode.stack_after)

    def top(self) -> Any:
        """The top of the stack. Raises: NotPlain where there is no value."""
        if not self._stack or self._stack[-1] is _MARK:
            raise NotPlain("a damaged pickle")
        return self._stack[-1]

    def _top_of(self, kind: type) -> Any:
        """The top of the stack, which must be of that type; None where it is `OTHER`. Raises: NotPlain."""
        top = self.top()
        if top is OTHER:
            return None
        if type(top) is not kind:
            raise NotPlain("a damaged pickle")
        return top

    def _since_mark(self) -> list[Any]:
        """Take the values above the newest mark, and the mark, from the stack."""
        items: list[Any] = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def bottom(self) -> dict[Any, Any]:
        """The dict that all else is put into, also before its last items were set; empty where there is none."""
        whole = self._stack[0] if self._stack else None
        if type(whole) is not dict:
            return {}
        if len(self._stack) > 1 and self._stack[1] is _MARK:
            rest = self._stack[2:]
            whole.update((key, value) for key, value in zip(rest[::2], rest[1::2], strict=False) if _is_key(key))
        return whole


def _is_key(value: Any) -> bool:
    return isinstance(value, str | int)


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))
