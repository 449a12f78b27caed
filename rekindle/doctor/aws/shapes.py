"""A JSON value against one of botocore's shapes: members, types, lengths, patterns, words. No call to AWS is made.

botocore checks members, types and lower limits before it sends a request; patterns, upper limits and words only the
service checks, minutes later. Here all of them are.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, Final

from rekindle.doctor.base.checks import BOTO, Area, check
from rekindle.doctor.base.findings import Finding, error, listed, quoted, unfilled

MAX_PROBLEMS: Final = 10_000  # of one file; it may hold a million wrong things
_SHOWN_WORDS: Final = 12  # a longer vocabulary (instance types) is not printed whole


@check("request-shape", Area.REQUEST, BOTO, twin="schema")
def request_findings(request: dict[str, Any], label: str) -> Iterator[Finding]:
    """Members, types, lengths, patterns, enum values.

    The service checks most of them only after the call.
    """
    from botocore import __version__

    for at, problem in islice(_problems(request, _create_cluster(), ""), MAX_PROBLEMS):
        where = f"{label}:{at}" if at else label
        yield error(where, f"{problem} (botocore {__version__}, CreateCluster)")


@cache
def _create_cluster() -> Any:
    # Only here: loading the model of SageMaker takes longer than most commands.
    from botocore.session import Session

    return Session().get_service_model("sagemaker").operation_model("CreateCluster").input_shape


def _problems(value: object, shape: Any, at: str) -> Iterator[tuple[str, str]]:
    match shape.type_name:
        case "structure":
            yield from _structure(value, shape, at)
        case "list":
            yield from _list(value, shape, at)
        case "map":
            yield from _map(value, shape, at)
        case "string":
            yield from _string(value, shape, at)
        case "integer" | "long":
            yield from _whole(value, shape, at)
        case "boolean":
            if not isinstance(value, bool):
                yield at, f"must be true or false, not {_kind(value)}"
        case "timestamp":
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                yield at, f"must be a time, not {_kind(value)}"
        case _:
            return


def _structure(value: object, shape: Any, at: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield at, f"must be an object, not {_kind(value)}"
        return
    for name in shape.required_members:
        if name not in value:
            yield _join(at, name), "is required and missing"
    for name, inner in value.items():
        if name not in shape.members:
            near = difflib.get_close_matches(name[:64], list(shape.members), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield _join(at, name[:80]), f"is not known here{hint}"
        else:
            yield from _problems(inner, shape.members[name], _join(at, name))


def _list(value: object, shape: Any, at: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, list):
        yield at, f"must be a list, not {_kind(value)}"
        return
    yield from _length(len(value), shape, at, "entries")
    for index, inner in enumerate(value):
        yield from _problems(inner, shape.member, f"{at}[{index}]")


def _map(value: object, shape: Any, at: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        yield at, f"must be an object, not {_kind(value)}"
        return
    yield from _length(len(value), shape, at, "entries")
    for name, inner in value.items():
        yield from _problems(name, shape.key, at)
        yield from _problems(inner, shape.value, _join(at, name[:80]))


def _string(value: object, shape: Any, at: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, str):
        yield at, f"must be a text, not {_kind(value)}"
        return
    left = unfilled(value)
    if left is not None:
        yield at, left
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
    # Python has no \p{…}. A text of the wrong length is not matched: patterns are costly on long texts.
    if pattern and not too_long and r"\p{" not in pattern and re.fullmatch(pattern, value) is None:
        yield at, f"{quoted(value)} does not match {pattern}"


def _whole(value: object, shape: Any, at: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, int) or isinstance(value, bool):
        yield at, f"must be a whole number, not {_kind(value)}"
        return
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if (low is not None and value < low) or (high is not None and value > high):
        shown = value if abs(value) < 10**15 else "it"
        yield at, f"{shown} must be {_range(low, high)}"


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


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
