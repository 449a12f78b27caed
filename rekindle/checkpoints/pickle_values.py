"""The plain values that a pickle holds, built without ever running one: dicts, lists, tuples, texts, numbers.

Python's own unpickler calls what a file names, and takes memory that a file only claims to need (a memo of four
billion places, a bytearray of any length). This one knows the opcodes of plain values and refuses every other, by name.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

MAX_OPCODES: Final = 4_000_000  # some seconds of pure Python
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
    """What the pickle holds. It may contain itself, so that a reader must bound its own depth.

    Raises: NotPlain, a ValueError.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    try:
        for opcode, value, _ in islice(pickletools.genops(raw), MAX_OPCODES):
            name = opcode.name
            if name in _VALUES:
                stack.append(value)
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name in _GETS:
                stack.append(memo[value])
            elif name in _PUTS:
                memo[value] = _top(stack)
            elif name == "MEMOIZE":
                memo[len(memo)] = _top(stack)
            elif name == "STOP":
                return _top(stack)
            elif name not in _SILENT:
                _build(name, stack)
    except NotPlain:
        raise
    except Exception as err:  # whatever a hostile or a cut pickle leads to
        raise NotPlain("a damaged pickle") from err
    raise NotPlain(f"a pickle that is cut short, or has more than {MAX_OPCODES} opcodes")


def _build(name: str, stack: list[Any]) -> None:
    """One opcode that puts values together. Raises: NotPlain, and what damaged pickles lead to."""
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
        items = _since_mark(stack)
        stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else _pairs(items))
    elif name in ("APPEND", "APPENDS"):
        items = _since_mark(stack) if name == "APPENDS" else [stack.pop()]
        _of(list, stack).extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = _since_mark(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
        _of(dict, stack).update(_pairs(items))
    else:
        raise NotPlain(f"the opcode {name}, which no plain value needs")


def _top(stack: list[Any]) -> Any:
    if not stack or stack[-1] is _MARK:
        raise NotPlain("a damaged pickle")
    return stack[-1]


def _of(kind: type, stack: list[Any]) -> Any:
    if type(_top(stack)) is not kind:
        raise NotPlain("a damaged pickle")
    return stack[-1]


def _since_mark(stack: list[Any]) -> list[Any]:
    items: list[Any] = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))
