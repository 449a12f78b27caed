"""Documents that are replaced by version: a caller names the version that it has read, in the body or in If-Match.

Source: RFC 9110, section 13.1.1 (If-Match), RFC 6585, section 3 (428).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final

from chalicelib.api.problems import ApiResponse, ok, problem
from chalicelib.api.request import Request
from chalicelib.domain.model.errors import InvalidRequest
from rekindle.protocol.bounds import Whole

MAX_VERSION: Final = 10**15 - 1
_ETAG: Final = re.compile(r'"([0-9]{1,15})"\Z')


Version = Annotated[Annotated[int, Whole(0, MAX_VERSION)] | None, "the version that is replaced, 0: none is stored yet"]


def replace(request: Request, put: Callable[[int], dict[str, Any]]) -> ApiResponse:
    """What `put` stores in place of the version that the caller names; 428 where none is named.

    Raises:
        InvalidRequest: If-Match is no version of ours, or is another one than the body's.
    """
    version = _named(request)
    if version is None:
        message = "name the version that is replaced: `version` (0: none is stored yet), or the header If-Match"
        return problem(428, message, at="version")
    return versioned(put(version))


def versioned(stored: dict[str, Any]) -> ApiResponse:
    """A document with its version as its ETag."""
    return ok(stored, headers={"ETag": f'"{stored["version"]}"'})


def _named(request: Request) -> int | None:
    """The version that is to be replaced. Raises: InvalidRequest."""
    named: int | None = request.form.version
    header = request.headers.get("if-match")
    if header is None:
        return named
    match = _ETAG.match(header.strip())
    if match is None:
        raise InvalidRequest("If-Match", 'must be a version in quotes, such as "3"')
    if named is not None and named != int(match[1]):
        raise InvalidRequest("version", "is another one than If-Match names")
    return int(match[1])
