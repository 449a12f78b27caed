"""What the answers of the emulated APIs have in common: errors, pages of a listing, times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


class AwsError(Exception):
    """An error answer of an AWS API, by its code."""

    def __init__(self, code: str, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status


def paged(items: list[Any], request: Mapping[str, Any]) -> tuple[list[Any], str | None]:
    """One page of a listing, and the token of the next; the token is the index it begins at."""
    start = int(request.get("NextToken") or 0)
    size = int(request.get("MaxResults") or 100)
    end = start + size
    return items[start:end], str(end) if end < len(items) else None


def as_time(value: Any) -> datetime | None:
    """A timestamp of the JSON protocol: epoch seconds, or ISO text."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value
    return datetime.fromtimestamp(value, UTC) if isinstance(value, int | float) else datetime.fromisoformat(value)
