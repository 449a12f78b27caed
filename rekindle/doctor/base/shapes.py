"""A value against one of botocore's shapes: members, types, lengths, patterns, words. Pure.

botocore checks members, types and lower limits before it sends a request; patterns, upper limits and words only the
service checks, minutes later. Here all of them are. A value is of JSON, or what boto3 hands over: times and bytes, too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from typing import Any, Final

from rekindle.doctor.base.findings import listed, quoted

_SCALARS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "integer": ((int,), "a whole number"),
    "long": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "double": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
    "timestamp": ((int, float, str, datetime), "a time"),
    "blob": ((bytes, str), "bytes"),
}
_SHOWN_WORDS: Final = 12  # a longer vocabulary (instance types) is not printed whole


def problems(value: object, shape: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """What is wrong with it, each with its place below `at`."""
    match shape.type_name:
        case "structure":
            yield from _structure(value, shape, at)
        case "list":
            yield from _list(value, shape, at)
        case "map":
            yield from _map(value, shape, at)
        case "string":
            yield from _string(value, shape, at)
        case _:
            yield from _scalar(value, shape, at)


def _scalar(value: object, shape: Any, at: str) -> Iterator[tuple[str, str]]:
    kinds, called = _SCALARS[shape.type_name]
    if not isinstance(value, kinds) or (isinstance(value, bool) and shape.type_name != "boolean"):
        yield at, f"must be {called}, not {_kind(value)}"
    elif isinstance(value, int | float):
        low, high = shape.metadata.get("min"), shape.metadata.get("max")
        if (low is not None and value < low) or (high is not None and value > high):
            shown = value if abs(value) < 10**15 else "it"
            yield at, f"{shown} must be {_range(low, high)}"


def _structure(value: object, shape: Any, at: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield at, f"must be an object, not {_kind(value)}"
        return
    for name in shape.required_members:
        if name not in value:
            yield join(at, name), "is required and missing"
    for name, inner in value.items():
        if name not in shape.members:
            near = difflib.get_close_matches(name[:64], list(shape.members), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield join(at, name[:80]), f"is not known here{hint}"
        else:
            yield from problems(inner, shape.members[name], join(at, name))


def _list(value: object, shape: Any, at: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, list):
        yield at, f"must be a list, not {_kind(value)}"
        return
    yield from _length(len(value), shape, at, "entries")
    for index, inner in enumerate(value):
        yield from problems(inner, shape.member, f"{at}[{index}]")


def _map(value: object, shape: Any, at: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield at, f"must be an object, not {_kind(value)}"
        return
    yield from _length(len(value), shape, at, "entries")
    for name, inner in value.items():
        yield from problems(name, shape.key, at)
        yield from problems(inner, shape.value, join(at, name[:80]))


def _string(value: object, shape: Any, at: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, str):
        yield at, f"must be a text, not {_kind(value)}"
        return
    if shape.enum:
        if value not in shape.enum:
            yield at, f"{quoted(value)} is not one of its words{_near(value, shape.enum)}"
        return
    too_long = False
    for problem in _length(len(value), shape, at, "characters"):
        too_long = True
        yield problem
    pattern = shape.metadata.get("pattern")
    compiled = _compiled(pattern) if pattern and not too_long else None  # patterns are costly on long texts
    if compiled is not None and compiled.fullmatch(value) is None:
        yield at, f"{quoted(value)} does not match {pattern}"


def _length(length: int, shape: Any, at: str, of: str) -> Iterator[tuple[str, str]]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if (low is not None and length < low) or (high is not None and length > high):
        yield at, f"has {length} {of}, must have {_range(low, high)}"


def _range(low: int | None, high: int | None) -> str:
    if high is None:
        return f"{low} or more"
    return f"{low or 0} to {high}"


def _near(value: str, words: list[str]) -> str:
    if len(words) <= _SHOWN_WORDS:
        return f": {listed(words, _SHOWN_WORDS)}"
    near = difflib.get_close_matches(value[:64], words, n=3)
    return f"; near ones: {', '.join(near)}" if near else ""


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def join(at: str, name: str) -> str:
    """The place of a member."""
    return f"{at}.{name}" if at else name


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    r"""The models' patterns are Java's: `\p{L}` and its like become their nearest Python class.

    The few that Python cannot read at all (none in what Rekindle calls) are not checked.
    """
    for java, python in ((r"\p{L}", r"\w"), (r"\p{N}", r"\d"), (r"\p{Z}", r"\s"), (r"\p{Alnum}", "a-zA-Z0-9")):
        pattern = pattern.replace(java, python)
    try:
        return re.compile(pattern)
    except re.error:
        return None
