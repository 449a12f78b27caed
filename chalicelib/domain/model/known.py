"""A value we have, or the reason why we do not. Unknown is never zero, never healthy, never "no progress"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """A value that was really read."""

    wire_key: ClassVar[str] = "known"

    value: T


@dataclass(frozen=True, slots=True)
class Unknown:
    """The value could not be read; `why` says so in words an operator understands."""

    wire_key: ClassVar[str] = "unknown"

    why: str


Maybe = Known[T] | Unknown


def maybe_to_wire(maybe: Known[Any] | Unknown) -> dict[str, Any]:
    """JSON form: `{"known": value}` or `{"unknown": why}`."""
    match maybe:
        case Known(value):
            return {"known": value}
        case Unknown(why):
            return {"unknown": why}
