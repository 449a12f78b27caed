"""Stored records and settings: `rekindle.protocol.codec`, with the service's own errors for what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, cast

from chalicelib.domain.model.errors import MalformedRecord
from rekindle.protocol import codec
from rekindle.protocol.codec import split
from rekindle.protocol.wire import MailboxError

__all__ = ["Record", "read", "split"]


class Record:
    """Base of the dataclasses that are written and read by themselves; what they hold needs no base."""

    __slots__ = ()

    def to_wire(self, *, defaults: bool = False) -> dict[str, Any]:
        """JSON form. `defaults`: with the fields that hold their default, as the API shows a record."""
        return cast("dict[str, Any]", codec.write(type(self), self, defaults=defaults))

    @classmethod
    def from_wire(cls, wire: object, *, beyond: list[str] | None = None) -> Self:
        """Inverse of `to_wire`; see `read`."""
        return cast("Self", read(cls, wire, beyond=beyond))


def read(
    kind: Any,
    wire: object,
    *,
    beyond: list[str] | None = None,
    error: Callable[[str, str], Exception] = MalformedRecord,
    at: str = "",
) -> Any:
    """A value of `kind` from its JSON form. Fields that this version does not know are added to `beyond`, dotted.

    Raises:
        MalformedRecord: or `error`, made of the field (below `at`) and the problem: the first field that is missing or
            wrong; without `beyond` also one that is not known.
    """
    try:
        return codec.read(kind, wire, beyond=beyond)
    except MailboxError as err:
        raise error(".".join(name for name in (at, err.field) if name), err.problem) from None
