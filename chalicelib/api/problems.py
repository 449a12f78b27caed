"""Errors of the REST API as problem+json (RFC 9457), each naming the field where there is one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chalicelib.domain.model.errors import (
    InvalidPolicy,
    InvalidRequest,
    InvalidSettings,
    NotAuthorized,
    Outdated,
    Permanent,
    RecoveryError,
    Retryable,
    Skip,
    Throttled,
    UnknownEntity,
)

PROBLEM_JSON: Final = "application/problem+json"
JSON: Final = "application/json"
RETRY_AFTER_S: Final = 5
MAX_DETAIL: Final = 1000
# A synchronous answer of Lambda is at most 6 MB, so API Gateway's 10 MB are never reached.
# Source: Lambda quotas, invocation payload; API Gateway quotas, payload size.
MAX_ANSWER_BYTES: Final = 5_500_000

TITLES: Final[Mapping[int, str]] = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Not applicable",
    412: "Changed meanwhile",
    413: "Too large",
    415: "Not JSON",
    422: "Cannot be done",
    428: "Version needed",
    429: "Too many requests",
    500: "Internal error",
    503: "Try again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResponse:
    """What a route answers."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": JSON})

    def text(self) -> str:
        """The body as it is sent: no NaN or Infinity, which are no JSON; such a number is null."""
        try:
            return json.dumps(self.body, allow_nan=False)
        except ValueError:
            return json.dumps(_finite(self.body), allow_nan=False)


def ok(body: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None) -> ApiResponse:
    """A good answer."""
    return ApiResponse(status=status, body=body, headers={"Content-Type": JSON, **(headers or {})})


def problem(status: int, detail: str, *, at: str | None = None, retry_after_s: int | None = None) -> ApiResponse:
    """One problem document; `at` is the dotted path of the offending field."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": TITLES[status],
        "status": status,
        "detail": detail[:MAX_DETAIL],
    }
    if at is not None:
        body["field"] = at[:MAX_DETAIL]
    headers = {"Content-Type": PROBLEM_JSON}
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    return ApiResponse(status=status, body=body, headers=headers)


def from_error(err: RecoveryError) -> ApiResponse:
    """The answer for a domain error. Total over the tree in domain/model/errors.py."""
    match err:
        case InvalidRequest() | InvalidPolicy() | InvalidSettings():
            return problem(400, str(err), at=err.field)
        case UnknownEntity():
            return problem(404, str(err))
        case NotAuthorized():
            return problem(403, str(err))
        case Outdated():
            return problem(412, str(err), at="version")
        case Skip():
            return problem(409, err.reason)
        case Throttled():
            return problem(429, str(err), retry_after_s=RETRY_AFTER_S)
        case Retryable():
            return problem(503, str(err), retry_after_s=RETRY_AFTER_S)
        case Permanent():
            return problem(422, str(err))
        case _:
            return problem(500, str(err))


def of_framework(status: int, body: Any, headers: Mapping[str, Any]) -> ApiResponse | None:
    """The problem document for one of Chalice's own refusals; None for any other answer."""
    if not isinstance(body, Mapping) or set(body) != {"Code", "Message"} or status not in TITLES:
        return None
    message = "this service failed; its log says how" if status == 500 else str(body["Message"])
    answer = problem(status, message, at="Content-Type" if status == 415 else None)
    kept = {name: str(value) for name, value in headers.items() if name.lower() == "allow"}
    return ApiResponse(status=status, body=answer.body, headers={**answer.headers, **kept})


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
