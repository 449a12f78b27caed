"""Requests and answers of the embedded cloud, held against botocore's own service models.

What the emulation answers must be what AWS could answer, and what the service sends must be what AWS would take. Both
are read from the models that boto3 carries, so the emulation cannot drift from the API the code will meet.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import botocore.session
from botocore.model import OperationModel, ServiceModel, Shape

from rekindle.doctor.base.shapes import problems


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
    return _problems(shape, request) if shape is not None else []


def check_answer(service: str, operation: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer itself, when it fits the operation's output shape. Raises: ShapeMismatch."""
    shape = operation_model(service, operation).output_shape
    wrong = _problems(shape, answer) if shape is not None else [f"{operation} answers nothing"] * bool(answer)
    if wrong:
        raise ShapeMismatch(f"{service}.{operation}: " + "; ".join(wrong))
    return answer


def _problems(shape: Shape, value: dict[str, Any]) -> list[str]:
    return [f"{at or '(top)'} {problem}" for at, problem in problems(_without_none(value), shape)]


def _without_none(value: Any) -> Any:
    """A member that is None was not given."""
    if isinstance(value, dict):
        return {name: _without_none(inner) for name, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value
