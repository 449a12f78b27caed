"""The JSON of a body: stricter than Python's."""

from __future__ import annotations

import json
import math
from typing import Any

from chalicelib.domain.model.errors import InvalidRequest
from rekindle.protocol.wire import MAX_DEPTH, is_deep


def read_json(raw: bytes) -> Any:
    """The value of a JSON document (RFC 8259) in UTF-8.

    Stricter than Python: no NaN or Infinity, no name twice in one object, no half of a surrogate pair, which no store
    could keep, and nested MAX_DEPTH deep at most. A whole number may be written as 5.0.

    Raises:
        InvalidRequest: names the body, and says what it is not.
    """
    try:
        value = json.loads(
            raw.decode("utf-8"), parse_constant=_no_constant, parse_float=_number, object_pairs_hook=_pairs
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeError:
        raise InvalidRequest("body", "is not UTF-8") from None
    except InvalidRequest:
        raise
    except (ValueError, RecursionError):
        raise InvalidRequest("body", "is not JSON") from None
    if is_deep(value):  # Python 3.13 reads what is nested thousands deep, which a recursive reader would fail on
        raise InvalidRequest("body", f"is nested more than {MAX_DEPTH} deep")
    return value


def _no_constant(name: str) -> Any:
    raise InvalidRequest("body", f"is not JSON: {name} is no number")


def _number(written: str) -> int | float:
    value = float(written)
    if not math.isfinite(value):
        raise InvalidRequest("body", "holds a number that is too large")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise InvalidRequest("body", "names a member twice in one object")
    return made
