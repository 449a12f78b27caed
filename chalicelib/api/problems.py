"""Errors of the REST API as problem+json (RFC 9457), each naming the field where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from chalicelib.domain.errors import (
    InvalidPolicy,
    InvalidRequest,
    NotAuthorized,
    Permanent,
    RecoveryError,
    Retryable,
    Skip,
    Throttled,
    UnknownEntity,
)

PROBLEM_JSON = "application/problem+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a route answers."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})


def problem(status: int, title: str, detail: str, *, at: str | None = None, retry_after_s: int | None = None) -> Answer:
    """One problem document; `at` is the dotted path of the offending field."""
    body: dict[str, Any] = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    if at is not None:
        body["field"] = at
    headers = {"Content-Type": PROBLEM_JSON}
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    return Answer(status=status, body=body, headers=headers)


def from_error(err: RecoveryError) -> Answer:
    """The answer for a domain error. Total over the tree in domain/errors.py."""
    match err:
        case InvalidRequest() | InvalidPolicy():
            return problem(400, "Bad request", str(err), at=err.field)
        case UnknownEntity():
            return problem(404, "Not found", str(err))
        case NotAuthorized():
            return problem(403, "Forbidden", str(err))
        case Skip():
            return problem(409, "Not applicable", err.reason)
        case Throttled():
            return problem(429, "Too many requests", str(err), retry_after_s=5)
        case Retryable():
            return problem(503, "Try again", str(err), retry_after_s=5)
        case Permanent():
            return problem(422, "Cannot be done", str(err))
        case _:
            return problem(500, "Internal error", str(err))
