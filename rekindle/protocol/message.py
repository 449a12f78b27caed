"""A whole message: a document with a version and a size limit, to and from JSON bytes. Pure; standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from rekindle.compat import Self
from rekindle.protocol.codec import Document
from rekindle.protocol.wire import (
    HALF_CHARACTER,
    MAX_MESSAGE_BYTES,
    WIRE_VERSION,
    MailboxError,
    is_deep,
    parse_json,
)


class Message(Document):
    """Base of the messages. `LIMIT_BYTES` is the most that one may have as JSON."""

    __slots__ = ()
    LIMIT_BYTES: ClassVar[int] = MAX_MESSAGE_BYTES

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Raises: MailboxError naming the first wrong field. Unknown fields are ignored, an unknown `v` is not."""
        if not isinstance(wire, Mapping):
            raise MailboxError("$", "must be a JSON object")
        if type(wire.get("v")) is not int or wire["v"] != WIRE_VERSION:
            raise MailboxError("v", f"is not {WIRE_VERSION}, the only version known here")
        return super().from_wire(wire)

    @classmethod
    def from_json(cls, raw: bytes | str) -> Self:
        """Raises: MailboxError, and nothing else, for whatever bytes are given."""
        return cls.from_wire(parse_json(raw, cls.LIMIT_BYTES))

    def to_json(self) -> bytes:
        """Bytes that `from_json` accepts. Raises: MailboxError where the message would not be readable again."""
        wire: dict[str, Any] = {"v": WIRE_VERSION, **self.to_wire()}
        try:
            raw = json.dumps(wire, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as err:
            raise MailboxError("$", f"cannot be written as JSON: {err}") from err
        if len(raw) > self.LIMIT_BYTES:
            raise MailboxError("$", f"is larger than {self.LIMIT_BYTES} bytes")
        if is_deep(wire) or HALF_CHARACTER.search(raw.decode()):
            parse_json(raw, self.LIMIT_BYTES)
        self.from_wire(wire)
        return raw
