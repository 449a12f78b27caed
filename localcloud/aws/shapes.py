"""Requests and answers of the embedded cloud, held against botocore's own service models.

What the emulation answers must be what AWS could answer, and what the service sends must be what AWS would take. Both
are read from the models that boto3 carries, so the emulation cannot drift from the API the code will meet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from typing import Any

import botocore.session
from botocore.model import ListShape, MapShape, OperationModel, ServiceModel, Shape, StringShape, StructureShape

_NUMBERS = {"integer": int, "long": int, "float": (int, float), "double": (int, float)}


class ShapeMismatch(AssertionError):
    """An answer that AWS could not have given; names the operation and every member that is wrong."""


@cache
def service_model(service: str) -> ServiceModel:
    """The model that boto3 itself uses."""
    return botocore.session.get_session().get_service_model(service)


def operation_model(service: str, operation: str) -> OperationModel:
    """The model of one operation, by its AWS name (`StopTrainingJob`)."""
    return service_model(service).operation_model(operation)


def request_problems(service: str, operation: str, request: dict[str, Any]) -> list[str]:
    """Why AWS would answer ValidationException; empty when it would not."""
    shape = operation_model(service, operation).input_shape
    return list(_problems(shape, request, "")) if shape is not None else []


def check_answer(service: str, operation: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer itself, when it fits the operation's output shape. Raises: ShapeMismatch."""
    shape = operation_model(service, operation).output_shape
    if shape is None:
        problems = [f"{operation} answers nothing"] if answer else []
    else:
        problems = list(_problems(shape, answer, ""))
    if problems:
        raise ShapeMismatch(f"{service}.{operation}: " + "; ".join(problems))
    return answer


def _problems(shape: Shape, value: Any, path: str) -> Iterator[str]:
    match shape:
        case StructureShape():
            yield from _structure_problems(shape, value, path)
        case ListShape():
            yield from _list_problems(shape, value, path)
        case MapShape():
            yield from _map_problems(shape, value, path)
        case StringShape():
            yield from _text_problems(shape, value, path or "(top)")
        case _:
            yield from _scalar_problems(shape, value, path or "(top)")


def _structure_problems(shape: StructureShape, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path or '(top)'} is {type(value).__name__}, not a structure"
        return
    for name in shape.required_members:
        if value.get(name) is None:
            yield f"{path}.{name} is required"
    for name, inner in value.items():
        if name not in shape.members:
            yield f"{path}.{name} is not a member of {shape.name}"
        elif inner is not None:
            yield from _problems(shape.members[name], inner, f"{path}.{name}")


def _list_problems(shape: ListShape, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path or '(top)'} is {type(value).__name__}, not a list"
        return
    yield from _size_problems(shape, len(value), path or "(top)")
    for index, inner in enumerate(value):
        yield from _problems(shape.member, inner, f"{path}[{index}]")


def _map_problems(shape: MapShape, value: Any, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path or '(top)'} is {type(value).__name__}, not a map"
        return
    yield from _size_problems(shape, len(value), path or "(top)")
    for key, inner in value.items():
        yield from _problems(shape.key, key, f"{path} key {key!r}")
        yield from _problems(shape.value, inner, f"{path}[{key!r}]")


def _text_problems(shape: StringShape, value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, str):
        yield f"{where} is {type(value).__name__}, not a string"
        return
    yield from _size_problems(shape, len(value), where)
    if shape.enum and value not in shape.enum:
        yield f"{where} {value!r} is none of {', '.join(shape.enum[:20])}"
    pattern = shape.metadata.get("pattern")
    compiled = _compiled(pattern) if pattern else None
    if compiled is not None and not compiled.fullmatch(value):
        yield f"{where} {value!r} does not match {pattern}"


def _scalar_problems(shape: Shape, value: Any, where: str) -> Iterator[str]:
    if shape.type_name in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, _NUMBERS[shape.type_name]):  # type: ignore[arg-type]
            yield f"{where} is {type(value).__name__}, not {shape.type_name}"
        else:
            yield from _size_problems(shape, value, where)
    elif shape.type_name == "boolean" and not isinstance(value, bool):
        yield f"{where} is {type(value).__name__}, not boolean"
    elif shape.type_name == "timestamp" and not isinstance(value, datetime | int | float | str):
        yield f"{where} is {type(value).__name__}, not a timestamp"
    elif shape.type_name == "blob" and not isinstance(value, bytes | str):
        yield f"{where} is {type(value).__name__}, not a blob"


def _size_problems(shape: Shape, size: float, where: str) -> Iterator[str]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if low is not None and size < low:
        yield f"{where} is below the minimum of {low}"
    if high is not None and size > high:
        yield f"{where} is above the maximum of {high}"


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    r"""The models' patterns are Java's: `\p{L}` and its like become their nearest Python class.

    The few that Python cannot read at all (none in what Rekindle calls) are not checked.
    """
    for java, python in ((r"\p{L}", r"\w"), (r"\p{N}", r"\d"), (r"\p{Z}", r"\s"), (r"\p{Alnum}", "a-zA-Z0-9")):
        pattern = pattern.replace(java, python)
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error:
        return None
