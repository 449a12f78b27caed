"""A CreateCluster request against botocore's own model of it. No call to AWS is made."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, Final

from rekindle.doctor.base.checks import BOTO, Area, check
from rekindle.doctor.base.findings import Finding, error, unfilled
from rekindle.doctor.base.shapes import join, problems

MAX_PROBLEMS: Final = 10_000  # of one file; it may hold a million wrong things


@check("request-shape", Area.REQUEST, BOTO, twin="schema")
def request_findings(request: dict[str, Any], label: str) -> Iterator[Finding]:
    """Members, types, lengths, patterns, enum values.

    The service checks most of them only after the call.
    """
    from botocore import __version__

    left = dict(_unfilled(request, ""))
    found = [*left.items(), *((at, why) for at, why in problems(request, _create_cluster()) if at not in left)]
    for at, problem in islice(found, MAX_PROBLEMS):
        where = f"{label}:{at}" if at else label
        yield error(where, f"{problem} (botocore {__version__}, CreateCluster)")


def _unfilled(value: object, at: str) -> Iterator[tuple[str, str]]:
    """Placeholders of an example that are still in the request, each with its place."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _unfilled(inner, join(at, name[:80]))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _unfilled(inner, f"{at}[{index}]")
    elif isinstance(value, str) and (left := unfilled(value)) is not None:
        yield at, left


@cache
def _create_cluster() -> Any:
    # Only here: loading the model of SageMaker takes longer than most commands.
    from botocore.session import Session

    return Session().get_service_model("sagemaker").operation_model("CreateCluster").input_shape
